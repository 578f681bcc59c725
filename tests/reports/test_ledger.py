"""The ledger sums to the allocated time exactly, whatever the journal holds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import events as ev
from reports.build import analyse
from reports.history import fold
from reports.ledger import build_ledger
from tests.reports.builder import (
    MS,
    SECOND,
    Cluster,
    Cut,
    Kill,
    Pause,
    Scripted,
    Straggle,
    change,
    journal,
    replace,
)

UNITS = st.sampled_from(["learner-0", "learner-1", "learner-2"])
AT = st.floats(1.5, 7.5).map(lambda s: round(s, 3))
LONG = st.floats(0.05, 3.0).map(lambda s: round(s, 3))
FAULTS: st.SearchStrategy[Scripted] = st.one_of(
    st.builds(
        Kill,
        unit=UNITS,
        at_s=AT,
        down_s=st.one_of(st.none(), LONG),
        notice_s=st.one_of(st.none(), LONG),
    ),
    st.builds(Pause, unit=UNITS, at_s=AT, for_s=LONG),
    st.builds(Straggle, unit=UNITS, at_s=AT, for_s=LONG, factor=st.floats(1.0, 6.0)),
    st.builds(Cut, unit=UNITS, at_s=AT, for_s=LONG),
)


def one_life_at_a_time(faults: list[Scripted]) -> list[Scripted]:
    """At most one kill per unit: the fake cluster does not model a kill of a dead unit."""
    killed: set[str] = set()
    kept: list[Scripted] = []
    for fault in faults:
        if isinstance(fault, Kill):
            if fault.unit in killed:
                continue
            killed.add(fault.unit)
        kept.append(fault)
    return kept


def assert_sound(events: list[ev.AnyEvent]) -> Any:
    analysis = analyse(fold(journal(events)))
    ledger = analysis.ledger
    assert sum(ledger.totals().values()) == ledger.allocated_ns
    for learner in ledger.learners:
        cursor = ledger.start_ns
        for segment in learner.segments:
            assert segment.start_ns == cursor
            assert segment.end_ns > segment.start_ns
            cursor = segment.end_ns
        assert cursor == ledger.end_ns or ledger.allocated_ns == 0
    good = analysis.report.goodput
    for ratio in (good.ratio, good.merged_ratio, good.uptime_ratio, good.overrun_ratio):
        assert ratio is None or 0.0 <= ratio <= 1.0
    for row in good.tokens.by_fragment:
        assert row.trained == row.merged + row.lost + row.in_flight
        assert min(row.merged, row.lost, row.in_flight) >= 0
    tokens = good.tokens
    if tokens.merged is not None:
        assert tokens.lost is not None
        assert tokens.in_flight is not None
        assert tokens.trained == tokens.merged + tokens.lost + tokens.in_flight
        assert tokens.died is not None
        assert 0 <= tokens.died <= tokens.lost
    return analysis


@settings(max_examples=60, deadline=None)
@given(st.lists(FAULTS, max_size=5))
def test_sums_exactly_and_every_safety_claim_holds(faults: list[Scripted]) -> None:
    analysis = assert_sound(Cluster(faults=one_life_at_a_time(faults)).events())
    broken = [
        i
        for i in analysis.report.invariants
        if i.valid is False and i.name in ("tokens-once", "quorum", "versions", "one-author")
    ]
    assert not broken
    merged, ratio = analysis.report.goodput.merged_ratio, analysis.report.goodput.ratio
    assert merged <= ratio + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(FAULTS, max_size=3), st.integers(0, 2**32))
def test_sums_exactly_on_damaged_journals(faults: list[Scripted], seed: int) -> None:
    """Lines lost, doubled, moved in time: nonsense in, but never a wrong sum and never a crash."""
    events = Cluster(faults=one_life_at_a_time(faults), window_s=5).events()
    draw = random.Random(seed)
    damaged: list[ev.AnyEvent] = [events[0]]
    for event in events[1:]:
        dice = draw.random()
        if dice < 0.05:
            continue
        if dice < 0.10 and isinstance(event, ev.Event):
            event = replace(event, t_ns=event.t_ns + draw.randrange(-SECOND, SECOND))
        damaged.append(event)
        if dice > 0.97:
            damaged.append(event)
    assert_sound(damaged)


def labels_of(events: list[ev.AnyEvent], unit: str) -> dict[str, int]:
    ledger = build_ledger(fold(journal(events)))
    totals = next(one for one in ledger.learners if one.unit == unit).totals()
    return {label: ns for label, ns in totals.items() if ns}


def test_a_straggler_is_slowed_and_still_useful() -> None:
    # 3 s at a third of the speed: ten steps of 300 ms, 100 ms of each nominal.
    totals = labels_of(Cluster(faults=[Straggle("learner-0", 3.0, 3.0)]).events(), "learner-0")
    assert totals == {"useful": 11 * SECOND - 2 * SECOND, "slowed": 2 * SECOND}


def test_a_pause_is_slowed_for_as_long_as_it_lasted() -> None:
    totals = labels_of(Cluster(faults=[Pause("learner-0", 3.05, 2.0)]).events(), "learner-0")
    assert totals == {"useful": 9 * SECOND, "slowed": 2 * SECOND}


def test_waiting_is_its_own_label() -> None:
    events = Cluster().events()

    def hold(step: ev.Step) -> ev.AnyEvent:
        return ev.Waited(
            t_ns=step.t_ns,
            unit=step.unit,
            incarnation=1,
            began_at_ns=step.began_at_ns,
            why="blocking merge",
        )

    index = next(
        i
        for i, s in enumerate(e for e in events if isinstance(e, ev.Step))
        if s.unit == "learner-0" and s.t_ns > 5 * SECOND
    )
    totals = labels_of(change(events, ev.Step, hold, index), "learner-0")
    assert totals == {"useful": 11 * SECOND - 100 * MS, "waiting": 100 * MS}


def test_a_gap_is_unattributed_unless_a_fault_explains_it() -> None:
    steps = [
        i
        for i, s in enumerate(e for e in Cluster().events() if isinstance(e, ev.Step))
        if s.unit == "learner-0" and 5 * SECOND < s.t_ns <= round(5.5 * SECOND)
    ]
    events = Cluster().events()
    for offset, index in enumerate(steps):
        events = change(events, ev.Step, lambda _: None, index - offset)
    assert labels_of(events, "learner-0")["other"] == len(steps) * 100 * MS
    common: dict[str, Any] = {"fault": "f1", "kind": "hang", "unit": "learner-0"}
    hold = (ev.Hold(unit="learner-0", resource="tuning", value={"hang": True}),)
    hung = [
        *events,
        ev.FaultAsked(t_ns=5 * SECOND - MS, holds=hold, **common),
        ev.FaultExecuted(t_ns=5 * SECOND, **common),
        ev.FaultEnded(t_ns=round(5.5 * SECOND), **common),
    ]
    assert labels_of(hung, "learner-0")["slowed"] == len(steps) * 100 * MS
    assert "other" not in labels_of(hung, "learner-0")


def test_a_learner_that_never_comes_back_stays_allocated() -> None:
    kill = Kill("learner-1", 4.0, down_s=None, notice_s=0.25)
    totals = labels_of(Cluster(faults=[kill]).events(), "learner-1")
    # Dead from 4 s to 12 s; the syncer merges without it at 4.05 s, which is a notice.
    assert totals["down_detect"] == 50 * MS
    assert totals["down_restart"] == 8 * SECOND - 50 * MS
    assert sum(totals.values()) == 11 * SECOND


def test_uptime_and_the_longest_stall() -> None:
    faults = [Kill(f"learner-{i}", 4.0, down_s=1.4, init_s=0.5, recover_s=0.1) for i in range(3)]
    report = analyse(fold(journal(Cluster(faults=faults).events()))).report
    assert report.goodput.longest_stall_s == pytest.approx(2.0)
    assert report.goodput.uptime_ratio == pytest.approx(9 / 11)


def test_a_frozen_lone_learner_is_not_up() -> None:
    events = Cluster(learners=1, faults=[Pause("learner-0", 4.0, 3.0)]).events()
    report = analyse(fold(journal(events))).report
    assert report.goodput.longest_stall_s == pytest.approx(3.0, abs=0.11)
    assert report.goodput.uptime_ratio == pytest.approx(8 / 11, abs=0.02)


def test_steps_computed_again_are_lost_when_there_are_no_fragments() -> None:
    """A target without fragments restarts from a checkpoint: steps after it were for nothing."""
    events = [
        replace(e, fragments=()) if isinstance(e, ev.RunStarted) else e
        for e in Cluster(learners=1, faults=[Kill("learner-0", 4.0, 1.0)]).events()
        if not isinstance(e, ev.Merged | ev.Adopted)
    ]
    # The second life begins at step 1 again: everything before was recomputed.
    totals = labels_of(events, "learner-0")
    assert totals["lost"] == 3 * SECOND
    later = [
        replace(e, step=e.step + 30) if isinstance(e, ev.Step) and e.incarnation == 2 else e
        for e in events
    ]
    # From step 31 on: of the 39 steps of the first life, steps 31 to 39 and the partial one.
    assert labels_of(later, "learner-0")["lost"] == 900 * MS


def test_overruns_make_the_host_too_slow() -> None:
    report = analyse(fold(journal(Cluster(compute_ms=120).events()))).report
    assert report.goodput.overrun_ratio == 1.0
    assert report.verdict.outcome == "host-too-slow"
    assert report.verdict.exit_status == 3
    fast = analyse(fold(journal(Cluster(compute_ms=99).events()))).report
    assert fast.verdict.outcome == "passed"


def test_work_overwritten_long_before_a_death_was_not_lost_by_it() -> None:
    """A learner cut off for 2 s trains in vain; whether it dies 4 s later must not matter."""
    cut = Cut("learner-1", 3.0, 2.0)

    def unmerged_while_cut(faults: list[Scripted]) -> list[ev.AnyEvent]:
        out: list[ev.AnyEvent] = []
        for event in Cluster(faults=faults).events():
            # Its first push after the cut is refused, so that nothing of that time is merged.
            if isinstance(event, ev.Merged) and 5 * SECOND < event.t_ns < round(5.2 * SECOND):
                kept = tuple(p for p in event.contributions if p.unit != "learner-1")
                event = replace(event, contributions=kept)
            out.append(event)
        return out

    lived = labels_of(unmerged_while_cut([cut]), "learner-1")
    assert lived == {"useful": 11 * SECOND}
    died = labels_of(unmerged_while_cut([cut, Kill("learner-1", 9.0, 0.5)]), "learner-1")
    # Only the last steps before its death: the one that ended with it was held and never merged.
    assert died["lost"] == 100 * MS
