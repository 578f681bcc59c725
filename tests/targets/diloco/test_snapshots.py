"""Both sides of a snapshot as machines: who is waited for, what is recorded, what is said."""

from __future__ import annotations

from typing import Any

import pytest

from harness.events import Checkpointed, SnapshotComplete, UnitNote
from targets.base import Save, Work
from targets.diloco.checkpointing import Checkpointing, Counters
from targets.diloco.messages import (
    Heartbeat,
    KeepPart,
    PartKept,
    PartSaved,
    PruneParts,
    Push,
    Report,
    SealSnapshot,
    SnapshotsKept,
)
from targets.diloco.messages import Payload as P
from targets.diloco.snapshots import KEY, LANE, Seam, Snapshots

BEFORE, AFTER = {"syncer": 19}, {"syncer": 20}


class Told:
    """Collects what is put into the journal."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, kind: Any, **fields: Any) -> None:
        self.events.append(kind(t_ns=0, unit="x", incarnation=1, **fields))

    def of(self, kind: type) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


def report(step: int, clock: dict[str, int]) -> Report:
    return Report(1, step, (1,), (8,), 5, clock)


def push(clock: dict[str, int]) -> Push:
    return Push(1, 3, 0, 0, 4, 4, 32, 0, 0, P("f32", 4, "d"), clock)


def saved(marker: int, why: str = "") -> PartSaved:
    return PartSaved(marker, 7, 100, "digest", why, AFTER)


STATE: dict[str, Any] = {
    "versions": [3],
    "merged": {
        "a": {"incarnation": 1, "through": [5], "contributed": [2]},
        "b": {"incarnation": 4, "through": [6], "contributed": [3]},
    },
}


def begun(told: Told, marker: int = 20, **omitted: str) -> tuple[Snapshots, KeepPart]:
    snapshots = Snapshots("syncer", 10, told)
    out = snapshots.begin(marker, 2, STATE, {"a": 1, "b": 4}, omitted, 1000)
    jobs = [e.job for e in out if isinstance(e, Work)]
    assert [e.key for e in out if isinstance(e, Save)] == [KEY]
    return snapshots, jobs[-1]


def own(snapshots: Snapshots, job: KeepPart) -> list[Any]:
    return snapshots.kept(job, PartKept(50, "own", {"fragment-0": "f"}), 3000)


def sealing(effects: list[Any]) -> SealSnapshot:
    (effect,) = effects
    assert isinstance(effect, Work)
    assert effect.lane == LANE
    job: SealSnapshot = effect.job
    assert isinstance(job, SealSnapshot)
    return job


def test_it_is_due_at_every_multiple_once() -> None:
    snapshots = Snapshots("syncer", 10, Told())
    assert [t for t in range(25) if snapshots.due(t)] == [10, 20]
    snapshots.begin(20, 1, STATE, {"a": 1}, {}, 0)
    assert not snapshots.due(20)
    assert snapshots.due(30)
    assert not Snapshots("syncer", 0, Told()).due(10)


def test_a_later_life_or_run_never_passes_a_marker_again() -> None:
    snapshots = Snapshots("syncer", 10, Told())
    assert snapshots.restarted({KEY: {"marker": 40}}, None) == 40
    assert not snapshots.due(40)
    seam = Seam("run", 60, (), {}, {}, {}, {})
    assert snapshots.restarted({}, seam) == 60
    assert snapshots.due(70)


def test_the_part_is_pinned_before_the_marker_is_durable_and_told() -> None:
    snapshots = Snapshots("syncer", 10, Told())
    out = snapshots.begin(20, 2, STATE, {"a": 1}, {}, 1000)
    assert [type(e) for e in out] == [Work, Save]
    assert out[0] == Work(KeepPart(20, 2, STATE), LANE)


def test_it_is_complete_when_all_returned_the_marker_and_saved_and_so_did_the_syncer() -> None:
    told = Told()
    snapshots, job = begun(told, c="no link")
    assert own(snapshots, job) == []
    assert snapshots.heard("a", report(5, AFTER)) == []
    assert snapshots.saved("a", saved(20)) == []
    assert snapshots.heard("b", Heartbeat(1, False, AFTER)) == []
    seal = sealing(snapshots.saved("b", saved(20)))
    assert seal.members == {"a": "digest", "b": "digest", "syncer": "own"}
    assert seal.omitted == {"c": "no link"}
    assert snapshots.saved("b", saved(20)) == []  # nor is it sealed twice
    snapshots.sealed(seal, 9000)
    (done,) = told.of(SnapshotComplete)
    assert (done.marker, done.members, done.took_ns) == (20, {"a": 1, "b": 4}, 8000)
    assert done.in_flight == {"a": 0, "b": 0}
    assert not snapshots.listening
    (part,) = told.of(Checkpointed)
    assert part.merged_through == {"a": (5,), "b": (6,)}
    assert part.lives == {"a": 1, "b": 4}


def test_a_durable_part_alone_does_not_return_the_marker() -> None:
    snapshots, job = begun(Told())
    own(snapshots, job)
    snapshots.heard("a", report(5, AFTER))
    snapshots.saved("a", saved(20))
    assert snapshots.saved("b", saved(20)) == []
    assert sealing(snapshots.heard("b", report(9, AFTER))).members


def test_only_what_was_sent_before_the_learners_cut_is_recorded() -> None:
    told = Told()
    snapshots, job = begun(told)
    own(snapshots, job)
    crossing = [("b", report(4, BEFORE)), ("a", push(BEFORE)), ("b", push(BEFORE))]
    for name, message in crossing:
        snapshots.heard(name, message)
    snapshots.heard("a", Heartbeat(1, False, BEFORE))  # changes nothing
    for name in ("a", "b"):
        snapshots.heard(name, report(6, AFTER))
        snapshots.heard(name, report(7, BEFORE))  # cannot be: but the marker has been returned
        effects = snapshots.saved(name, saved(20))
    seal = sealing(effects)
    assert seal.in_flight == tuple(crossing)
    snapshots.sealed(seal, 9000)
    assert told.of(SnapshotComplete)[0].in_flight == {"a": 1, "b": 2}


def test_who_is_lost_before_its_part_is_known_is_omitted_with_its_messages() -> None:
    snapshots, job = begun(Told())
    own(snapshots, job)
    snapshots.heard("b", report(4, BEFORE))
    snapshots.heard("a", report(4, AFTER))
    snapshots.saved("a", saved(20))
    seal = sealing(snapshots.lost("b", "no link: gone"))
    assert seal.members == {"a": "digest", "syncer": "own"}
    assert seal.omitted == {"b": "no link: gone"}
    assert seal.in_flight == ()


def test_who_is_lost_after_its_part_stays_a_member() -> None:
    snapshots, job = begun(Told())
    own(snapshots, job)
    snapshots.heard("a", report(4, AFTER))
    snapshots.saved("a", saved(20))
    assert snapshots.lost("a", "no link") == []
    assert sealing(snapshots.lost("b", "no link")).members == {"a": "digest", "syncer": "own"}


def test_a_learner_without_a_part_says_why() -> None:
    snapshots, job = begun(Told())
    own(snapshots, job)
    snapshots.saved("a", saved(20, "the disk is full"))
    snapshots.heard("b", report(1, AFTER))
    seal = sealing(snapshots.saved("b", saved(20)))
    assert seal.omitted == {"a": "the disk is full"}


def test_without_any_learner_it_is_given_up() -> None:
    told = Told()
    snapshots, job = begun(told)
    own(snapshots, job)
    snapshots.lost("a", "no link")
    seal = sealing(snapshots.lost("b", "no link"))
    assert seal.members is None
    assert told.of(UnitNote)[0].what == "snapshot-given-up"


def test_an_open_one_is_given_up_when_the_next_is_due() -> None:
    told = Told()
    snapshots, job = begun(told)
    own(snapshots, job)
    snapshots.heard("a", report(1, AFTER))
    snapshots.saved("a", saved(20))
    out = snapshots.begin(30, 2, STATE, {"a": 1, "b": 4}, {}, 5000)
    assert out[0] == Work(SealSnapshot(20, None), LANE)
    assert "waited for b" in told.of(UnitNote)[0].detail
    assert snapshots.saved("b", saved(20)) == []  # too late
    assert own(snapshots, job) == []


def test_a_disk_that_fails_gives_it_up_and_says_so() -> None:
    told = Told()
    snapshots, _ = begun(told)
    assert sealing(snapshots.failed(20, "OSError: full")).members is None
    assert [n.what for n in told.of(UnitNote)] == ["checkpoint-failed", "snapshot-given-up"]
    assert not snapshots.listening
    assert snapshots.failed(20, "OSError: full") == []


# --- the learner's side -------------------------------------------------------------------------

COUNTERS = Counters(step=7, versions=(3,), committed=(18,), since=(5,), tokens=(16,), life=2)


@pytest.mark.parametrize(("clock", "marker"), [(9, 0), (10, 10), (19, 10), (47, 40)])
def test_the_first_message_past_a_multiple_is_the_marker(clock: int, marker: int) -> None:
    learner = Checkpointing("syncer", 10, Told())
    assert learner.passed({"syncer": clock, "learner-1": 900}) == marker
    assert learner.passed({"syncer": clock}) == 0
    assert learner.passed({"learner-1": 900}) == 0


def test_clocks_that_go_back_bring_no_marker() -> None:
    learner = Checkpointing("syncer", 10, Told(), marker=40)
    assert [learner.passed({"syncer": t}) for t in (31, 40, 49, 50, 12, 51)] == [0, 0, 0, 50, 0, 0]


def test_the_part_goes_to_a_lane_of_its_own_and_is_reported() -> None:
    told = Told()
    learner = Checkpointing("syncer", 10, told)
    (effect,) = learner.cut(20, 3, COUNTERS, 1000)
    assert isinstance(effect, Work)
    assert effect.lane == LANE
    job: KeepPart = effect.job
    assert (job.marker, job.incarnation, job.state["since"]) == (20, 3, (5,))
    message = learner.kept(job, PartKept(64, "digest", {"params": "p"}), 4000, AFTER)
    assert message == PartSaved(20, 7, 64, "digest", "", AFTER)
    (event,) = told.of(Checkpointed)
    assert (event.step, event.took_ns, event.versions, event.since) == (7, 3000, (3,), (5,))


def test_a_part_that_cannot_be_written_is_said_to_both() -> None:
    told = Told()
    learner = Checkpointing("syncer", 10, told)
    learner.cut(20, 3, COUNTERS, 1000)
    assert learner.failed(20, "OSError: full", AFTER).why == "OSError: full"
    assert told.of(UnitNote)[0].what == "checkpoint-failed"


def test_what_the_syncer_does_not_keep_is_dropped() -> None:
    learner = Checkpointing("syncer", 10, Told())
    assert learner.prune(SnapshotsKept((10, 30), 30, AFTER)) == [
        Work(PruneParts((10, 30), 30), LANE)
    ]
