"""Workers: real merges between quadratic learners, poisoned inputs, restarts, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from faults.base import Tuning
from harness.seeds import stream
from targets.diloco import arrays, codec
from targets.diloco.accelerator import Paced
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
from targets.diloco.poison import poisoned
from targets.diloco.storage import MemoryStore, StateError
from targets.diloco.trainers import quadratic
from targets.diloco.trainers.base import Layout
from targets.diloco.work import (
    Costs,
    LearnerWorker,
    SyncerWorker,
    disk_store,
    layout_of,
    learner_worker,
    rule_name,
    syncer_worker,
)

SEED = 3
PARAMS = DilocoParams(
    trainer="quadratic", learners=3, fragments=4, sync_every=4, scripted_elements=200
)


def make_syncer(params: DilocoParams = PARAMS, **kwargs: Any) -> SyncerWorker:
    worker = syncer_worker(params, SEED, **kwargs)
    assert isinstance(worker, SyncerWorker)
    return worker


def make_learner(index: int = 0, params: DilocoParams = PARAMS, **kwargs: Any) -> LearnerWorker:
    worker = learner_worker(params, index, SEED, **kwargs)
    assert isinstance(worker, LearnerWorker)
    return worker


class Cluster:
    """A syncer and its learners, driven in lockstep through jobs alone."""

    def __init__(self, params: DilocoParams = PARAMS, **kwargs: Any) -> None:
        self.params = params
        self.syncer = make_syncer(params, **kwargs)
        self.learners = [make_learner(i, params) for i in range(params.learners)]
        self.versions = [0] * params.fragments
        self.clock = 0
        for learner in self.learners:
            learner.run(LoadAll(self.syncer.run(ReadAll("any")).payloads))

    def inputs(self, fragment: int, who: Sequence[int] | None = None) -> tuple[MergeInput, ...]:
        chosen = range(len(self.learners)) if who is None else who
        return tuple(
            MergeInput(f"learner-{i}", 1.0 + i, self.learners[i].run(Read(fragment, 0)))
            for i in chosen
        )

    def merge(self, fragment: int, inputs: Sequence[MergeInput]) -> MergeResult:
        job = Merge(self.clock, fragment, self.versions[fragment] + 1, tuple(inputs))
        result = self.syncer.run(job)
        assert isinstance(result, MergeResult)
        if result.payload is not None:
            self.versions[fragment] += 1
        return result

    def step(self, who: Sequence[int] | None = None) -> MergeResult:
        """Every learner trains one step; the fragment that is due is merged and adopted."""
        self.clock += 1
        for learner in self.learners:
            learner.run(TrainStep(self.clock))
        fragment = self.clock % self.params.fragments
        result = self.merge(fragment, self.inputs(fragment, who))
        assert result.payload is not None
        for learner in self.learners:
            learner.run(Adopt(fragment, self.versions[fragment], result.payload))
        return result

    def loss(self) -> float:
        return loss_of(self.syncer, self.params)


def thetas(syncer: SyncerWorker) -> list[bytes]:
    return [syncer.theta(p).tobytes() for p in range(len(syncer.layout.fragments))]


def loss_of(syncer: SyncerWorker, params: DilocoParams) -> float:
    layout = syncer.layout
    flat = [codec.split(syncer.theta(p), layout.shapes(p)) for p in range(len(layout.fragments))]
    return quadratic.loss(params, SEED, layout.join(flat))


# --- the algorithm ------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["rda", "avg"])
@pytest.mark.parametrize("wire", ["f32", "bf16"])
def test_rounds_of_diloco_go_to_the_optimum(merge: Any, wire: Any) -> None:
    params = replace(PARAMS, merge=merge, wire_up=wire, wire_down=wire)
    cluster = Cluster(params)
    begin = cluster.loss()
    for _ in range(400):
        cluster.step()
    assert cluster.loss() < begin / 40


def test_partial_participation_still_goes_to_the_optimum() -> None:
    cluster = Cluster()
    begin, draw = cluster.loss(), stream(1, "who")
    for _ in range(400):
        cluster.step(sorted(draw.sample(range(3), draw.randint(1, 3))))
    assert cluster.loss() < begin / 50


def test_everybody_starts_from_the_same_parameters() -> None:
    cluster = Cluster()
    initial = quadratic.initial(PARAMS, SEED)
    for learner in cluster.learners:
        assert learner.trainer.digests()["params"] == codec.digest(initial)


def test_the_result_describes_what_everybody_then_holds() -> None:
    cluster = Cluster()
    result = cluster.step()
    assert result.payload is not None
    assert (result.poisoned, result.finite) == ({}, True)
    assert result.digest == codec.digest([cluster.syncer.theta(1)])
    for learner in cluster.learners:
        assert learner.run(Read(1, 0)).digest == result.payload.digest == result.digest


def test_bf16_down_leaves_the_syncer_at_full_precision() -> None:
    cluster = Cluster(replace(PARAMS, wire_down="bf16"))
    result = cluster.step()
    assert result.payload is not None
    assert result.payload.nbytes == 2 * cluster.syncer.layout.elements[1]
    assert result.digest == codec.digest([cluster.syncer.theta(1)]) != result.payload.digest


def test_the_embedding_is_averaged_whatever_the_rest_does() -> None:
    layout = layout_of(PARAMS)
    assert [rule_name(layout, p, "rda") for p in range(4)] == ["avg", "rda", "rda", "rda"]
    assert rule_name(Layout.of(layout.tensors, 1), 0, "rda") == "avg+rda"
    cluster = Cluster()
    assert [cluster.step().rule for _ in range(4)] == ["rda", "rda", "rda", "avg"]


@pytest.mark.parametrize("fragment", [0, 1])
def test_a_merge_is_the_formula(fragment: int) -> None:
    cluster = Cluster()
    for learner in cluster.learners:
        learner.run(TrainStep(1))
    layout, before = cluster.syncer.layout, cluster.syncer.theta(fragment).copy()
    inputs = cluster.inputs(fragment)
    sizes = [layout.tensors[i].elements for i in layout.fragments[fragment]]
    want = arrays.merge_slow(
        before,
        np.zeros_like(before),
        [codec.unpack(i.payload, before.size) for i in inputs],
        [i.weight for i in inputs],
        sizes,
        ["avg" if fragment == 0 else "rda"] * len(sizes),
        arrays.Outer(0.7, 0.9),
    )
    cluster.merge(fragment, inputs)
    np.testing.assert_array_equal(cluster.syncer.theta(fragment), want.theta)


def test_both_backends_agree() -> None:
    layout, initial = layout_of(PARAMS), quadratic.initial(PARAMS, SEED)
    clusters = [Cluster(), Cluster()]
    clusters[1].syncer = SyncerWorker(layout, PARAMS, initial, backend="numba")
    for _ in range(8):
        for cluster in clusters:
            cluster.step()
    for fragment in range(4):
        a, b = (c.syncer.theta(fragment) for c in clusters)
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_order_in_which_pushes_came_does_not_reach_the_bits() -> None:
    """With these values every order of summing gives another result."""
    values = {"learner-0": 1e20, "learner-1": -1e20, "learner-2": 1.0}
    size = layout_of(PARAMS).elements[0]
    results = set()
    for order in permutations(values):
        payloads = {u: codec.pack([np.full(size, values[u], np.float32)], "f32") for u in order}
        inputs = tuple(MergeInput(unit, 1.0, payloads[unit]) for unit in order)
        results.add(make_syncer().run(Merge(1, 0, 1, inputs)).digest)
    assert len(results) == 1


# --- poisoned inputs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "kind"),
    [("nan", "non-finite"), ("inf", "non-finite"), ("bitflip", "checksum"), ("truncate", "trunc")],
)
def test_a_poisoned_update_is_left_out_and_named(update: str, kind: str) -> None:
    cluster, sound = Cluster(), Cluster()
    for c in (cluster, sound):
        for learner in c.learners:
            learner.run(TrainStep(1))
    cluster.learners[1].tuning = Tuning(update=update)
    result = cluster.merge(1, cluster.inputs(1))
    assert list(result.poisoned) == ["learner-1"]
    assert result.poisoned["learner-1"].startswith(kind)
    assert result.finite
    assert result.digest == sound.merge(1, sound.inputs(1, [0, 2])).digest


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_an_absurdly_long_update_is_left_out(backend: Any) -> None:
    initial = quadratic.initial(PARAMS, SEED)
    syncer = SyncerWorker(layout_of(PARAMS), PARAMS, initial, backend=backend)
    far = codec.pack([np.full(syncer.layout.elements[1], 1e19, np.float32)], "f32")
    near = codec.pack([syncer.theta(1)], "f32")
    inputs = (MergeInput("learner-0", 1.0, far), MergeInput("learner-1", 1.0, near))
    result = syncer.run(Merge(1, 1, 1, inputs))
    assert list(result.poisoned) == ["learner-0"]
    assert result.poisoned["learner-0"].startswith("non-finite: ")
    assert result.digest == near.digest


def test_a_payload_of_another_layout_is_left_out() -> None:
    cluster = Cluster()
    good, other = cluster.inputs(1, [0])[0], codec.pack([np.zeros(999, np.float32)], "f32")
    result = cluster.merge(1, [good, MergeInput("learner-1", 1.0, other)])
    assert result.poisoned["learner-1"].startswith("layout: 3996 bytes where")
    typed = msgspec.structs.replace(good.payload, dtype="f64")
    result = cluster.merge(1, [good, MergeInput("learner-2", 1.0, typed)])
    assert result.poisoned["learner-2"].startswith("layout: wire type 'f64'")


@pytest.mark.parametrize("update", ["nan", "bitflip"])
def test_with_too_few_sound_updates_nothing_is_committed(update: str) -> None:
    cluster = Cluster(replace(PARAMS, quorum=3))
    before = thetas(cluster.syncer)
    cluster.learners[0].tuning = Tuning(update=update)
    result = cluster.merge(1, cluster.inputs(1))
    assert (result.payload, result.digest) == (None, "")
    assert list(result.poisoned) == ["learner-0"]
    assert thetas(cluster.syncer) == before
    cluster.learners[0].tuning = Tuning()
    assert cluster.merge(1, cluster.inputs(1)).payload is not None


def test_a_result_that_overflows_is_not_committed() -> None:
    cluster = Cluster(replace(PARAMS, outer_lr=1e38))
    before = thetas(cluster.syncer)
    for learner in cluster.learners:
        learner.run(TrainStep(1))
    cluster.learners[0].tuning = Tuning(update="scale")
    result = cluster.merge(1, cluster.inputs(1))
    assert (result.payload, result.finite) == (None, False)
    assert thetas(cluster.syncer) == before


def test_a_learner_refuses_a_damaged_fragment_and_stays_as_it_was() -> None:
    cluster = Cluster()
    learner, payload = cluster.learners[0], cluster.syncer.run(ReadAll("x")).payloads[1]
    before = dict(learner.trainer.digests())
    for update in ("bitflip", "truncate"):
        with pytest.raises(codec.PayloadError):
            learner.run(Adopt(1, 1, poisoned(payload, update)))
    assert learner.trainer.digests() == before


# --- a syncer's lives ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_later_life_goes_on_with_equal_bits(kind: str, tmp_path: Path) -> None:
    memory = MemoryStore()

    def store() -> Any:
        return disk_store(PARAMS, SEED, tmp_path) if kind == "disk" else memory

    cluster, undisturbed = Cluster(store=store()), Cluster()
    for _ in range(6):
        cluster.step()
        undisturbed.step()
    cluster.syncer = make_syncer(store=store())
    cluster.syncer.run(Restore(tuple(cluster.versions)))
    assert thetas(cluster.syncer) == thetas(undisturbed.syncer)
    for _ in range(6):  # the momentum came back as well
        assert cluster.step().digest == undisturbed.step().digest


def test_a_merge_that_the_node_never_saved_is_undone() -> None:
    memory = MemoryStore()
    cluster = Cluster(store=memory)
    for _ in range(5):
        cluster.step()
    known, before = tuple(cluster.versions), thetas(cluster.syncer)
    cluster.step()
    later = make_syncer(store=memory)
    assert thetas(later) != before
    later.run(Restore(known))
    assert thetas(later) == before
    payloads = later.run(ReadAll("x")).payloads
    assert [p.digest for p in payloads] == [codec.digest([later.theta(p)]) for p in range(4)]


def test_a_merge_builds_on_the_version_before_it_without_being_told() -> None:
    memory = MemoryStore()
    cluster = Cluster(store=memory)
    first = cluster.step()
    cluster.syncer = make_syncer(store=memory)
    cluster.versions[1] = 0
    cluster.clock = 1
    again = cluster.merge(1, cluster.inputs(1))
    assert again.payload is not None
    assert first.digest != again.digest  # learners adopted the first one in between
    assert memory.versions(1) == [1]


def test_a_version_that_is_not_at_hand_is_an_error() -> None:
    with pytest.raises(StateError, match="no state was kept"):
        make_syncer().run(Restore((0, 1, 0, 0)))
    with pytest.raises(StateError, match="version 7 of fragment 2"):
        make_syncer(store=MemoryStore()).run(Restore((0, 0, 7, 0)))
    with pytest.raises(StateError):
        make_syncer().run(Merge(9, 1, 5, Cluster().inputs(1)))


# --- snapshots and pacing -----------------------------------------------------------------------


def test_a_read_is_bound_to_the_step_before_which_it_was_asked() -> None:
    learner = Cluster().learners[0]
    learner.run(TrainStep(1))
    want = learner.run(Read(1, 0))
    asked = learner.bind(Read(1, 0))
    learner.run(TrainStep(2))
    assert asked() == want != learner.run(Read(1, 0))


def test_a_finished_step_is_not_read_before_it_is_published() -> None:
    learner = Cluster().learners[0]
    before = learner.run(Read(1, 0))
    learner.bind(TrainStep(1))()
    assert learner.run(Read(1, 0)) == before
    learner.publish()
    assert learner.run(Read(1, 0)) != before


def test_nothing_is_trained_or_read_before_parameters_came() -> None:
    learner = make_learner()
    learner.publish()
    with pytest.raises(RuntimeError, match="before the learner had any parameters"):
        learner.run(Read(0, 0))
    with pytest.raises(RuntimeError, match="load first"):
        learner.run(TrainStep(1))


def test_loading_starts_the_inner_optimizer_afresh() -> None:
    cluster = Cluster()
    learner = cluster.learners[0]
    fresh = dict(learner.trainer.digests())
    learner.run(TrainStep(1))
    assert dict(learner.trainer.digests()) != fresh
    loaded = learner.run(LoadAll(cluster.syncer.run(ReadAll("x")).payloads))
    assert loaded.digests == fresh


class ScriptedPacing:
    nominal_ns = 70

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self) -> int:
        self.calls.append("begin")
        return 1000

    def end(self, began_at_ns: int) -> Paced:
        self.calls.append(began_at_ns)
        return Paced(began_at_ns, 1070, 44, False, 0, False)


def test_a_paced_step_reports_the_pacers_times() -> None:
    pacing = ScriptedPacing()
    learner = make_learner(pacing=pacing)
    learner.run(LoadAll(make_syncer().run(ReadAll("x")).payloads))
    result = learner.run(TrainStep(1))
    assert (result.began_at_ns, result.compute_ns, result.nominal_ns) == (1000, 44, 70)
    assert result.tokens == PARAMS.batch * PARAMS.sequence
    assert pacing.calls == ["begin", 1000]


def test_a_real_units_tuning_is_asked_at_every_read() -> None:
    tuning = [Tuning()]
    learner = make_learner(tuning=lambda: tuning[0])
    learner.run(LoadAll(make_syncer().run(ReadAll("x")).payloads))
    assert np.isfinite(codec.unpack(learner.run(Read(1, 0)), learner.layout.elements[1])).all()
    tuning[0] = Tuning(update="nan")
    assert np.isnan(codec.unpack(learner.run(Read(1, 0)), learner.layout.elements[1])).any()


@pytest.mark.parametrize("make", [make_learner, make_syncer])
def test_a_job_of_the_other_role_is_refused(make: Any) -> None:
    job = ReadAll("x") if make is make_learner else TrainStep(1)
    with pytest.raises(TypeError, match=type(job).__name__):
        make().run(job)


# --- virtual durations --------------------------------------------------------------------------


def test_costs_follow_speed_and_bytes() -> None:
    params = replace(PARAMS, speeds=(1.0, 0.5, 2.0))
    assert [make_learner(i, params).cost_ns(TrainStep(1)) for i in range(3)] == [
        100_000_000,
        200_000_000,
        50_000_000,
    ]
    learner, syncer = make_learner(), make_syncer()
    learner.costs = syncer.costs = Costs(
        step_ns=7, read_ns=10, adopt_ns=20, load_ns=30, merge_ns=40, bytes_per_s=1_000_000_000
    )
    nbytes = [4 * n for n in learner.layout.elements]
    payload = Payload("f32", nbytes[1], "")
    assert learner.cost_ns(Read(1, 0)) == 10 + nbytes[1]
    assert learner.cost_ns(Adopt(1, 1, payload)) == 20
    assert learner.cost_ns(LoadAll(())) == 30 + sum(nbytes)
    inputs = (MergeInput("a", 1.0, payload), MergeInput("b", 1.0, payload))
    assert syncer.cost_ns(Merge(1, 1, 1, inputs)) == 40 + 2 * nbytes[1]
    unpaced = make_learner(0, replace(PARAMS, step_time_s=0.0))
    assert unpaced.cost_ns(TrainStep(1)) == Costs().step_ns
