"""Evidence of each fault is looked for in the victim's own behaviour, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from faults import FAULTS
from harness import events as ev
from reports.build import analyse
from reports.effects import EVIDENCE, FaultFact, judge_faults
from reports.history import fold
from tests.reports.builder import (
    MS,
    SECOND,
    Cluster,
    Cut,
    Ghost,
    Kill,
    Pause,
    Scripted,
    Straggle,
    among,
    change,
    journal,
    replace,
)


def fact_of(events: list[ev.AnyEvent]) -> FaultFact:
    (fact,) = judge_faults(fold(journal(events)))
    return fact


def test_every_known_kind_has_its_evidence() -> None:
    assert set(FAULTS) - {"noop"} <= set(EVIDENCE)


@pytest.mark.parametrize(
    ("fault", "what", "at_s", "says"),
    [
        (Kill("learner-1", 4.03), "exit", 4.03, "its process ended with signal 9"),
        (Pause("learner-1", 4.0, 1.5), "stopped", 4.0, "no step ended for 1.50 s"),
        (Straggle("learner-1", 4.0, 1.5), "slowed", 4.0, "took 0.300 s instead of 0.100 s"),
        (Cut("learner-1", 4.0, 2.0), "link", 5.0, "syncer lost its link to learner-1: silent"),
        # Shorter than the silence that would be noticed: only the missing merges show it.
        (
            Cut("learner-1", 4.0, 0.8, notice_s=50),
            "unheard",
            4.05,
            "left out of 8 of 8 merges, in 38 before",
        ),
    ],
    ids=lambda v: str(v)[:16],
)
def test_each_kind_shows(fault: Scripted, what: str, at_s: float, says: str) -> None:
    events = Cluster(faults=[fault]).events()
    effect = fact_of(events).effect
    assert effect is not None
    assert effect.what == what
    assert effect.at_ns == round(at_s * SECOND)
    assert says in effect.how
    assert effect.lines
    assert all(1 <= line <= len(events) for line in effect.lines)


@pytest.mark.parametrize("kind", sorted(EVIDENCE))
def test_a_fault_that_did_nothing_shows_nothing(kind: str) -> None:
    """The same calm journal for every kind: asking for a fault is never evidence of it."""
    fact = fact_of(Cluster(faults=[Ghost("learner-1", 4.0, 2.0, kind)]).events())
    assert fact.executed
    assert fact.effect is None
    assert fact.why_not == ""


@pytest.mark.parametrize("kind", sorted(EVIDENCE))
def test_what_happens_to_another_unit_is_no_evidence(kind: str) -> None:
    faults: list[Scripted] = [Ghost("learner-1", 4.0, 2.0, kind), Kill("learner-2", 4.03)]
    facts = judge_faults(fold(journal(Cluster(faults=faults).events())))
    assert facts[0].effect is None
    assert facts[1].effect is not None


def latent(events: list[ev.AnyEvent], pull_ms: int) -> list[ev.AnyEvent]:
    def slow(m: ev.Merged) -> ev.Merged:
        if not 4 * SECOND < m.t_ns < 6 * SECOND:
            return m
        parts = [
            replace(p, pull_ns=pull_ms * MS) if p.unit == "learner-1" else p  # type: ignore[type-var]
            for p in m.contributions
        ]
        return replace(m, contributions=tuple(parts))

    return change(events, ev.Merged, slow, None)


def test_latency_shows_in_slower_pulls() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0)]).events()
    effect = fact_of(latent(events, 42)).effect
    assert effect is not None
    assert effect.what == "pulls"
    assert "a pull took 42.0 ms instead of 2.0 ms" in effect.how
    assert fact_of(latent(events, 2)).effect is None


def test_latency_shows_in_round_trips_of_an_idle_link() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0)]).events()
    beats = [
        ev.Heard(
            t_ns=i * 500 * MS,
            unit="learner-1",
            incarnation=1,
            peer="syncer",
            rtt_ns=(90 if 4.0 <= i / 2 <= 6.0 else 1) * MS,
        )
        for i in range(2, 20)
    ]
    effect = fact_of(among(events, *beats)).effect
    assert effect is not None
    assert "a round trip took 90.0 ms instead of 1.0 ms" in effect.how


def test_a_poisoned_update_shows_when_it_is_refused() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "corrupt_update")]).events()
    refusal = ev.UpdateRefused(
        t_ns=5 * SECOND,
        unit="syncer",
        incarnation=1,
        sender="learner-1",
        sender_incarnation=1,
        fragment=1,
        step=49,
        why="non-finite: 100 of 100 elements",
    )
    effect = fact_of(among(events, refusal)).effect
    assert effect is not None
    assert effect.how == "its update of fragment 1 was refused: non-finite: 100 of 100 elements"
    other = replace(refusal, sender="learner-2")
    assert fact_of(among(events, other)).effect is None


def test_throttling_shows_in_compute_even_when_pacing_hides_it() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "throttle")]).events()

    def busy(s: ev.Step) -> ev.Step:
        slow = s.unit == "learner-1" and 4 * SECOND <= s.began_at_ns < 6 * SECOND
        return replace(s, compute_ns=70 * MS) if slow else s

    effect = fact_of(change(events, ev.Step, busy, None)).effect
    assert effect is not None
    assert "a step's compute took 0.070 s instead of 0.020 s" in effect.how
    # For a straggler compute is no evidence: its emulated chip must have slowed down.
    straggler = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "straggle")]).events()
    assert fact_of(change(straggler, ev.Step, busy, None)).effect is None


def test_a_fault_on_a_dead_unit_is_explained() -> None:
    faults: list[Scripted] = [
        Kill("learner-1", 4.03, down_s=None),
        Ghost("learner-1", 6.0, 1.0, "partition"),
    ]
    report = analyse(fold(journal(Cluster(faults=faults).events()))).report
    row = report.faults.rows[1]
    assert not row.effective
    assert row.evidence == "the unit was down for as long as the fault lasted"
    checks = {i.name: i for i in report.invariants}
    assert checks["faults-real"].valid is False
    assert "f2 (partition on learner-1) never took effect" in checks["faults-real"].why


def test_the_do_nothing_fault_is_a_control() -> None:
    report = analyse(
        fold(journal(Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "noop")]).events()))
    ).report
    assert report.verdict.outcome == "passed"
    assert report.faults.effective == 0
    assert report.healing == []


def test_a_paused_syncer_shows_in_missing_merges() -> None:
    common: dict[str, Any] = {"fault": "f1", "kind": "pause", "unit": "syncer"}
    hold = (ev.Hold(unit="syncer", resource="frozen", value=True),)
    pause: list[ev.AnyEvent] = [
        ev.FaultPlanned(t_ns=0, planned_at_ns=4 * SECOND, for_ns=2 * SECOND, **common),
        ev.FaultAsked(t_ns=4 * SECOND, holds=hold, **common),
        ev.FaultExecuted(t_ns=4 * SECOND + MS, **common),
        ev.FaultEnded(t_ns=6 * SECOND, **common),
    ]
    quiet = [
        e
        for e in Cluster().events()
        if not (isinstance(e, ev.Merged | ev.Adopted) and 4 * SECOND < e.t_ns < 6 * SECOND)
    ]
    effect = fact_of(among(quiet, *pause)).effect
    assert effect is not None
    assert effect.what == "stopped"
    busy = Cluster().events()
    assert fact_of(among(busy, *pause)).effect is None
