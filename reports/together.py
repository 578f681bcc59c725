"""Several runs of one suite, judged together: the first against the best of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reports.schema import GateRow, Report

_WORST_FIRST = (143, 130, 4, 2, 1, 3, 0)
"""Exit statuses, the one that counts first: what is proven weighs more than a doubt."""


@dataclass(frozen=True)
class Versus:
    """One bound that a suite may set in ``[gate]``: a ratio of the first run to another one."""

    name: str
    better: Literal["at least", "at most"]
    help: str
    value: Callable[[Report], float | None]
    inverse: bool = False
    """The other run's value over the first one's."""
    of_other: Callable[[Report], float | None] | None = None
    """Value of the other runs, where it is not the first one's."""


def _steps_per_s(report: Report) -> float | None:
    seconds = report.goodput.allocated_s
    return report.goodput.steps / seconds if seconds else None


def _loss(report: Report) -> float | None:
    return report.quality.final_loss if report.quality.ended_finite else None


def _learned(report: Report) -> float | None:
    """The final loss of a run that may be held against; None for one that diverged: a run that is
    as bad is close, and no success."""
    quality, loss = report.quality, _loss(report)
    if loss is None or quality.first_loss is None or not quality.held_out:
        return loss
    return loss if loss <= quality.first_loss else None


TOGETHER: dict[str, Versus] = {
    v.name: v
    for v in (
        Versus(
            "goodput_ratio_min",
            "at least",
            "goodput of the first run over that of the best other one",
            lambda r: r.goodput.ratio,
        ),
        Versus(
            "step_rate_ratio_min",
            "at least",
            "steps per learner-second of the first run over those of the best other one",
            _steps_per_s,
        ),
        Versus(
            "bytes_ratio_min",
            "at least",
            "bytes per step of the other run over those of the first one",
            lambda r: r.network.bytes_per_step,
            inverse=True,
        ),
        Versus(
            "loss_ratio_max",
            "at most",
            "final loss of the first run over that of the best other one",
            _loss,
            of_other=_learned,
        ),
        Versus(
            "loss_seam_max",
            "at most",
            "loss at the beginning of a run that goes on from the first, over the first one's last",
            lambda r: r.quality.final_loss,
            inverse=True,
            of_other=lambda r: r.quality.first_loss,
        ),
    )
}
"""Every gate of suites; the one visible table."""


def judge_together(asked: Mapping[str, float], reports: Sequence[Report]) -> list[GateRow]:
    """One row per bound, in its order. ``reports`` are those of the suite's runs, in order."""
    return [_judge(TOGETHER[name], bound, reports) for name, bound in asked.items()]


def _judge(gate: Versus, bound: float, reports: Sequence[Report]) -> GateRow:
    first = gate.value(reports[0])
    others = [(gate.of_other or gate.value)(r) for r in reports[1:]]
    ratios = [_ratio(gate, first, other) for other in others]
    known = [r for r in ratios if r is not None]
    value: float | None = None
    if len(known) == len(ratios):
        # Against the best of the others: that is where the first one looks worst.
        value = min(known) if gate.better == "at least" else max(known)
    ok = value is not None and (value >= bound if gate.better == "at least" else value <= bound)
    why = gate.help
    if value is None:
        why = "unknown: a run does not say, or the figure to divide by is zero"
    return GateRow(
        name=gate.name, value=value, bound=bound, ok=ok, unit="x", better=gate.better, why=why
    )


def _ratio(gate: Versus, first: float | None, other: float | None) -> float | None:
    if first is None or other is None:
        return None
    over, under = (other, first) if gate.inverse else (first, other)
    return over / under if under else None


def exit_status(reports: Sequence[Report], gates: Sequence[GateRow]) -> int:
    """The worst of the runs' statuses and the gates' (1 for one that is missed, 3 for an unknown
    one)."""
    statuses = {r.verdict.exit_status for r in reports}
    statuses |= {0 if g.ok else 3 if g.value is None else 1 for g in gates}
    return worst(statuses)


def worst(statuses: Collection[int]) -> int:
    """The one that counts."""
    return next(s for s in _WORST_FIRST if s in statuses)
