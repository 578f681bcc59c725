"""A suite that was run with several seeds: losses at equal tokens, with their spread.

In each group every run is read off at one number of tokens: the largest that all of them reached,
all arms and all seeds. An arm's gap is taken seed by seed against the group's first arm, which had
the same seed and so the same initial parameters and data, and then averaged. Arms that diverge
alike are close, and no success: there is no gap to a run whose loss grew or ended as no number, and
an arm of which that is true meets no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from reports.quality import Point, Value, value_at
from reports.schema import QualityPoint, Report


@dataclass(frozen=True)
class Range:
    """Mean, least and greatest of one figure over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Range | None:
        """None when any seed lacks the figure."""
        known = [v for v in values if v is not None]
        if not known or len(known) < len(values):
            return None
        return cls(fmean(known), min(known), max(known))


@dataclass(frozen=True)
class Arm:
    """One member over all seeds."""

    name: str
    loss: Range | None
    accuracy: Range | None
    gap: Range | None
    """Of the loss, against the group's first arm; None for that one."""
    bound: float | None
    """Of the mean gap."""
    goodput: Range | None
    merged_goodput: Range | None
    reduction: Range | None
    """Bytes against lockstep's."""
    last_tokens: Range | None
    """Of the last evaluations: what the budget was in fact."""
    outcomes: tuple[str, ...]
    """One per seed."""
    diverged: tuple[int, ...] = ()
    """Seeds with which the loss grew beyond the first evaluation's, or ended as no number."""

    @property
    def ok(self) -> bool:
        """Whether the bound is met; true without one."""
        sound = self.gap is not None and not self.diverged
        return self.bound is None or (sound and not self.missed)

    @property
    def missed(self) -> bool:
        """Whether the bound is known not to be met; what is neither is unknown."""
        return self.bound is not None and self.gap is not None and self.gap.mean > self.bound


@dataclass(frozen=True)
class Compared:
    """One group."""

    title: str
    by: Literal["merged", "trained"]
    tokens: int | None
    """At which everything was read off; None when nothing was reached by all."""
    arms: tuple[Arm, ...]


Runs = Mapping[int, Mapping[str, Report]]
"""Seed to arm to report."""


def spread(
    title: str,
    arms: Sequence[str],
    runs: Runs,
    *,
    by: Literal["merged", "trained"] = "merged",
    bounds: Mapping[str, float] | None = None,
) -> Compared:
    """Compare ``arms`` at equal tokens; the first one is what the others are held against."""
    curves = {
        (seed, arm): _points(found[arm].quality.curve, by)
        for seed, found in runs.items()
        for arm in arms
    }
    tokens = _common(list(curves.values()))
    values = {key: value_at(points, tokens or 0) for key, points in curves.items()}
    first = arms[0]
    grown = {
        key: _diverged(runs[key[0]][key[1]], curves[key], value) for key, value in values.items()
    }
    rows = []
    for arm in arms:
        mine = [values[seed, arm] for seed in runs]
        reports = [runs[seed][arm] for seed in runs]
        gaps = [
            None
            if grown[seed, first] or not runs[seed][arm].quality.ended_finite
            else _gap(values[seed, arm], values[seed, first])
            for seed in runs
        ]
        rows.append(
            Arm(
                name=arm,
                loss=Range.of([None if v is None else v.loss for v in mine]),
                accuracy=Range.of([None if v is None else v.accuracy for v in mine]),
                gap=None if arm == first else Range.of(gaps),
                bound=(bounds or {}).get(arm),
                goodput=Range.of([r.goodput.ratio for r in reports]),
                merged_goodput=Range.of([r.goodput.merged_ratio for r in reports]),
                reduction=Range.of([r.network.reduction_vs_lockstep for r in reports]),
                last_tokens=Range.of([_last(curves[seed, arm]) for seed in runs]),
                outcomes=tuple(r.verdict.outcome for r in reports),
                diverged=tuple(seed for seed in runs if grown[seed, arm]),
            )
        )
    return Compared(title, by, tokens, tuple(rows))


def _points(curve: Sequence[QualityPoint], by: str) -> list[Point]:
    return [
        Point(p.tokens if by == "merged" else p.tokens_trained, p.loss, p.accuracy) for p in curve
    ]


def _common(curves: Sequence[Sequence[Point]]) -> int | None:
    """The largest number of tokens that every curve covers."""
    if not all(curves):
        return None
    tokens = min(points[-1].tokens for points in curves)
    return tokens if all(points[0].tokens <= tokens for points in curves) else None


def _last(points: Sequence[Point]) -> float | None:
    return float(points[-1].tokens) if points else None


def _gap(mine: Value | None, first: Value | None) -> float | None:
    if mine is None or first is None or first.loss <= 0:
        return None
    return (mine.loss - first.loss) / first.loss


def _diverged(report: Report, points: Sequence[Point], value: Value | None) -> bool:
    grew = value is not None and value.loss > points[0].loss
    return grew or not report.quality.ended_finite


def as_text(group: Compared) -> str:
    """The group as a table."""
    at = (
        "no number of tokens was reached by all"
        if group.tokens is None
        else (f"at {group.tokens:,} {group.by} tokens")
    )
    head = ["", "loss", "(min to max)", "gap", "(min to max)", "accuracy", "goodput", "bytes less"]
    rows = [head, *(_row(arm) for arm in group.arms)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [f"{group.title}, {at}"]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    for arm in group.arms:
        if arm.bound is not None:
            said = "met" if arm.ok else "MISSED" if arm.missed else "unknown"
            lines.append(f"  bound: {arm.name} at most {arm.bound:+.1%} in the mean: {said}")
        if arm.diverged:
            seeds = ", ".join(map(str, arm.diverged))
            lines.append(
                f"  {arm.name}: the loss grew or ended as no number (seeds: {seeds}), which "
                "meets no bound"
            )
        odd = [o for o in arm.outcomes if o != "passed"]
        if odd:
            lines.append(f"  {arm.name}: {len(odd)} of {len(arm.outcomes)} runs {odd[0]}")
    return "\n".join(lines) + "\n"


def _row(arm: Arm) -> list[str]:
    return [
        arm.name,
        _mean(arm.loss, ".4f"),
        _ends(arm.loss, ".4f"),
        _mean(arm.gap, "+.2%"),
        _ends(arm.gap, "+.2%"),
        _mean(arm.accuracy, ".2%"),
        _mean(arm.goodput, ".1%"),
        _mean(arm.reduction, ".1f"),
    ]


def _mean(value: Range | None, form: str) -> str:
    return "–" if value is None else format(value.mean, form)


def _ends(value: Range | None, form: str) -> str:
    return "–" if value is None else f"{value.low:{form}} to {value.high:{form}}"
