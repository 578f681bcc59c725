"""Learners that come and go by plan: not restarted, not allocated, welcome when they join."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from harness.compose import check
from harness.errors import SpecError
from harness.events import (
    FaultEnded,
    FaultExecuted,
    Merged,
    SteadyState,
    Step,
    UnitExited,
    UnitSpawned,
)
from harness.spec import read_table
from reports.gate import GATES
from reports.ledger import ABSENT
from tests.simulation.helpers import Story, experiment, fault

S = 10**9


def away(unit: str, at_s: float, for_s: float | None = None, **own: Any) -> Any:
    return fault("absent", unit, at_s, for_s, **own)


def test_nothing_lives_there_until_it_ends_and_then_it_joins() -> None:
    story = Story(experiment(away("learner-1", 5, 8)))
    assert story.violations() == []
    begin, end = story.when("f1", FaultExecuted), story.when("f1", FaultEnded)
    (exit_,) = [e for e in story.of(UnitExited, "learner-1") if e.t_ns < end]
    assert begin <= exit_.t_ns <= begin + 2 * S
    spawned = [e.t_ns for e in story.of(UnitSpawned, "learner-1")]
    assert len(spawned) == 2
    assert spawned[1] >= end
    later = [m for m in story.of(Merged) if m.t_ns > end]
    assert any(c.unit == "learner-1" for m in later for c in m.contributions)


def test_planned_absence_is_not_allocated_and_joining_is() -> None:
    story = Story(experiment(away("learner-1", 5, 8)))
    ledger = story.analysis.ledger
    span = ledger.end_ns - ledger.start_ns
    (one,) = [x for x in ledger.learners if x.unit == "learner-1"]
    begin, end = story.when("f1", FaultExecuted), story.when("f1", FaultEnded)
    assert one.absent_ns == end - begin
    assert ledger.allocated_ns == 4 * span - one.absent_ns
    assert sum(ledger.totals().values()) == ledger.allocated_ns
    assert [(s.start_ns, s.end_ns) for s in one.segments if s.label == ABSENT] == [(begin, end)]
    assert all(a.end_ns == b.start_ns for a, b in pairwise(one.segments))
    back = next(s for s in one.segments if s.start_ns == end)
    assert back.label == "down_restart"


def test_healing_counts_from_the_end_of_the_absence() -> None:
    story = Story(experiment(away("learner-1", 5, 8)))
    (row,) = story.analysis.healing
    assert row.origin_ns == story.when("f1", FaultEnded)
    assert row.reintegrate_ns is not None
    assert row.reintegrate_ns < 8 * S


def test_a_learner_may_be_away_from_the_start_and_steady_state_does_not_wait_for_it() -> None:
    story = Story(experiment(away("learner-3", 0, 10, from_start=True)))
    assert story.violations() == []
    steady = story.of(SteadyState)[0].t_ns
    assert story.when("f1", FaultExecuted) < steady
    end = story.when("f1", FaultEnded)
    assert end == steady + 10 * S
    steps = [s.t_ns for s in story.of(Step, "learner-3")]
    assert steps
    assert min(steps) > end
    ratio = story.analysis.report.goodput.ratio
    assert ratio is not None
    assert ratio > 0.9


def test_absence_from_the_start_lasts_to_the_end_of_the_window_by_default() -> None:
    story = Story(experiment(away("learner-3", 0, from_start=True), duration_s=10))
    assert story.violations() == []
    assert story.when("f1", FaultEnded) == story.of(SteadyState)[0].t_ns + 10 * S


def test_who_is_away_cannot_be_killed_and_who_was_dead_does_not_come_back_early() -> None:
    story = Story(
        experiment(
            fault("kill", "learner-1", 4.9),
            away("learner-1", 5, 8),
            fault("kill", "learner-1", 9),
        )
    )
    assert story.violations() == []
    end = story.when("f2", FaultEnded)
    start = story.when("f2", FaultExecuted)
    assert not [e for e in story.of(UnitSpawned, "learner-1") if start < e.t_ns < end]
    assert [row.why_not for row in story.analysis.facts][2]


def test_overlapping_absences_end_with_the_last() -> None:
    story = Story(experiment(away("learner-1", 5, 8), away("learner-1", 8, 10)))
    assert story.violations() == []
    steady = story.of(SteadyState)[0].t_ns
    spawned = [e.t_ns for e in story.of(UnitSpawned, "learner-1")]
    assert spawned[1] >= steady + 18 * S
    (one,) = [x for x in story.analysis.ledger.learners if x.unit == "learner-1"]
    assert 13 * S <= one.absent_ns < 13 * S + S


@pytest.mark.parametrize("when", [{"at_step": 5}, {"on": {"event": "step"}}])
def test_only_the_end_of_an_absence_from_the_start_can_be_planned(when: Any) -> None:
    table = experiment({"kind": "absent", "where": "one", "from_start": True, **when})
    with pytest.raises(SpecError, match="from_start: only the end can be planned"):
        check(read_table(table, "x", "", gates=GATES), 1)
