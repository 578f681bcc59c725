"""Finite nonsense is refused by name, and honest growth is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.diloco.outliers import LEARNED_MIN, RATIO_MAX, UsualNorm


def learnt(norm: float, times: int = LEARNED_MIN) -> UsualNorm:
    usual = UsualNorm()
    for _ in range(times):
        usual.learn(np.array([[norm, 0.0]]))
    return usual


def test_a_thousandfold_update_is_named() -> None:
    assert learnt(2.0).objection(np.array([0.0, 2000.0])) == (
        "outlier: the delta's norm is 1000 times the usual one"
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


def test_a_refused_update_teaches_nothing() -> None:
    usual = learnt(1.0)
    for _ in range(100):
        assert usual.objection(np.array([1000.0])).startswith("outlier")
