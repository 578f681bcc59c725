"""Twins agree on goodput, victims and verdict, or it is said in what they differ."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reports.build import build
from reports.compare import as_html, as_json, as_text, compare
from reports.schema import Report
from reports.twin import are_twins, judge
from tests.reports.builder import Cluster, Kill, write


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """The same run twice, once said to be simulated."""
    folder = tmp_path_factory.mktemp("twin")
    events = Cluster(learners=3, faults=[Kill("learner-1", 10.0, 1.0)]).events()
    live = build(write(folder / "run", events))
    process = msgspec.structs.replace(live.run, runtime="process")
    simulated = msgspec.structs.replace(live.run, runtime="simulated", host_fingerprint="")
    return (
        msgspec.structs.replace(live, run=process),
        msgspec.structs.replace(live, run=simulated),
    )


def changed(report: Report, part: str, **fields: object) -> Report:
    inner = msgspec.structs.replace(getattr(report, part), **fields)
    return msgspec.structs.replace(report, **{part: inner})


def test_equal_runs_are_twins_in_either_order(pair: tuple[Report, Report]) -> None:
    live, simulated = pair
    assert are_twins(live, simulated)
    assert are_twins(simulated, live)
    assert judge(live, simulated).ok
    assert judge(live, simulated) == judge(simulated, live)
    assert not are_twins(live, live), "two live runs are no twins"
    assert not are_twins(live, changed(simulated, "run", seed=live.run.seed + 1))


@pytest.mark.parametrize(("less", "ok"), [(0.029, True), (-0.029, True), (0.031, False)])
def test_goodput_within_three_points(pair: tuple[Report, Report], less: float, ok: bool) -> None:
    live, simulated = pair
    assert live.goodput.ratio is not None
    other = changed(simulated, "goodput", ratio=live.goodput.ratio - less)
    found = judge(live, other)
    assert found.ok is ok
    assert found.points == pytest.approx(-100 * less)
    assert not judge(live, changed(simulated, "goodput", ratio=None)).ok


def test_a_victim_that_was_spared_is_named(pair: tuple[Report, Report]) -> None:
    live, simulated = pair
    rows = [msgspec.structs.replace(r, executed_s=None) for r in simulated.faults.rows]
    found = judge(live, changed(simulated, "faults", rows=rows))
    assert not found.ok
    assert found.victims == ("f1 kill on learner-1: carried out live, skipped simulated",)
    moved = [msgspec.structs.replace(r, unit="learner-2") for r in simulated.faults.rows]
    assert len(judge(live, changed(simulated, "faults", rows=moved)).victims) == 2


def test_another_verdict_is_no_twin_s(pair: tuple[Report, Report]) -> None:
    live, simulated = pair
    found = judge(live, changed(simulated, "verdict", outcome="no-effect"))
    assert not found.ok
    assert found.outcomes == (live.verdict.outcome, "no-effect")


def test_compare_shows_the_judgement(pair: tuple[Report, Report]) -> None:
    live, simulated = pair
    agreed = compare(live, simulated)
    assert "live and simulated twin AGREE" in as_text(agreed)
    assert "different runtimes" not in as_text(agreed)
    assert msgspec.json.decode(as_json(agreed))["twin"]["ok"] is True
    assert b"Live and simulated twin agree" in as_html(agreed)
    apart = compare(live, changed(simulated, "goodput", ratio=0.1))
    assert "twin DISAGREE" in as_text(apart)
    assert b"Live and simulated twin disagree" in as_html(apart)
    assert compare(live, live).twin is None
    assert "twin" not in as_text(compare(live, live))


def test_runs_as_the_builder_makes_them_are_not_simulated_twice(tmp_path: Path) -> None:
    events = Cluster(learners=2).events()
    report = build(write(tmp_path / "run", events))
    assert not are_twins(report, report)
