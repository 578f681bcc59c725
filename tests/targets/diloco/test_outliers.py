"""Finite nonsense is refused by name, and honest growth is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.diloco import codec, trainers
from targets.diloco.messages import Merge, MergeInput
from targets.diloco.outliers import LEARNED_MIN, RATIO_MAX, UsualNorm
from targets.diloco.params import DilocoParams
from targets.diloco.work import SyncerWorker, layout_of


def learnt(norm: float, times: int = LEARNED_MIN) -> UsualNorm:
    usual = UsualNorm()
    for _ in range(times):
        usual.learn(np.array([[norm, 0.0]]))
    return usual


def test_a_thousandfold_update_is_named() -> None:
    assert learnt(2.0).objection(np.array([0.0, 2000.0])) == (
        "outlier: the delta's norm is 1000 times the largest usual one"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e18])
def test_what_is_no_number_is_refused_from_the_start(bad: float) -> None:
    assert UsualNorm().objection(np.array([1.0, bad])).startswith("non-finite: ")


def test_the_first_updates_teach_and_are_not_judged() -> None:
    usual = learnt(1e-3, LEARNED_MIN - 1)
    assert usual.objection(np.array([1e6])) == ""
    usual.learn(np.array([[1e-3]]))
    assert usual.objection(np.array([1e6])).startswith("outlier")


def test_nothing_usual_means_no_bound() -> None:
    assert learnt(0.0, 50).objection(np.array([5.0])) == ""


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.floats(1.0, RATIO_MAX * 0.99))
def test_growth_within_the_bound_is_honest(start: list[float], factor: float) -> None:
    usual = learnt(start[0], 2 * LEARNED_MIN)
    assert usual.objection(np.array([start[0] * factor])) == ""


def test_converging_does_not_make_a_newcomer_an_outlier() -> None:
    # Found by fuzzing: with a quorum of all learners, such a refusal stops every merge for ever.
    usual = learnt(1.0)
    for power in range(60):
        usual.learn(np.array([[0.5**power]]))
    assert usual.objection(np.array([2.0])) == ""
    assert usual.objection(np.array([1000.0])).startswith("outlier")


def test_a_refused_update_teaches_nothing() -> None:
    usual = learnt(1.0)
    for _ in range(100):
        assert usual.objection(np.array([1000.0])).startswith("outlier")


@pytest.mark.parametrize(("quorum", "refused"), [(1, {"b"}), (2, {"b"}), (3, set())])
def test_an_outlier_is_refused_while_enough_others_are_left(quorum: int, refused: set[str]) -> None:
    params = DilocoParams(learners=3, quorum=quorum, trainer="quadratic", fragments=1, sync_every=4)
    module = trainers.load("quadratic")
    layout = layout_of(params)
    worker = SyncerWorker(layout, params, module.initial(params, 1), backend="numpy")
    start = layout.split(module.initial(params, 1))[0]

    def entry(unit: str, change: float) -> MergeInput:
        flat = np.concatenate([a.ravel() for a in start]) + np.float32(change)
        return MergeInput(unit, 1.0, codec.pack([flat], "f32"))

    for version in range(1, LEARNED_MIN + 1):
        worker.run(Merge(version, 0, version, tuple(entry(u, 0.01) for u in "abc")))
    last = Merge(99, 0, LEARNED_MIN + 1, (entry("a", 0.01), entry("b", 500.0), entry("c", 0.01)))
    result = worker.run(last)
    assert set(result.poisoned) == refused
    assert result.payload is not None
