"""Several seeds of a suite: all read off at one number of tokens, gaps taken seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from reports.schema import QualityPoint, Report
from reports.spread import Compared, Range, as_text, spread
from tests.reports.test_together import report

change = msgspec.structs.replace

Curve = Sequence[tuple[int, float]]


def run(
    curve: Curve, *, trained: int = 1, outcome: str = "passed", ended_finite: bool = True
) -> Report:
    made = report(0.9)
    points = [
        QualityPoint(tokens=t, tokens_trained=t * trained, loss=loss, accuracy=1 / loss)
        for t, loss in curve
    ]
    return change(
        made,
        quality=change(made.quality, curve=points, ended_finite=ended_finite),
        verdict=change(made.verdict, outcome=outcome),
    )


def two(first: Mapping[int, Curve], second: Mapping[int, Curve]) -> dict[int, dict[str, Report]]:
    return {seed: {"a": run(first[seed]), "b": run(second[seed])} for seed in first}


def test_all_arms_and_seeds_are_read_off_at_the_largest_common_number() -> None:
    runs = two(
        {1: [(0, 4.0), (100, 2.0)], 2: [(0, 4.0), (200, 2.0)]},
        {1: [(0, 4.0), (100, 2.0)], 2: [(0, 4.0), (80, 2.4)]},
    )
    found = spread("t", ["a", "b"], runs)
    assert found.tokens == 80
    a, b = found.arms
    assert a.loss is not None
    assert a.loss.mean == pytest.approx(2.8)
    assert b.loss is not None
    assert b.loss.mean == pytest.approx(2.4)
    assert a.gap is None
    # Seed by seed: none for seed 1, a quarter less for seed 2.
    assert b.gap is not None
    assert b.gap.low == pytest.approx(-0.25)
    assert b.gap.high == pytest.approx(0)
    assert b.gap.mean == pytest.approx(-0.125)


def test_by_trained_tokens_what_was_hardly_merged_is_compared_at_equal_work() -> None:
    runs = {
        1: {
            "a": run([(50, 3.0), (100, 2.0)], trained=1),
            "b": run([(5, 3.5), (10, 3.0)], trained=10),
        }
    }
    assert spread("t", ["a", "b"], runs).tokens is None
    found = spread("t", ["a", "b"], runs, by="trained")
    assert found.tokens == 100
    assert found.arms[1].gap == Range(0.5, 0.5, 0.5)


def test_an_arm_without_evaluations_leaves_everything_unknown() -> None:
    found = spread("t", ["a", "b"], two({1: [(10, 2.0)]}, {1: []}), bounds={"b": 0.5})
    assert found.tokens is None
    assert found.arms[0].loss is None
    assert not found.arms[1].ok
    assert "unknown" in as_text(found)


@pytest.mark.parametrize(("bound", "ok", "said"), [(0.5, True, "met"), (0.4, False, "MISSED")])
def test_a_bound_is_of_the_mean_gap(bound: float, ok: bool, said: str) -> None:
    runs = two(
        {1: [(10, 2.0)], 2: [(10, 2.0)]},
        {1: [(10, 2.0)], 2: [(10, 4.0)]},
    )
    found = spread("t", ["a", "b"], runs, bounds={"b": bound})
    assert found.arms[1].gap == Range(0.5, 0.0, 1.0)
    assert found.arms[1].ok is ok
    assert said in as_text(found)


GOOD, GROWN = [(0, 4.0), (10, 2.0)], [(0, 4.0), (10, 40.0)]


@pytest.mark.parametrize(
    ("first", "second", "missed"),
    [
        (run(GROWN), run(GROWN), False),
        (run(GROWN), run(GOOD), False),
        (run(GOOD), run(GROWN), True),  # a gap to something that learned is one
        (run(GOOD, ended_finite=False), run(GOOD, ended_finite=False), False),
        (run(GOOD, ended_finite=False), run(GOOD), False),
        (run(GOOD), run(GOOD, ended_finite=False), False),
    ],
)
def test_arms_that_diverge_meet_no_bound(first: Report, second: Report, missed: bool) -> None:
    """Two that diverge alike have no gap between them."""
    runs = {1: {"a": run(GOOD), "b": run(GOOD)}, 2: {"a": first, "b": second}}
    found = spread("t", ["a", "b"], runs, bounds={"b": 0.5})
    _, b = found.arms
    assert (b.ok, b.missed) == (False, missed)
    assert ("MISSED" if missed else "unknown") in as_text(found)
    assert "the loss grew or ended as no number (seeds: 2)" in as_text(found)


def test_a_wide_bound_is_not_met_by_what_diverged() -> None:
    found = spread("t", ["a", "b"], two({1: GOOD}, {1: GROWN}), bounds={"b": 1000.0})
    _, b = found.arms
    assert b.gap == Range(19.0, 19.0, 19.0)
    assert (b.ok, b.missed) == (False, False)


def test_a_loss_that_stays_where_it_began_did_not_grow() -> None:
    flat = [(0, 4.0), (10, 4.0)]
    found = spread("t", ["a", "b"], two({1: flat}, {1: flat}), bounds={"b": 0.5})
    assert found.arms[1].ok
    assert "grew" not in as_text(found)


def test_runs_that_did_not_pass_are_named() -> None:
    runs = {1: {"a": run([(10, 2.0)]), "b": run([(10, 2.0)], outcome="deviated")}}
    found: Compared = spread("pair", ["a", "b"], runs)
    text = as_text(found)
    assert "pair, at 10 merged tokens" in text
    assert "b: 1 of 1 runs deviated" in text


def test_a_figure_that_a_seed_lacks_has_no_range() -> None:
    assert Range.of([1.0, None]) is None
    assert Range.of([]) is None
    assert Range.of([1.0, 3.0]) == Range(2.0, 1.0, 3.0)
