"""Experiments whose units are far apart: links are shaped before steady state and to the end."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from harness import catalogue
from harness.compose import check, shaped
from harness.errors import SpecError
from harness.events import Heard, ProxyChanged, SteadyState, WindowEnded
from harness.spec import read_table
from reports.gate import GATES
from tests.simulation.helpers import Story, experiment, fault

FAR: dict[str, Any] = {"latency_ms": 60, "groups": {"b": {"latency_ms": 200, "kb_s": 500}}}
GROUPS = ["a", "a", "a", "b"]


def far(*faults: Any, links: Any = FAR, **params: Any) -> dict[str, Any]:
    return {**experiment(*faults, groups=GROUPS, **params), "links": links}


def round_trips_ms(story: Story, unit: str, since_ns: int = 0, until_ns: int = 2**62) -> list[int]:
    return [
        h.rtt_ns // 1_000_000
        for h in story.of(Heard, unit)
        if since_ns + 10**9 < h.t_ns < until_ns and h.rtt_ns > 0
    ]


def test_a_group_has_its_own_links_and_the_rest_the_common_ones() -> None:
    draft = read_table(far(), "far", "", gates=GATES)
    states = {unit: state for (unit, _), state in shaped(check(draft, 1)).items()}
    assert sorted(states) == [f"learner-{i}" for i in range(4)]
    assert (states["learner-0"].latency_ms, states["learner-0"].bandwidth_kb_s) == (60, None)
    assert (states["learner-3"].latency_ms, states["learner-3"].bandwidth_kb_s) == (200, 500)


def test_links_are_shaped_before_steady_state_and_said() -> None:
    story = Story(far())
    assert story.violations() == []
    (said,) = story.of(ProxyChanged)
    assert said.t_ns <= story.of(SteadyState)[0].t_ns
    assert "200 ms, 500 kB/s each way: learner-3" in said.what
    assert "60 ms each way: learner-0, learner-1, learner-2" in said.what


def test_a_fault_comes_on_top_and_healing_leaves_the_distance() -> None:
    story = Story(far(fault("latency", "learner-1", 5, 6, latency_ms=150), silence_ms_max=3000))
    steady = story.of(SteadyState)[0].t_ns
    ended = story.of(WindowEnded)[0].t_ns
    before = round_trips_ms(story, "learner-1", until_ns=steady + 5 * 10**9)
    during = round_trips_ms(story, "learner-1", steady + 5 * 10**9, steady + 11 * 10**9)
    after = round_trips_ms(story, "learner-1", ended)
    for found, lowest, highest in ((before, 120, 300), (during, 420, 600), (after, 120, 300)):
        assert found
        assert lowest <= min(found)
        assert min(found) < highest


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ({"latency_ms": -1}, "links.latency_ms"),
        ({"latency": 3}, "links.latency: unknown key"),
        ({"kb_s": 0}, "links.kb_s"),
        ({"groups": {"c": {"kb_s": 9}}}, "links.groups.c: no unit of this group dials another"),
    ],
)
def test_mistakes_are_named(links: Any, says: str) -> None:
    with pytest.raises(SpecError) as raised:
        check(read_table(far(links=links), "far", "", gates=GATES), 1)
    assert any(says in problem for problem in raised.value.problems), raised.value.problems


def test_over_the_links_of_the_wan_suite_lockstep_waits_and_decoupled_does_not() -> None:
    """The two experiments as they ship, with the same bytes and no arithmetic."""
    reports = {}
    for name in ("wan-decoupled", "wan-lockstep"):
        table = tomllib.loads(catalogue.text(name))
        params = {**table["target"]["params"], "trainer": "scripted", "scripted_elements": 115_328}
        table = {**table, "target": {"name": "diloco", "params": params}, "gate": {}}
        report = Story(table).analysis.report
        assert [i.name for i in report.invariants if i.valid is False] == []
        reports[name] = report.goodput
    decoupled, lockstep = reports["wan-decoupled"], reports["wan-lockstep"]
    assert lockstep.ledger_s["waiting"] > 0.95 * lockstep.allocated_s
    rates = [g.steps / g.allocated_s for g in (decoupled, lockstep)]
    assert rates[0] > 20 * rates[1]
    assert decoupled.ratio is not None
    assert decoupled.ratio > 0.95
