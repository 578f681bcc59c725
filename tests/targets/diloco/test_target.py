"""The DiLoCo target: bad parameters all at once, and what it consists of."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

import targets
from harness.errors import SpecError
from harness.events import Contribution, Merged, Step
from targets.base import Started, Work
from targets.diloco.messages import Merge, MergeInput, Read, ReadAll, Restore
from targets.diloco.target import create, params_schema, read_params

QUADRATIC = {"trainer": "quadratic", "fragments": 4, "sync_every": 8, "learners": 3}


def problems(**params: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_params(params)
    return list(caught.value.problems)


# --- parameters ---------------------------------------------------------------------------------


def test_every_mistake_is_in_one_error() -> None:
    found = problems(
        quorom=1, learners="four", batch=0, speeds=[1, "x"], step_time_s=math.inf,
        trainer="quadratic", fragments=99, sync_every=50, silence_ms_max=100, nonsense=1,
    )  # fmt: skip
    starts = [
        "quorom: unknown parameter (did you mean quorum?)",
        "nonsense: unknown parameter (known: preset, learners, ",
        "learners: Input should be a valid integer, not 'four'",
        "step_time_s: Input should be a finite number, not inf",
        "speeds[1]: Input should be a valid number, not 'x'",
        "batch: Input should be greater than or equal to 1, not 0",
        "fragments is 99 but sync_every is 50",
        "silence_ms_max is 100 but heartbeat_ms is 250",
        "fragments is 99 but the model has only 49 tensors",
    ]
    assert len(found) == len(starts)
    for text, start in zip(found, starts, strict=True):
        assert text.startswith(start), text


@pytest.mark.parametrize(
    ("params", "start"),
    [
        ({"trainer": "gpt"}, "trainer: Input should be 'lm', 'quadratic' or 'scripted'"),
        ({"learners": 0}, "learners: "),
        ({"learners": True}, "learners: Input should be a valid integer"),
        ({"learners": 2.5}, "learners: Input should be a valid integer"),
        ({"learners": None}, "learners: "),
        ({"grace": 1}, "grace: Input should be a valid boolean"),
        ({"outer_lr": "0.7"}, "outer_lr: Input should be a valid number"),
        ({"outer_lr": math.nan}, "outer_lr: "),
        ({"speeds": 1.0}, "speeds: "),
        ({"groups": {"a": 1}}, "groups: "),
        ({"step_time_s": object()}, "step_time_s: "),
        ({"quorum": 5}, "quorum is 5 but there are only 4 learners"),
        ({"speeds": [1.0]}, "speeds has 1 entries for 4 learners"),
        ({"fragments": 30, "sync_every": 30, "scripted_elements": 20}, "fragments is 30 but the"),
    ],
)
def test_a_single_mistake_is_reported_once(params: dict[str, Any], start: str) -> None:
    found = problems(**{"trainer": "scripted", **params})
    assert len(found) == 1
    assert found[0].startswith(start)


def test_a_rule_over_a_wrong_field_is_not_reported_beside_it() -> None:
    assert len(problems(trainer="scripted", learners="two", quorum=5)) == 1


@pytest.mark.parametrize("data", ["missing", "empty"])
def test_a_corpus_that_is_not_there_or_empty_is_named(data: str, tmp_path: Any) -> None:
    path = tmp_path / data
    if data == "empty":
        path.mkdir()
    found = problems(trainer="lm", data=str(path), quorum=99)
    assert len(found) == 2
    assert str(path) in found[1]


def test_defaults_are_filled_in_and_plain() -> None:
    target = create({**QUADRATIC, "speeds": [1, 1, 0.5], "outer_lr": 1}, seed=1)
    assert target.params["speeds"] == [1.0, 1.0, 0.5]
    assert target.params["quorum"] == 1
    assert json.loads(json.dumps(target.params)) == target.params
    assert create(target.params, seed=1).checked == target.checked


def test_the_schema_names_every_parameter_and_no_other() -> None:
    schema = params_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(create(QUADRATIC, 1).params)
    assert schema["properties"]["learners"]["minimum"] == 1


def test_links_between_learners_are_few_and_only_there_for_recovery() -> None:
    def links(**own: Any) -> list[tuple[str, ...]]:
        return [u.links[1:] for u in create({**QUADRATIC, **own}, 1).units()[1:]]

    assert {len(found) for found in links(learners=8)} == {3}
    assert links(learners=2) == [("learner-1",), ("learner-0",)]
    assert links(learners=1) == [()]
    assert links(learners=3, recovery="syncer") == [(), (), ()]


# --- what it consists of ------------------------------------------------------------------------


def test_units_come_syncer_first_and_learners_dial_it() -> None:
    params = {**QUADRATIC, "speeds": [1, 2, 1], "groups": ["a", "b", "b"], "batches": [1, 2, 3]}
    syncer, *learners = create(params, 1).units()
    assert (syncer.name, syncer.info.role, syncer.links) == ("syncer", "syncer", ())
    assert [u.name for u in learners] == ["learner-0", "learner-1", "learner-2"]
    assert [u.links for u in learners] == [
        ("syncer", "learner-1", "learner-2"),
        ("syncer", "learner-2", "learner-0"),
        ("syncer", "learner-0", "learner-1"),
    ]
    assert all(u.on_demand == frozenset(u.links[1:]) for u in learners)
    assert [u.info.group for u in learners] == ["a", "b", "b"]
    assert [u.info.step_time_ns for u in learners] == [100_000_000, 50_000_000, 100_000_000]
    assert [u.info.tokens_per_step for u in learners] == [64, 128, 192]


def test_fragments_are_the_layouts() -> None:
    target = create(QUADRATIC, 1)
    assert len(target.fragments()) == 4
    assert sum(target.fragments()) == 4096
    assert target.module() == "targets.diloco.serve"
    assert targets.load("diloco") is create


@pytest.mark.parametrize("trainer", ["quadratic", "scripted"])
def test_nodes_and_workers_of_every_unit(trainer: str) -> None:
    target = create({**QUADRATIC, "trainer": trainer}, 1)
    for spec in target.units():
        effects = target.node(spec.name).handle(Started(1), 0)
        assert isinstance(effects, list)
        assert target.worker(spec.name) is not target.worker(spec.name)
    for make in (target.node, target.worker):
        with pytest.raises(KeyError, match="learner-3 is no unit"):
            make("learner-3")


def test_a_restarted_syncer_asks_its_worker_for_the_saved_versions() -> None:
    node = create(QUADRATIC, 1).node("syncer")
    saved = {"fragment/1": {"version": 2, "clock": 9, "merged": {}}}
    effects = node.handle(Started(2, saved), 0)
    assert [e.job for e in effects if isinstance(e, Work)] == [Restore((0, 2, 0, 0))]


@pytest.mark.parametrize("trainer", ["quadratic", "scripted"])
def test_the_simulated_disk_outlives_the_syncers_worker(trainer: str) -> None:
    target = create({**QUADRATIC, "trainer": trainer}, 1)
    first = target.worker("syncer")
    payload = first.run(ReadAll("x")).payloads[1]
    merged = first.run(Merge(1, 1, 1, (MergeInput("learner-0", 1.0, payload),)))
    later = target.worker("syncer")
    later.run(Restore((0, 1, 0, 0)))
    assert later.run(ReadAll("x")).payloads[1] == merged.payload


def test_another_run_starts_from_the_seeds_own_parameters() -> None:
    digests = [
        create(QUADRATIC, seed).worker("syncer").run(ReadAll("x")).payloads[0].digest
        for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]
    layouts = {create(QUADRATIC, seed).layout_digest for seed in (1, 1, 2)}
    assert len(layouts) == 2


def test_lives_of_a_learner_see_different_data() -> None:
    from targets.diloco.messages import LoadAll, TrainStep

    def after_a_step(worker: Any) -> str:
        worker.run(LoadAll(state.payloads))
        worker.run(TrainStep(1))
        digest: str = worker.run(Read(1, 0)).digest
        return digest

    target, again = create(QUADRATIC, 1), create(QUADRATIC, 1)
    state = target.worker("syncer").run(ReadAll("x"))
    lives = [after_a_step(target.worker("learner-0")) for _ in range(2)]
    assert lives[0] != lives[1]
    assert lives == [after_a_step(again.worker("learner-0")) for _ in range(2)]


def test_composing_a_target_imports_no_accelerator_library() -> None:
    code = """
import sys
from targets.diloco.target import create
for trainer in ("lm", "quadratic", "scripted"):
    target = create({"trainer": trainer, "fragments": 4}, 1)
    target.units(), target.fragments(), target.steady()
assert not {"jax", "flax", "optax", "numba", "grpc"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- steady state -------------------------------------------------------------------------------


def merge_of(fragment: int, *units: str) -> Merged:
    parts = tuple(
        Contribution(
            unit=u, incarnation=1, since_step=0, step=1, c_steps=1, c_tokens=1, weight=1.0,
            base_version=0, base_clock=0,
        )
        for u in units
    )  # fmt: skip
    return Merged(
        t_ns=1, unit="syncer", incarnation=1, clock=1, fragment=fragment, version=1, quorum=1,
        contributions=parts,
    )  # fmt: skip


def test_steady_is_everybody_in_every_fragment() -> None:
    steady = create({**QUADRATIC, "learners": 2, "fragments": 2}, 1).steady()
    both = ("learner-0", "learner-1")
    assert steady.verdict() == (
        False,
        "learners not yet merged into every fragment (how many lack): learner-0 (2), learner-1 (2)",
    )
    steady.observe(merge_of(0, *both))
    steady.observe(merge_of(0, *both))
    steady.observe(merge_of(1, "learner-0", "learner-9"))
    step = Step(t_ns=1, unit="learner-1", incarnation=1, step=1, began_at_ns=0, tokens=1)
    steady.observe(step)
    reached, why = steady.verdict()
    assert not reached
    assert why.endswith(": learner-1 (1)")
    steady.observe(merge_of(1, "learner-1"))
    assert steady.verdict()[0]


def test_more_experts_chosen_than_there_are_is_a_mistake() -> None:
    assert problems(form="moe", experts=2, experts_chosen=3) == [
        "experts_chosen is 3 but there are only 2 experts"
    ]


def test_error_feedback_needs_changes_to_feed_back() -> None:
    (said,) = problems(error_feedback=True)
    assert said.startswith("error_feedback has nothing to feed back")
