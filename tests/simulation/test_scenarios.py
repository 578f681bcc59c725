"""The unchanged machines under one fault at a time, and what each fault must look like."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from harness.events import (
    Adopted,
    FaultEnded,
    FaultExecuted,
    Joined,
    LinkDown,
    LinkUp,
    Merged,
    Step,
    UnitExited,
    UnitNote,
    UnitStarted,
    UpdateRefused,
    Waited,
)
from tests.simulation.helpers import Story, experiment, fault

S = 1_000_000_000

ALL: dict[str, Any] = {
    "kill": fault("kill", "learner-1", 5),
    "terminate": fault("terminate", "learner-1", 5, grace_s=3),
    "pause": fault("pause", "learner-1", 5, 4),
    "short-pause": fault("pause", "learner-1", 5, 0.8),
    "hang": fault("hang", "learner-1", 5, 4),
    "straggle": fault("straggle", "learner-1", 5, 6, factor=2.0),
    "throttle": fault("throttle", "learner-1", 5, 6, cpu_share=0.1),
    "partition": fault("partition", "learner-1", 5, 5),
    "oneway-up": fault("partition_oneway", "learner-1", 5, 5, direction="up"),
    "oneway-down": fault("partition_oneway", "learner-1", 5, 5, direction="down"),
    "refuse": fault("refuse", "learner-1", 5, 5),
    "stall": fault("stall", "learner-1", 5, 5),
    "short-stall": fault("stall", "learner-1", 5, 0.9),
    "reset": fault("reset", "learner-1", 5, 5),
    "latency": fault("latency", "learner-1", 5, 6, latency_ms=150),
    "bandwidth": fault("bandwidth", "learner-1", 5, 6, kb_s=20),
    "cut": fault("cut", "learner-1", 5, 6, after_bytes=20_000),
    "flap": fault("flap", "learner-1", 5, 8, down_s=1.0, up_s=1.0),
    "disconnect": fault("disconnect", "learner-1", 5, 5),
    "duplicate_update": fault("duplicate_update", "learner-1", 5, 5),
    "stale_update": fault("stale_update", "learner-1", 5, 5),
    "syncer-kill": fault("kill", "syncer", 5),
    "syncer-pause": fault("pause", "syncer", 5, 4),
    "syncer-terminate": fault("terminate", "syncer", 5, grace_s=3),
}


@pytest.mark.parametrize("quorum", [1, 3, 4])
@pytest.mark.parametrize("name", ALL)
def test_every_fault_is_survived_and_healed(name: str, quorum: int) -> None:
    story = Story(experiment(ALL[name], quorum=quorum))
    assert story.violations() == []
    assert story.of(FaultExecuted)


@pytest.mark.parametrize("name", ALL)
def test_every_fault_is_seen_in_the_victims_behaviour(name: str) -> None:
    if name in ("short-pause", "short-stall"):
        pytest.skip("shorter than anything that must be noticed")
    facts = Story(experiment(ALL[name])).analysis.facts
    assert [f.effect is not None for f in facts] == [True], facts


@pytest.mark.parametrize("name", ["kill", "pause", "partition", "syncer-kill", "stall"])
def test_a_lockstep_cluster_waits_and_then_goes_on(name: str) -> None:
    story = Story(experiment(ALL[name], quorum=4, grace=False, blocking=True))
    assert story.violations() == []
    assert story.of(Waited)


def test_the_dead_learners_steps_stop_and_the_others_go_on() -> None:
    story = Story(experiment(fault("kill", "learner-1", 5)))
    died = story.of(UnitExited, "learner-1")[0].t_ns
    joined = story.of(Joined, "learner-1")[1]
    assert joined.source == joined.inner == "learner-2"
    assert joined.digests == joined.donor_digests
    between = [e for e in story.of(Step) if died < e.t_ns < joined.t_ns]
    assert {e.unit for e in between} == {"learner-0", "learner-2", "learner-3"}
    assert [e.incarnation for e in story.of(UnitStarted, "learner-1")] == [1, 2]


def test_with_a_full_quorum_nothing_is_merged_while_one_is_away() -> None:
    story = Story(experiment(fault("pause", "learner-1", 5, 6), quorum=4))
    frozen, thawed = story.when("f1", FaultExecuted), story.when("f1", FaultEnded)
    # What was collected before the freeze may still be merged at once.
    stuck = [m for m in story.of(Merged) if frozen + S < m.t_ns < thawed]
    assert stuck == []
    assert [m for m in story.of(Merged) if m.t_ns > thawed]


def test_learners_keep_training_while_the_syncer_is_dead_and_versions_go_on() -> None:
    story = Story(experiment(fault("kill", "syncer", 5), options={"restart_ms": [3000, 3000]}))
    died = story.of(UnitExited, "syncer")[0].t_ns
    back = story.of(UnitStarted, "syncer")[1].t_ns
    steps = [e for e in story.of(Step) if died < e.t_ns < back]
    assert len(steps) >= 4 * 12
    before = [m for m in story.of(Merged) if m.t_ns <= died]
    after = [m for m in story.of(Merged) if m.t_ns > back]
    assert after[0].incarnation == 2
    for fragment in range(4):
        last = max(m.version for m in before if m.fragment == fragment)
        first = min(m.version for m in after if m.fragment == fragment)
        # A merge that was saved and never journalled leaves a gap of one.
        assert first in (last + 1, last + 2)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_one_way_silence_is_noticed_within_the_silence_bound(direction: str) -> None:
    story = Story(experiment(fault("partition_oneway", "learner-1", 5, 8, direction=direction)))
    began = story.when("f1", FaultExecuted)
    deaf = "learner-1" if direction == "down" else "syncer"
    downs = [d for d in story.of(LinkDown, deaf) if d.t_ns > began]
    assert downs
    assert downs[0].t_ns - began <= 2 * S
    ups = [u for u in story.of(LinkUp, "learner-1") if u.t_ns > story.when("f1", FaultEnded)]
    assert ups


def test_a_stall_shorter_than_the_silence_bound_breaks_no_link() -> None:
    story = Story(experiment(fault("stall", "learner-1", 5, 0.9)))
    assert story.of(LinkDown) == []


def test_a_reset_is_noticed_at_once() -> None:
    story = Story(experiment(fault("reset", "learner-1", 5, 5)))
    began = story.when("f1", FaultExecuted)
    assert story.of(LinkDown, "learner-1")[0].t_ns - began < S // 2


def test_slow_links_make_pulls_slow_and_nothing_else() -> None:
    story = Story(experiment(fault("latency", "learner-1", 5, 10, latency_ms=150)))
    began, ended = story.when("f1", FaultExecuted), story.when("f1", FaultEnded)
    pulls = [
        c.pull_ns
        for m in story.of(Merged)
        if began + S < m.t_ns < ended
        for c in m.contributions
        if c.unit == "learner-1"
    ]
    assert pulls
    assert min(pulls) >= 300_000_000
    assert story.of(LinkDown) == []


def test_a_straggler_is_still_heard_thanks_to_the_grace_window() -> None:
    story = Story(experiment(fault("straggle", "learner-1", 2, 25, factor=1.5)))
    began, ended = story.when("f1", FaultExecuted), story.when("f1", FaultEnded)
    merges = [m for m in story.of(Merged) if began < m.t_ns < ended]
    heard = [m for m in merges if any(c.unit == "learner-1" for c in m.contributions)]
    assert len(heard) > len(merges) / 4


def test_versions_that_learners_adopt_never_fall() -> None:
    faults = [fault("kill", "syncer", t) for t in (4, 9, 14)]
    story = Story(experiment(*faults, fault("partition", "learner-0", 6, 7)))
    held: dict[tuple[str, int, int], int] = {}
    for event in story.of(Adopted):
        key = (event.unit, event.incarnation, event.fragment)
        assert event.version > held.get(key, -1)
        held[key] = event.version


@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_conserved_in_every_fragment(seed: int) -> None:
    faults = [
        fault("kill", "learner-0", 3),
        fault("partition", "learner-1", 4, 6),
        fault("pause", "learner-2", 6, 3),
        fault("kill", "syncer", 12),
        fault("terminate", "learner-3", 15, grace_s=2),
    ]
    story = Story(experiment(*faults), seed)
    assert story.violations() == []
    tokens = story.analysis.report.goodput.tokens
    merged, lost, in_flight = tokens.merged or 0, tokens.lost or 0, tokens.in_flight or 0
    assert tokens.trained == merged + lost + in_flight
    assert merged > 0
    assert lost > 0


def test_real_arithmetic_under_faults_keeps_parameters_finite_and_improves() -> None:
    faults = [fault("kill", "learner-0", 3), fault("kill", "syncer", 6)]
    story = Story(experiment(*faults, trainer="quadratic", duration_s=15, quiet_tail_s=10))
    assert story.violations() == []
    losses = [e.loss for e in story.of(Step) if e.loss is not None]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("how", ["nan", "inf", "bitflip"])
def test_poisoned_updates_are_refused_by_name(how: str) -> None:
    poison = fault("corrupt_update", "learner-1", 3, 8, how=how)
    story = Story(experiment(poison, trainer="quadratic", duration_s=15, quiet_tail_s=10))
    assert story.violations() == []
    assert {r.sender for r in story.of(UpdateRefused)} == {"learner-1"}


def test_a_lying_disk_is_seen_through() -> None:
    """No protocol survives a disk that forgets what it had synced; the run must not pass."""
    disk = {"disk": "lying", "unsynced_ms": 1500.0}
    story = Story(experiment(fault("kill", "syncer", 8), options=disk))
    found = {v.check for v in story.violations()}
    assert found & {"nothing-lost", "one-author", "versions", "liveness"}
    assert "history-lost" in {n.what for n in story.of(UnitNote, "syncer")}


def test_skewed_clocks_change_nothing_that_matters() -> None:
    skew = {"clock_skew_ms": {"learner-1": 60_000.0}, "clock_drift_ppm": {"syncer": 500.0}}
    story = Story(experiment(fault("kill", "learner-0", 5), options=skew))
    assert story.violations() == []
    # A note that had to wait for a durable write comes a moment after its own instant.
    times = [e.t_ns for e in story.events]
    assert all(b >= a - 5_000_000 for a, b in pairwise(times))
    for unit in ("learner-0", "learner-1"):
        steps = [(e.began_at_ns, e.t_ns) for e in story.of(Step, unit)]
        assert steps == sorted(steps)
