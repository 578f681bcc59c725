"""Which outcome wins, and the exit status that goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from harness import events as ev
from reports.build import analyse
from reports.history import fold
from reports.schema import Verdict
from tests.reports.builder import SECOND, Cluster, Ghost, Kill, among, change, journal, replace

Events = list[ev.AnyEvent]


def verdict_of(events: Events) -> Verdict:
    return analyse(fold(journal(events))).report.verdict


def plus(events: Events, *more: ev.AnyEvent) -> Events:
    return among(events, *more)


def ended(events: Events, status: str, why: str = "") -> Events:
    return change(events, ev.RunEnded, lambda e: replace(e, status=status, why=why))


def calm() -> Events:
    return Cluster(faults=[Kill("learner-1", 4.03, 0.4)]).events()


def violated() -> Events:
    return change(calm(), ev.Merged, lambda m: replace(m, finite=False), 9)


def test_passed() -> None:
    verdict = verdict_of(calm())
    assert (verdict.outcome, verdict.conclusive, verdict.exit_status) == ("passed", True, 0)
    assert verdict.cautions == []


def test_harness_failure_wins_over_everything() -> None:
    failed = ev.HarnessFailed(t_ns=5 * SECOND, where="heal f1", why="toxiproxy did not answer")
    verdict = verdict_of(plus(violated(), failed))
    assert (verdict.outcome, verdict.conclusive, verdict.exit_status) == (
        "harness-error",
        False,
        4,
    )
    assert verdict.reasons == ["heal f1: toxiproxy did not answer"]


def test_run_that_ended_with_an_error() -> None:
    verdict = verdict_of(ended(calm(), "error", "no space left on device"))
    assert (verdict.outcome, verdict.exit_status) == ("harness-error", 4)
    assert verdict.reasons == ["no space left on device"]


@pytest.mark.parametrize("kind", ["containers", "networks", "volumes", "processes", "toxics"])
def test_a_pass_with_residue_is_no_pass(kind: str) -> None:
    left: dict[str, Any] = {kind: ("chaos-abc-1",)}
    verdict = verdict_of(change(calm(), ev.ResidueFound, lambda e: replace(e, **left)))
    assert (verdict.outcome, verdict.exit_status) == ("harness-error", 4)
    assert verdict.reasons == [f"1 {kind} left behind: chaos-abc-1"]


def test_nobody_looked_for_residue() -> None:
    without = change(calm(), ev.ResidueFound, lambda e: None)
    verdict = verdict_of(without)
    assert (verdict.outcome, verdict.exit_status) == ("harness-error", 4)
    assert verdict.reasons == ["the run says that it was completed, and nobody looked for residue"]
    # Whoever stops a run hard may well stop it before anybody has looked.
    verdict = verdict_of(ended(without, "interrupted", "signal 2"))
    assert verdict.outcome == "interrupted"
    assert "nobody looked for residue" in verdict.cautions


def test_a_failure_that_ended_the_run_is_said_once() -> None:
    failed = ev.HarnessFailed(t_ns=5 * SECOND, where="run", why="toxiproxy did not answer")
    events = ended(calm(), "error", "toxiproxy did not answer")
    assert verdict_of(plus(events, failed)).reasons == ["run: toxiproxy did not answer"]
    # Another reason is another line.
    events = ended(calm(), "error", "no space left on device")
    said = ["run: toxiproxy did not answer", "no space left on device"]
    assert verdict_of(plus(events, failed)).reasons == said


@pytest.mark.parametrize(
    ("why", "status"), [("signal 2", 130), ("signal 15", 143), ("SIGTERM", 143), ("", 130)]
)
def test_interrupted(why: str, status: int) -> None:
    verdict = verdict_of(ended(calm(), "interrupted", why))
    assert (verdict.outcome, verdict.exit_status) == ("interrupted", status)
    assert not verdict.conclusive


def test_baseline_never_met_even_without_a_line_that_says_so() -> None:
    verdict = verdict_of(change(calm(), ev.SteadyState, lambda e: None))
    assert (verdict.outcome, verdict.exit_status) == ("baseline-not-met", 3)


def test_a_safety_violation_counts_on_a_slow_host_too() -> None:
    slow = Cluster(compute_ms=150).events()
    assert verdict_of(slow).outcome == "host-too-slow"
    broken = change(slow, ev.Merged, lambda m: replace(m, finite=False), 9)
    verdict = verdict_of(broken)
    assert (verdict.outcome, verdict.conclusive, verdict.exit_status) == ("deviated", True, 1)


def test_a_slow_host_wins_over_missed_gates_and_missing_effects() -> None:
    slow = Cluster(
        compute_ms=150, faults=[Ghost("learner-0", 4, 1)], gate={"goodput_min": 2.0}
    ).events()
    assert verdict_of(slow).outcome == "host-too-slow"


def test_no_effect_wins_over_missed_gates() -> None:
    events = Cluster(faults=[Ghost("learner-0", 4, 1)], gate={"goodput_min": 2.0}).events()
    verdict = verdict_of(events)
    assert (verdict.outcome, verdict.exit_status) == ("no-effect", 3)
    assert any("goodput_min" in reason for reason in verdict.reasons)


def test_five_percent_overruns_are_tolerated() -> None:
    events = Cluster(learners=1, loss_from=None, window_s=9, tail_s=2).events()
    # 100 steps in the window from 1 to 11 s.
    inside = [
        i
        for i, s in enumerate(e for e in events if isinstance(e, ev.Step))
        if SECOND < s.t_ns <= 11 * SECOND
    ]
    assert len(inside) == 100
    for index in inside[:5]:
        events = change(events, ev.Step, lambda s: replace(s, compute_ns=s.nominal_ns + 1), index)
    assert verdict_of(events).outcome == "passed"
    events = change(events, ev.Step, lambda s: replace(s, compute_ns=s.nominal_ns + 1), inside[5])
    assert verdict_of(events).outcome == "host-too-slow"


def test_time_without_explanation_is_a_caution() -> None:
    steps = [
        i
        for i, s in enumerate(e for e in calm() if isinstance(e, ev.Step))
        if s.unit == "learner-0" and 5 * SECOND < s.t_ns <= 6 * SECOND
    ]
    events = calm()
    for offset, index in enumerate(steps):
        events = change(events, ev.Step, lambda _: None, index - offset)
    said = "3.0% of the learners' time has no explanation (2 % is expected)"
    assert said in verdict_of(events).cautions
