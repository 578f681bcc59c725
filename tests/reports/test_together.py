"""Suites judged: ratios of the first run to the best of the others, and the worst exit status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.journal import JournalText
from reports.build import analyse
from reports.compare import as_html, as_text, compare
from reports.history import fold
from reports.schema import Report
from reports.together import exit_status, judge_together
from tests.reports import hand

change = msgspec.structs.replace


def report(ratio: float | None = 0.9, status: int = 0, **network: Any) -> Report:
    made = analyse(fold(JournalText(tuple(hand.journal()), (), ()))).report
    return change(
        made,
        goodput=change(made.goodput, ratio=ratio),
        verdict=change(made.verdict, exit_status=status),
        network=change(made.network, **network),
    )


def test_the_first_is_held_against_the_best_of_the_others() -> None:
    (row,) = judge_together({"goodput_ratio_min": 3.2}, [report(0.9), report(0.2), report(0.3)])
    assert row.value == pytest.approx(3.0)
    assert not row.ok


def test_a_bound_that_is_met() -> None:
    (row,) = judge_together({"goodput_ratio_min": 3.2}, [report(0.9), report(0.25)])
    assert row.ok


@pytest.mark.parametrize("other", [None, 0.0])
def test_what_cannot_be_divided_is_unknown_and_never_ok(other: float | None) -> None:
    rows = judge_together({"goodput_ratio_min": 1.0}, [report(0.9), report(other)])
    assert (rows[0].value, rows[0].ok) == (None, False)
    assert exit_status([report(), report()], rows) == 3


def test_fewer_bytes_are_better() -> None:
    runs = [report(bytes_per_step=10.0), report(bytes_per_step=700.0)]
    (row,) = judge_together({"bytes_ratio_min": 70}, runs)
    assert (row.value, row.ok) == (70.0, True)


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [((0, 0), 0), ((0, 3), 3), ((3, 1), 1), ((1, 4), 4), ((4, 130), 130), ((143, 0), 143)],
)
def test_the_worst_status_counts(statuses: tuple[int, int], worst: int) -> None:
    assert exit_status([report(status=status) for status in statuses], []) == worst


def test_a_missed_bound_is_a_failure() -> None:
    runs = [report(0.9), report(0.9)]
    assert exit_status(runs, judge_together({"goodput_ratio_min": 2}, runs)) == 1


def test_the_page_and_the_text_show_the_bounds() -> None:
    runs = [report(0.9), report(0.25)]
    gates = judge_together({"goodput_ratio_min": 3.2, "loss_ratio_max": 0.5}, runs)
    comparison = compare(runs[0], runs[1], together=True)
    page = as_html(comparison, title="The <suite>", gates=gates).decode()
    assert "The &lt;suite&gt;" in page
    assert "×3.60 (at least ×3.2)" in page
    said = as_text(comparison, gates)
    assert "gate goodput_ratio_min: ×3.60 (at least ×3.2), met" in said
    assert "gate loss_ratio_max: ×1.00 (at most ×0.5), not met" in said


def test_different_experiments_of_one_suite_are_no_warning() -> None:
    one = report()
    other = change(one, run=change(one.run, experiment="another"))
    assert any("different experiments" in w for w in compare(one, other).warnings)
    assert not any(
        "different experiments" in w for w in compare(one, other, together=True).warnings
    )


def learned(first: float, final: float, *, ended_finite: bool = True) -> Report:
    made = report()
    quality = change(
        made.quality,
        first_loss=first,
        final_loss=final,
        held_out=True,
        ended_finite=ended_finite,
    )
    return change(made, quality=quality)


@pytest.mark.parametrize(
    ("first", "other", "value"),
    [
        (learned(4, 2), learned(4, 2), 1.0),
        (learned(4, 40), learned(4, 2), 20.0),
        (learned(4, 40), learned(4, 40), None),
        (learned(4, 2, ended_finite=False), learned(4, 2), None),
        (learned(4, 2), learned(4, 2, ended_finite=False), None),
    ],
)
def test_a_ratio_to_what_diverged_is_unknown(
    first: Report, other: Report, value: float | None
) -> None:
    (row,) = judge_together({"loss_ratio_max": 1.5}, [first, other])
    assert (row.value, row.ok) == (value, value == 1.0)
