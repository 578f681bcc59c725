"""Experiments as they ship, with the same protocol and no arithmetic: they pass where time is
virtual, so what a live run misses is the machine's affair."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from harness import catalogue
from harness.events import Merged, Step
from tests.simulation.helpers import Story


def scripted(name: str, **params: Any) -> Story:
    """The built-in experiment ``name`` with a trainer that only counts."""
    table = tomllib.loads(catalogue.text(name))
    given = {**table["target"]["params"], "trainer": "scripted", **params}
    return Story({**table, "target": {"name": "diloco", "params": given}, "gate": {}})


def test_scavenged_learners_add_their_tokens_while_they_are_there() -> None:
    story = scripted("scavenging")
    assert story.violations() == []
    report = story.analysis.report
    assert report.goodput.ratio is not None
    assert report.goodput.ratio > 0.9
    assert report.goodput.uptime_ratio == 1.0
    length = 62.0
    assert report.goodput.allocated_s == pytest.approx(6 * length - 4 * 10, abs=0.1)
    steps = {unit: len(story.of(Step, f"learner-{unit}")) for unit in range(6)}
    assert 0.4 * steps[0] < steps[4] < 0.8 * steps[0]
    assert all(row.reintegrate_s is not None for row in report.healing)


def test_slow_chips_are_heard_with_less_weight_and_nobody_waits() -> None:
    story = scripted("mixed-hardware")
    assert story.violations() == []
    report = story.analysis.report
    assert report.goodput.ratio is not None
    assert report.goodput.ratio > 0.9
    steps = [len(story.of(Step, f"learner-{unit}")) for unit in range(4)]
    assert steps[0] > steps[2] > steps[3]
    late = story.of(Merged)[-40:]
    heard = {c.unit for m in late for c in m.contributions}
    assert heard == {f"learner-{unit}" for unit in range(4)}
    weights = {c.unit: c.weight for m in late for c in m.contributions}
    assert weights["learner-3"] < weights["learner-0"]


def quality() -> dict[str, dict[str, Any]]:
    """The parameters of the quality suite's members."""
    names = [n for n in catalogue.names() if n.startswith("quality-")]
    return {n: tomllib.loads(catalogue.text(n))["target"]["params"] for n in names}


def test_the_quality_experiments_differ_in_nothing_but_what_they_compare() -> None:
    arms = quality()
    known = {n: p for n, p in arms.items() if n.startswith("quality-known-")}
    assert (len(arms), len(known)) == (13, 2)
    batches = {
        n: p.get("learners", p.get("workers", 0)) * p["batch"] * (1 if n in known else 4)
        for n, p in arms.items()
    }
    assert set(batches.values()) == {64}
    assert {p.get("data") for p in known.values()} == {"synthetic"}
    assert {p.get("data") for n, p in arms.items() if n not in known} == {None}
    for name, params in known.items():
        plain = arms[name.replace("known-", "")]
        assert {**plain, "batch": 8, "data": "synthetic"} == params
    assert {p["inner_lr"] for p in arms.values()} == {6e-3}
    tuned = {"outer_lr", "outer_momentum", "warmup_steps", "weight_decay", "sequence", "model"}
    assert all(not tuned & p.keys() for p in arms.values())
    assert all(p["evaluate_every"] and p["horizon_steps"] for p in arms.values())


@pytest.mark.slow
def test_quality_under_chaos_loses_as_much_time_as_the_paper_says() -> None:
    table = tomllib.loads(catalogue.text("quality-chaos"))
    params = {**table["target"]["params"], "trainer": "scripted", "evaluate_every": 0}
    table |= {"target": {"name": "diloco", "params": params}, "gate": {}, "control": False}
    ratios = [Story(table, seed).analysis.report.goodput.ratio or 0.0 for seed in (1, 2, 3)]
    assert sum(ratios) / len(ratios) == pytest.approx(0.88, abs=0.02)
