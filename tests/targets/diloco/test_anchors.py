"""Changes instead of fragments: both ends hold the same bits, and training goes where it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from targets.diloco import codec
from targets.diloco.anchors import Received, Sent
from targets.diloco.arrays import Flat
from targets.diloco.int4 import ERROR_MAX
from targets.diloco.messages import (
    Adopt,
    LoadAll,
    Merge,
    MergeInput,
    MergeResult,
    Payload,
    Read,
    ReadAll,
    Restore,
    TrainStep,
)
from targets.diloco.params import DilocoParams
from targets.diloco.storage import MemoryStore
from targets.diloco.trainers import quadratic
from targets.diloco.work import LearnerWorker, SyncerWorker, learner_worker, syncer_worker

SEED = 5
PARAMS = DilocoParams(
    trainer="quadratic", learners=3, fragments=4, sync_every=4, scripted_elements=1000
)
BOTH = replace(PARAMS, wire_up="int4", wire_down="int4")


class Cluster:
    """A syncer and its learners through jobs alone; a fragment is merged after every step."""

    def __init__(self, params: DilocoParams, store: MemoryStore | None = None) -> None:
        self.params = params
        self.store = store
        self.versions = [0] * params.fragments
        self.clock = 0
        self.boot()
        self.learners = [self.learner(i) for i in range(params.learners)]
        self.bases = [[0] * params.fragments for _ in self.learners]
        self.nbytes = 0

    def boot(self) -> None:
        worker = syncer_worker(self.params, SEED, store=self.store)
        assert isinstance(worker, SyncerWorker)
        self.syncer = worker

    def learner(self, index: int) -> LearnerWorker:
        worker = learner_worker(self.params, index, SEED)
        assert isinstance(worker, LearnerWorker)
        worker.run(LoadAll(self.whole()))
        return worker

    def whole(self) -> tuple[Payload, ...]:
        payloads: tuple[Payload, ...] = self.syncer.run(ReadAll("any")).payloads
        return payloads

    def train(self) -> int:
        """One step of everybody; the fragment that is due."""
        self.clock += 1
        for learner in self.learners:
            learner.run(TrainStep(self.clock))
        return self.clock % self.params.fragments

    def pushes(self, p: int) -> list[MergeInput]:
        return [
            MergeInput(f"learner-{i}", 1.0 + i, learner.run(Read(p, 0)), self.bases[i][p])
            for i, learner in enumerate(self.learners)
        ]

    def merge(self, p: int, pushes: list[MergeInput]) -> MergeResult:
        result = self.syncer.run(Merge(self.clock, p, self.versions[p] + 1, tuple(pushes)))
        assert isinstance(result, MergeResult)
        self.versions[p] += result.payload is not None
        self.nbytes += sum(i.payload.nbytes for i in pushes)
        return result

    def adopt(self, i: int, p: int, payload: Payload) -> None:
        self.learners[i].run(Adopt(p, self.versions[p], payload))
        self.bases[i][p] = self.versions[p]

    def round(self) -> MergeResult:
        p = self.train()
        result = self.merge(p, self.pushes(p))
        assert result.poisoned == {}
        assert result.payload is not None
        for i in range(len(self.learners)):
            self.adopt(i, p, result.payload)
        self.nbytes += result.payload.nbytes * len(self.learners)
        return result

    def loss(self) -> float:
        layout = self.syncer.layout
        flat = [
            codec.split(self.syncer.theta(p), layout.shapes(p))
            for p in range(len(layout.fragments))
        ]
        return quadratic.loss(self.params, SEED, layout.join(flat))

    def held(self, i: int, p: int) -> bytes:
        """The learner's fragment as it is now, by its bits."""
        return b"".join(a.tobytes() for a in self.learners[i].trainer.snapshot().read(p))


WIRES: list[Any] = [
    ("int4", "f32", False),
    ("int4", "bf16", False),
    ("f32", "int4", False),
    ("int4", "int4", False),
    ("int4", "int4", True),
]


@pytest.mark.parametrize(("up", "down", "feedback"), WIRES)
@pytest.mark.parametrize("merge", ["rda", "avg"])
def test_training_reaches_the_optimum_as_with_whole_fragments(
    merge: Any, up: Any, down: Any, feedback: bool
) -> None:
    cluster = Cluster(
        replace(PARAMS, merge=merge, wire_up=up, wire_down=down, error_feedback=feedback)
    )
    whole = Cluster(replace(PARAMS, merge=merge))
    begin = cluster.loss()
    for _ in range(300):
        cluster.round()
        whole.round()
    assert cluster.loss() < begin / 30
    assert cluster.loss() - whole.loss() < 0.02 * begin
    assert cluster.nbytes < whole.nbytes * 0.7


@pytest.mark.parametrize("up", ["f32", "int4"])
def test_every_receiver_holds_the_same_bits_as_the_syncer_thinks(up: Any) -> None:
    cluster = Cluster(replace(BOTH, wire_up=up))
    for _ in range(24):
        result = cluster.round()
        assert result.payload is not None
        assert result.payload.dtype == "int4"
        p = cluster.clock % cluster.params.fragments
        bits = {cluster.held(i, p) for i in range(3)}
        assert len(bits) == 1
        whole = cluster.whole()[p]
        assert (whole.dtype, whole.digest) == ("f32", result.payload.digest)
        assert bits == {bytes(whole.data)}


def test_broadcasts_make_earlier_rounding_good() -> None:
    """Between the exact fragment and what receivers hold there is one rounding, never a sum."""
    cluster = Cluster(BOTH)
    for _ in range(60):
        p = (cluster.clock + 1) % 4
        before = np.frombuffer(cluster.whole()[p].data, np.float32)
        cluster.round()
        after = np.frombuffer(cluster.whole()[p].data, np.float32)
        exact = cluster.syncer.theta(p)
        gap, change = np.abs(exact - after).max(), np.abs(exact - before).max()
        assert gap <= ERROR_MAX * change + 1e-6


def test_the_syncer_has_what_the_learner_meant_whatever_it_builds_upon() -> None:
    """A push that builds on an older version stands for the learner's fragment all the same, so
    its delta is anchored at the syncer's own previous fragment."""
    whole, changes = Cluster(PARAMS), Cluster(replace(PARAMS, wire_up="int4"))
    for cluster in (whole, changes):
        for _ in range(8):
            p = cluster.train()
            result = cluster.merge(p, cluster.pushes(p))
            assert result.payload is not None
            for i in (0, 1):  # learner-2 misses every broadcast
                cluster.adopt(i, p, result.payload)
    assert changes.bases[2] == [0] * 4
    assert changes.versions == [2] * 4
    for p in range(4):
        exact, near = whole.syncer.theta(p), changes.syncer.theta(p)
        moved = np.abs(exact - np.concatenate(_initial(whole, p))).max()
        assert np.abs(exact - near).max() < 0.2 * moved


def _initial(cluster: Cluster, p: int) -> list[Flat]:
    parts = cluster.syncer.layout.split(quadratic.initial(cluster.params, SEED))
    return [part.reshape(-1) for part in parts[p]]


def test_a_base_that_is_too_old_is_refused_as_stale() -> None:
    cluster = Cluster(replace(PARAMS, wire_up="int4", quorum=2))
    p = cluster.train()
    late = cluster.pushes(p)[2]
    while cluster.versions[p] < 5:
        cluster.round()
    result = cluster.merge(p, [*cluster.pushes(p)[:2], late])
    assert list(result.poisoned) == ["learner-2"]
    assert result.poisoned["learner-2"].startswith("stale: ")


def test_a_change_of_another_version_is_noticed_by_its_digest() -> None:
    cluster = Cluster(BOTH)
    first = cluster.round()
    for _ in range(4):
        cluster.round()
    p = cluster.clock % 4
    before = cluster.held(0, p)
    assert first.payload is not None
    with pytest.raises(codec.PayloadError, match=r"^checksum"):
        cluster.learners[0].run(Adopt(p, cluster.versions[p], first.payload))
    assert cluster.held(0, p) == before


def test_a_newcomer_gets_whole_fragments_and_follows_changes_from_there() -> None:
    cluster = Cluster(BOTH)
    for _ in range(6):
        cluster.round()
    cluster.learners[1] = cluster.learner(1)
    cluster.bases[1] = list(cluster.versions)
    for _ in range(8):
        cluster.round()
        p = cluster.clock % 4
        assert cluster.held(0, p) == cluster.held(1, p)


def test_the_syncers_next_life_goes_on_from_what_receivers_hold() -> None:
    calm, broken = Cluster(BOTH, MemoryStore()), Cluster(BOTH, MemoryStore())
    for cluster in (calm, broken):
        for _ in range(9):
            cluster.round()
        if cluster is broken:
            cluster.boot()
            cluster.syncer.run(Restore(tuple(cluster.versions)))
        for _ in range(8):
            cluster.round()
    assert [calm.syncer.theta(p).tobytes() for p in range(4)] == [
        broken.syncer.theta(p).tobytes() for p in range(4)
    ]


def test_nonsense_in_a_change_is_refused_and_named() -> None:
    cluster = Cluster(replace(BOTH, quorum=1))
    p = cluster.train()
    pushes = cluster.pushes(p)
    from targets.diloco.poison import poisoned

    anchor = np.frombuffer(cluster.whole()[p].data, np.float32)
    for update, kind in (("nan", "non-finite"), ("bitflip", "checksum"), ("truncate", "truncated")):
        bad = msgspec.structs.replace(
            pushes[0], payload=poisoned(pushes[0].payload, update, anchor)
        )
        attempt = cluster.syncer.run(Merge(1, p, 1, (bad,)))
        assert attempt.payload is None
        assert attempt.poisoned["learner-0"].startswith(kind)


def test_without_an_anchor_a_learner_sends_the_whole_fragment() -> None:
    received = Received(1, needed=True, feedback=False)
    flat = np.linspace(0, 1, 100, dtype=np.float32)
    assert received.pack(0, flat, received.anchor(0)).dtype == "bf16"
    received.took(0, flat)
    assert received.pack(0, flat, received.anchor(0)).dtype == "int4"
    received.forget()
    assert received.anchor(0) is None


def test_error_feedback_sends_what_was_left_out_with_the_next_push() -> None:
    """A small steady move is below half a level for ever; owed, it adds up until it shows."""
    anchor = np.zeros(64, np.float32)
    flat = anchor.copy()
    flat[0], flat[1] = 7.0, 0.3  # 0.3 rounds to zero beside 7
    totals = {}
    for feedback in (False, True):
        received = Received(1, needed=True, feedback=feedback)
        total = np.zeros(64, np.float32)
        for _ in range(10):
            received.took(0, anchor)
            total += codec.unpack(received.pack(0, flat, anchor), 64, anchor)
        totals[feedback] = float(total[1])
    assert totals[False] == 0.0
    assert totals[True] == pytest.approx(3.0, abs=0.6)


def test_only_the_newest_versions_are_kept() -> None:
    sent = Sent([np.zeros(3, np.float32)], kept=2)
    for version in (1, 2, 3):
        sent.put(0, version, np.full(3, version, np.float32))
    assert sent.at(0, 1) is None
    assert float(sent.newest(0)[0]) == 3
    assert sent.at(0, 2) is not None
    sent.restart(0, 7, np.full(3, 7, np.float32))
    assert sent.at(0, 3) is None
    assert float(sent.newest(0)[0]) == 7
