"""The merge: worked examples, properties of both rules, and the fast way against the slow one."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from targets.diloco import arrays, kernels
from targets.diloco.arrays import Flat, Merged, Outer, Rule

PLAIN = Outer(lr=1.0, momentum=0.0)
"""With it ``prev - theta`` is the outer gradient."""

MERGERS = [pytest.param(arrays.merge_slow, id="slow"), pytest.param(kernels.merge, id="kernels")]
RULES: list[Rule] = ["avg", "rda"]
both = pytest.mark.parametrize("merge", MERGERS)
each_rule = pytest.mark.parametrize("rule", RULES)


def vector(*values: float) -> Flat:
    return np.array(values, dtype=np.float32)


class Case(NamedTuple):
    """Inputs of a merge."""

    prev: Flat
    buf: Flat
    thetas: list[Flat]
    weights: list[float]
    sizes: list[int]

    def by(self, merge: arrays.Merger, *rules: Rule) -> Merged:
        """Merged with the usual outer optimizer; one rule stands for all tensors."""
        each = rules if len(rules) > 1 else rules * len(self.sizes)
        return merge(self.prev, self.buf, self.thetas, self.weights, self.sizes, each, Outer())


def case(seed: int, learners: int, sizes: Sequence[int], spread: float = 0.01) -> Case:
    """Random inputs whose deltas have elements of size ``spread``."""
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    prev = rng.standard_normal(count, dtype=np.float32)
    buf = rng.standard_normal(count, dtype=np.float32)
    noise = [rng.standard_normal(count, dtype=np.float32) for _ in range(learners)]
    thetas = [prev + np.float32(spread) * n for n in noise]
    return Case(prev, buf, thetas, list(rng.uniform(1, 9, learners)), list(sizes))


def gradient(
    merge: arrays.Merger,
    deltas: Sequence[Flat],
    weights: Sequence[float],
    rule: Rule,
    sizes: Sequence[int] | None = None,
) -> Flat:
    """The outer gradient of ``deltas``: merge around zero, so that nothing is rounded away."""
    zero = np.zeros_like(deltas[0])
    sizes = sizes or [zero.size]
    thetas = [-delta for delta in deltas]
    return -merge(zero, zero, thetas, weights, sizes, [rule] * len(sizes), PLAIN).theta


def close(a: Flat, b: Flat, tolerance: float = 1e-6) -> bool:
    scale = float(np.linalg.norm(b)) or 1.0
    return float(np.linalg.norm(a.astype(np.float64) - b)) <= tolerance * scale


# --- worked examples ----------------------------------------------------------------------------


@both
def test_average_is_weighted(merge: arrays.Merger) -> None:
    got = gradient(merge, [vector(4, 0), vector(0, 8)], [3, 1], "avg")
    np.testing.assert_allclose(got, [3, 2], rtol=1e-6)


@both
def test_rda_keeps_the_length_of_orthogonal_deltas(merge: arrays.Merger) -> None:
    """Averaging shrinks two orthogonal deltas of length 5 to 5 / sqrt(2); RDA does not."""
    deltas = [vector(5, 0), vector(0, 5)]
    assert np.linalg.norm(gradient(merge, deltas, [1, 1], "rda")) == pytest.approx(5)
    assert np.linalg.norm(gradient(merge, deltas, [1, 1], "avg")) == pytest.approx(5 / 2**0.5)


@both
def test_rda_by_hand(merge: arrays.Merger) -> None:
    """Norms 5 and 13, weights 3 and 1: radius 7, direction along 3 * (.6, .8) + (5, 12) / 13."""
    direction = np.array([1.8 + 5 / 13, 2.4 + 12 / 13])
    want = 7 * direction / np.linalg.norm(direction)
    got = gradient(merge, [vector(3, 4), vector(5, 12)], [3, 1], "rda")
    np.testing.assert_allclose(got, want, rtol=1e-6)


@both
def test_the_radial_factor_weighs_the_norms(merge: arrays.Merger) -> None:
    """As printed in the paper the factor would be a vector; with parallel deltas of lengths 1
    and 4 and weights 3 and 1 the corrected one is 7 / 4."""
    got = gradient(merge, [vector(1, 0), vector(4, 0)], [3, 1], "rda")
    np.testing.assert_allclose(got, [7 / 4, 0], rtol=1e-6)


@both
def test_norms_are_per_tensor(merge: arrays.Merger) -> None:
    deltas = [vector(1, 0, 100, 0), vector(0, 1, 0, 100)]
    got = gradient(merge, deltas, [1, 1], "rda", sizes=[2, 2])
    assert np.linalg.norm(got[:2]) == pytest.approx(1)
    assert np.linalg.norm(got[2:]) == pytest.approx(100)


@both
def test_rules_are_per_tensor(merge: arrays.Merger) -> None:
    deltas = [vector(1, 0, 1, 0), vector(0, 1, 0, 1)]
    zero = np.zeros(4, np.float32)
    thetas = [-d for d in deltas]
    got = -merge(zero, zero, thetas, [1, 1], [2, 2], ["avg", "rda"], PLAIN).theta
    np.testing.assert_allclose(got, [0.5, 0.5, 0.5**0.5, 0.5**0.5], rtol=1e-6)


@both
def test_a_zero_delta_has_no_direction_but_counts(merge: arrays.Merger) -> None:
    got = gradient(merge, [vector(0, 0), vector(0, 4)], [1, 1], "rda")
    np.testing.assert_allclose(got, [0, 2], rtol=1e-6)


@both
@each_rule
@pytest.mark.parametrize("deltas", [[(0, 0), (0, 0)], [(1, -2), (-1, 2)]], ids=["zero", "cancel"])
def test_without_any_direction_nothing_moves(
    merge: arrays.Merger, rule: Rule, deltas: list[tuple[float, float]]
) -> None:
    got = gradient(merge, [vector(*d) for d in deltas], [1, 1], rule)
    np.testing.assert_array_equal(got, [0, 0])


@both
def test_nesterov_by_hand(merge: arrays.Merger) -> None:
    """Two steps with D = 1, mu = 0.5, lr = 0.1: buf 1, 1.5; steps 0.1 * (1 + 0.5 * buf)."""
    theta, buf, outer = vector(1.0), vector(0.0), Outer(lr=0.1, momentum=0.5)
    for want_buf, moved in ((1.0, 0.15), (1.5, 0.175)):
        before = theta
        result = merge(theta, buf, [theta - 1], [1], [1], ["avg"], outer)
        theta, buf = result.theta, result.buf
        assert buf[0] == pytest.approx(want_buf)
        assert before[0] - theta[0] == pytest.approx(moved, rel=1e-6)


@both
def test_plain_averaging_of_weights_is_outer_sgd_with_rate_one(merge: arrays.Merger) -> None:
    prev, buf, thetas, weights, sizes = case(1, 3, [7])
    got = merge(prev, buf, thetas, weights, sizes, ["avg"], PLAIN).theta
    want = np.average(np.array(thetas, dtype=np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


# --- properties ---------------------------------------------------------------------------------

elements = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
weights_st = st.floats(0.1, 1e6)


@st.composite
def learners(draw: st.DrawFn, least: int = 1) -> tuple[list[Flat], list[float]]:
    """(deltas, weights) of one tensor."""
    count = draw(st.integers(least, 10))
    size = draw(st.integers(1, 6))
    deltas = [vector(*draw(st.tuples(*[elements] * size))) for _ in range(count)]
    return deltas, [draw(weights_st) for _ in range(count)]


def slow(deltas: Sequence[Flat], weights: Sequence[float], rule: Rule) -> Flat:
    return gradient(arrays.merge_slow, deltas, weights, rule)


def steady(deltas: Sequence[Flat], weights: Sequence[float], rule: Rule) -> bool:
    """Whether rounding cannot decide the direction (deltas that nearly cancel)."""
    total = sum(weights)
    norms = [float(np.linalg.norm(d)) for d in deltas]
    if rule == "avg":
        return True
    u = sum(w / total * d / n for w, d, n in zip(weights, deltas, norms, strict=True) if n)
    return all(norms) and float(np.linalg.norm(u)) > 1e-3


@each_rule
@given(data=st.data())
def test_the_order_of_learners_does_not_matter(rule: Rule, data: st.DataObject) -> None:
    """Mathematically; the last bit may differ, hence the sorting by name before a merge."""
    deltas, weights = data.draw(learners(least=2))
    order = data.draw(st.permutations(range(len(deltas))))
    if steady(deltas, weights, rule):
        shuffled = slow([deltas[i] for i in order], [weights[i] for i in order], rule)
        scale = max(float(np.linalg.norm(d)) for d in deltas)
        assert np.linalg.norm(shuffled - slow(deltas, weights, rule)) <= 1e-5 * scale


@each_rule
@given(drawn=learners(), exponent=st.integers(-8, 8))
def test_scaling_weights_changes_nothing(
    rule: Rule, drawn: tuple[list[Flat], list[float]], exponent: int
) -> None:
    deltas, weights = drawn
    scaled = [w * 2.0**exponent for w in weights]
    np.testing.assert_array_equal(slow(deltas, scaled, rule), slow(deltas, weights, rule))


@each_rule
@given(drawn=learners(), exponent=st.integers(-6, 6))
def test_scaling_deltas_scales_the_gradient(
    rule: Rule, drawn: tuple[list[Flat], list[float]], exponent: int
) -> None:
    deltas, weights = drawn
    factor = np.float32(2.0**exponent)
    got = slow([factor * d for d in deltas], weights, rule)
    np.testing.assert_allclose(got, factor * slow(deltas, weights, rule), rtol=1e-6)


@each_rule
@given(drawn=learners())
def test_a_single_learner_is_taken_as_it_is(
    rule: Rule, drawn: tuple[list[Flat], list[float]]
) -> None:
    delta, weight = drawn[0][0], drawn[1][0]
    np.testing.assert_allclose(slow([delta], [weight], rule), delta, rtol=1e-6)


@each_rule
@given(drawn=learners())
def test_equal_deltas_are_taken_as_they_are(
    rule: Rule, drawn: tuple[list[Flat], list[float]]
) -> None:
    deltas, weights = drawn
    got = slow([deltas[0]] * len(weights), weights, rule)
    np.testing.assert_allclose(got, deltas[0], rtol=1e-5)


@given(drawn=learners())
def test_the_rda_gradient_is_as_long_as_the_deltas_are_on_average(
    drawn: tuple[list[Flat], list[float]],
) -> None:
    deltas, weights = drawn
    if steady(deltas, weights, "rda"):
        mean = np.average([np.linalg.norm(d) for d in deltas], weights=weights)
        assert np.linalg.norm(slow(deltas, weights, "rda")) == pytest.approx(mean, rel=1e-5)


@given(drawn=learners())
def test_averages_stay_between_the_deltas(drawn: tuple[list[Flat], list[float]]) -> None:
    deltas, weights = drawn
    got = slow(deltas, weights, "avg")
    slack = 1e-5 * np.abs(deltas).max()
    assert (got >= np.min(deltas, axis=0) - slack).all()
    assert (got <= np.max(deltas, axis=0) + slack).all()


# --- the fast way -------------------------------------------------------------------------------

SIZES = [
    pytest.param([1], id="one-element"),
    pytest.param([5, 1, 3], id="tiny"),
    pytest.param([kernels.CHUNK, kernels.CHUNK + 1, 7, 3 * kernels.CHUNK - 1], id="chunk-edges"),
]


@each_rule
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("learners", [1, 2, 8, 9, 17])
def test_fast_equals_slow(rule: Rule, sizes: list[int], learners: int) -> None:
    inputs = case(3, learners, sizes)
    slowly, fast = inputs.by(arrays.merge_slow, rule), inputs.by(kernels.merge, rule)
    assert close(fast.theta, slowly.theta)
    assert close(fast.buf, slowly.buf)
    np.testing.assert_allclose(fast.norms, slowly.norms, rtol=1e-6)
    assert fast.finite
    assert slowly.finite


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 11), spread=st.floats(1e-4, 10))
def test_fast_equals_slow_on_anything(seed: int, count: int, spread: float) -> None:
    inputs = case(seed, count, [3, 50, 11], spread)
    fast = inputs.by(kernels.merge, "avg", "rda", "rda")
    slowly = inputs.by(arrays.merge_slow, "avg", "rda", "rda")
    assert close(fast.theta, slowly.theta, 1e-5)
    assert close(fast.buf, slowly.buf, 1e-5)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    inputs = case(5, 9, [200_000, 3, 90_001])
    results: list[Merged] = []
    most = numba.get_num_threads()
    try:
        for threads in range(1, most + 1):
            numba.set_num_threads(threads)
            results.append(inputs.by(kernels.merge, "rda", "avg", "rda"))
    finally:
        numba.set_num_threads(most)
    assert len({r.theta.tobytes() for r in results}) == 1
    assert len({r.buf.tobytes() for r in results}) == 1
    if most == 1:
        pytest.skip("this machine has one thread: nothing to compare")


@both
def test_repeating_a_merge_repeats_its_bits(merge: arrays.Merger) -> None:
    inputs = case(6, 5, [40_000])
    first, again = inputs.by(merge, "rda"), inputs.by(merge, "rda")
    assert first.theta.tobytes() == again.theta.tobytes()
    assert first.buf.tobytes() == again.buf.tobytes()


@both
def test_inputs_stay_as_they_were_and_out_is_used(merge: arrays.Merger) -> None:
    prev, buf, thetas, weights, sizes = case(7, 3, [50])
    inputs = [a.copy() for a in (prev, buf, *thetas)]
    for array in (prev, buf, *thetas):
        array.flags.writeable = False  # as buffers that came over the wire are
    out = (np.full(50, np.nan, np.float32), np.full(50, np.nan, np.float32))
    result = merge(prev, buf, thetas, weights, sizes, ["rda"], Outer(), out)
    assert (result.theta is out[0], result.buf is out[1]) == (True, True)
    for before, after in zip(inputs, (prev, buf, *thetas), strict=True):
        np.testing.assert_array_equal(before, after)


# --- what is not finite -------------------------------------------------------------------------


@both
@each_rule
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 40_000, -1])
def test_a_poisoned_input_shows_in_its_norm_and_in_finite(
    merge: arrays.Merger, rule: Rule, value: float, where: int
) -> None:
    inputs = case(8, 3, [70_000, 5])
    inputs.thetas[1][where] = value
    result = inputs.by(merge, rule)
    sound = np.isfinite(result.norms).all(axis=1)
    assert sound.tolist() == [True, False, True]
    assert not result.finite


@both
@each_rule
def test_the_longest_delta_that_counts_is_measured(merge: arrays.Merger, rule: Rule) -> None:
    long = np.zeros(5000, np.float32)
    long[77] = 0.9 * arrays.NORM_MAX
    result = merge(np.zeros_like(long), long * 0, [long], [1], [5000], [rule], Outer())
    assert result.norms[0, 0] == pytest.approx(0.9 * arrays.NORM_MAX, rel=1e-6)
    assert result.finite


@both
def test_an_overflowing_result_is_not_finite(merge: arrays.Merger) -> None:
    prev, big = vector(0, 0), vector(3e38, 0)
    result = merge(prev, big, [prev], [1], [2], ["avg"], Outer(lr=9.0, momentum=1.0))
    assert not result.finite


@pytest.mark.parametrize(("values", "sound"), [((1, 3e38), True), ((1, math.inf), False)])
def test_finite(values: tuple[float, float], sound: bool) -> None:
    assert arrays.finite(vector(*values)) is sound
    assert arrays.finite(np.concatenate([np.zeros(9999, np.float32), vector(*values)])) is sound


# --- mistakes -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"thetas": []}, "0 fragments with 2 weights"),
        ({"weights": [1.0]}, "2 fragments with 1 weights"),
        ({"weights": [0.0, 0.0]}, "not all zero"),
        ({"weights": [1.0, -1.0]}, "not negative"),
        ({"weights": [1.0, math.nan]}, "finite"),
        ({"sizes": [3]}, "a fragment of 3 float32 elements is needed"),
        ({"prev": np.zeros(2)}, "float64"),
        ({"rules": []}, "1 tensors with 0 rules"),
    ],
)
def test_what_does_not_fit_is_refused(
    merge: arrays.Merger, changed: dict[str, Any], match: str
) -> None:
    zero = vector(0, 0)
    sound: dict[str, Any] = {
        "prev": zero, "buf": zero, "thetas": [zero, zero], "weights": [1.0, 1.0],
        "sizes": [2], "rules": ["rda"], "outer": Outer(),
    }  # fmt: skip
    merge(**sound)
    with pytest.raises(ValueError, match=match):
        merge(**(sound | changed))


# --- the choice between the two -----------------------------------------------------------------


def test_size_decides_unless_the_variable_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(arrays.BACKEND_VARIABLE, raising=False)
    assert arrays.backend(arrays.NUMBA_ELEMENTS_MIN - 1) == "numpy"
    assert arrays.backend(arrays.NUMBA_ELEMENTS_MIN) == "numba"
    monkeypatch.setenv(arrays.BACKEND_VARIABLE, "numba")
    assert arrays.backend(1) == "numba"
    monkeypatch.setenv(arrays.BACKEND_VARIABLE, "numpy")
    assert arrays.backend(10**9) == "numpy"
    monkeypatch.setenv(arrays.BACKEND_VARIABLE, "fortran")
    with pytest.raises(ValueError, match="is 'fortran', must be auto, numpy or numba"):
        arrays.backend(1)


def test_without_numba_the_slow_way_is_only_for_whoever_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    import targets.diloco

    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "targets.diloco.kernels")
    monkeypatch.delattr(targets.diloco, "kernels")
    assert arrays.merger("numpy") is arrays.merge_slow
    with pytest.raises(ImportError, match="set DILOCO_CHAOS_MERGE=numpy"):
        arrays.merger("numba")
    monkeypatch.undo()
    assert arrays.merger("numba") is importlib.import_module("targets.diloco.kernels").merge
