"""Scripted workers answer every job in the shape of the real ones, without arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
from targets.diloco.work import layout_of, learner_worker, syncer_worker
from tests.targets.diloco.test_work import ScriptedPacing

SCRIPTED = DilocoParams(trainer="scripted", fragments=4, sync_every=4, scripted_elements=200)
QUADRATIC = replace(SCRIPTED, trainer="quadratic")


def ready(index: int = 0, **kwargs: Any) -> Any:
    learner: Any = learner_worker(SCRIPTED, index, 1, **kwargs)
    learner.run(LoadAll(syncer_worker(SCRIPTED, 1).run(ReadAll("x")).payloads))
    return learner


def merged(syncer: Any, version: int, *digests: str, weight: float = 1.0) -> MergeResult:
    inputs = tuple(
        MergeInput(f"learner-{i}", weight, Payload("f32", 0, d)) for i, d in enumerate(digests)
    )
    result = syncer.run(Merge(9, 1, version, inputs))
    assert isinstance(result, MergeResult)
    return result


def test_payloads_have_the_size_of_real_ones_and_no_data() -> None:
    scripted, real = (syncer_worker(p, 1).run(ReadAll("x")) for p in (SCRIPTED, QUADRATIC))
    assert [p.nbytes for p in scripted.payloads] == [p.nbytes for p in real.payloads]
    assert {p.data for p in scripted.payloads} == {None}
    assert ready().run(Read(2, 0)).nbytes == scripted.payloads[2].nbytes


def test_costs_are_those_of_the_real_ones() -> None:
    payload = Payload("f32", 1, "")
    jobs = [TrainStep(1), Read(1, 0), Adopt(1, 1, payload), LoadAll(())]
    for make in (learner_worker(SCRIPTED, 1, 1), learner_worker(QUADRATIC, 1, 1)):
        assert [make.cost_ns(j) for j in jobs] == [ready(1).cost_ns(j) for j in jobs]
    merge = Merge(1, 1, 1, (MergeInput("a", 1.0, payload),))
    costs = {syncer_worker(p, 1).cost_ns(merge) for p in (SCRIPTED, QUADRATIC)}
    assert len(costs) == 1


def test_a_read_is_bound_to_the_steps_before_it() -> None:
    learner = ready()
    asked, before = learner.bind(Read(1, 0)), learner.run(Read(1, 0))
    result = learner.run(TrainStep(1))
    assert result.tokens == SCRIPTED.batch * SCRIPTED.sequence
    assert asked() == before != learner.run(Read(1, 0))


def test_digests_tell_learners_steps_and_adopted_versions_apart() -> None:
    a, b = ready(0), ready(1)
    assert a.run(Read(1, 0)).digest != b.run(Read(1, 0)).digest
    before = a.run(Read(1, 0)).digest
    a.run(Adopt(1, 1, Payload("f32", 0, "new")))
    assert a.run(Read(1, 0)).digest != before


def test_digests_of_merges_depend_on_everything_that_went_in() -> None:
    syncer: Any = syncer_worker(SCRIPTED, 1)
    results = [
        merged(syncer, 1, "a", "b"),
        merged(syncer, 1, "a", "c"),
        merged(syncer, 1, "a"),
        merged(syncer, 2, "a", "b"),
        merged(syncer, 1, "a", "b", weight=2.0),
    ]
    assert len({r.digest for r in results}) == len(results)
    assert merged(syncer_worker(SCRIPTED, 2), 1, "a", "b") == results[0]
    assert results[0].rule == "rda"


def test_a_later_life_remembers_the_merges() -> None:
    memory: dict[tuple[int, int], str] = {}
    digest = merged(syncer_worker(SCRIPTED, 1, memory=memory), 1, "a").digest
    later = syncer_worker(SCRIPTED, 1, memory=memory)
    later.run(Restore((0, 1, 0, 0)))
    assert later.run(ReadAll("x")).payloads[1].digest == digest


def test_below_the_quorum_nothing_is_merged() -> None:
    syncer = syncer_worker(replace(SCRIPTED, quorum=2), 1)
    assert merged(syncer, 1, "a").payload is None
    assert merged(syncer, 1, "a", "b").payload is not None


def test_a_paced_step_reports_the_pacers_times() -> None:
    result = ready(pacing=ScriptedPacing()).run(TrainStep(1))
    assert (result.began_at_ns, result.compute_ns, result.nominal_ns) == (1000, 44, 70)


def test_a_job_of_the_other_role_is_refused() -> None:
    with pytest.raises(TypeError, match="ReadAll"):
        ready().run(ReadAll("x"))
    with pytest.raises(TypeError, match="TrainStep"):
        syncer_worker(SCRIPTED, 1).run(TrainStep(1))


def test_the_layout_is_shared_with_the_quadratic_trainer() -> None:
    assert layout_of(SCRIPTED) == layout_of(QUADRATIC)
