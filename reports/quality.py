"""How good the parameters became, against the tokens that they learned from.

Runs that learned from different numbers of tokens are compared at the largest number that both
reached, each curve interpolated there: a run that lost a tenth of its time must not look worse, or
better, for having had less to learn from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from reports.history import History

GAP_MAX = 0.01
"""How much worse than the control's loss the run's may be, unless its gate says otherwise."""

GATE = "loss_gap_max"


@dataclass(frozen=True)
class Point:
    """One evaluation. ``line`` is the journal's."""

    tokens: int
    loss: float
    accuracy: float | None
    t_ns: int = 0
    line: int = 0
    trained: int = 0
    """Tokens of all steps that had ended by then, whatever became of them."""


@dataclass(frozen=True)
class Value:
    """A curve's value at some number of tokens."""

    tokens: int
    loss: float
    accuracy: float | None


def curve(history: History) -> list[Point]:
    """The run's evaluations up to the window's end, in order of tokens.

    Where something was rolled back, what was evaluated of it before is left out: those parameters
    are gone. A loss that is not finite is no point of a curve; check 5 names it.
    """
    steps = sorted(
        (s.event.t_ns, s.event.tokens) for u in history.learners for s in history.steps(u)
    )
    found: list[Point] = []
    trained = at = 0
    for seen in history.evaluated:
        event = seen.event
        if event.t_ns > history.end_ns:
            break
        while at < len(steps) and steps[at][0] <= event.t_ns:
            trained += steps[at][1]
            at += 1
        while found and found[-1].tokens >= event.tokens:
            found.pop()
        if event.loss is None:
            continue
        found.append(
            Point(event.tokens, event.loss, event.accuracy, event.t_ns, seen.line, trained)
        )
    return found


def ended_finite(history: History) -> bool:
    """Whether the last evaluation, if there was any, has a loss that is a number. Where it has
    none, the curve before it says nothing about what was learned."""
    return not history.evaluated or history.evaluated[-1].event.loss is not None


def control_curve(history: History) -> list[Point]:
    """The control's evaluations, as the journal has them."""
    if history.control is None:
        return []
    points = history.control.event.points
    return sorted(
        (Point(p.tokens, p.loss, p.accuracy) for p in points), key=lambda point: point.tokens
    )


def value_at(points: Sequence[Point], tokens: int) -> Value | None:
    """The curve at ``tokens``, linear between its points; None outside of them."""
    at = bisect_left(points, tokens, key=lambda p: p.tokens)
    if at == len(points) or (at == 0 and points[0].tokens != tokens):
        return None
    high = points[at]
    if high.tokens == tokens:
        return Value(tokens, high.loss, high.accuracy)
    low = points[at - 1]
    share = (tokens - low.tokens) / (high.tokens - low.tokens)
    accuracy = None
    if low.accuracy is not None and high.accuracy is not None:
        accuracy = low.accuracy + share * (high.accuracy - low.accuracy)
    return Value(tokens, low.loss + share * (high.loss - low.loss), accuracy)


def by_trained(points: Sequence[Point]) -> list[Point]:
    """The same curve over the tokens that were trained, whether they were merged or not."""
    return [
        Point(p.trained, p.loss, p.accuracy, p.t_ns, p.line, p.trained)
        for p in points
        if p.trained > 0
    ]


@dataclass(frozen=True)
class Gap:
    """Run and control at equal tokens."""

    run: Value
    control: Value

    @property
    def ratio(self) -> float:
        """How much larger the run's loss is, as a share of the control's; negative when smaller."""
        return (self.run.loss - self.control.loss) / self.control.loss


def compared(run: Sequence[Point], control: Sequence[Point]) -> Gap | str:
    """Both at the largest number of tokens that both reached; or why that cannot be had."""
    if not run:
        return "the run was never evaluated (target parameter evaluate_every)"
    if not control:
        return "the control was never evaluated (target parameter evaluate_every)"
    tokens = min(run[-1].tokens, control[-1].tokens)
    mine, other = value_at(run, tokens), value_at(control, tokens)
    if mine is None or other is None:
        return (
            f"no number of tokens was reached by both: the run was evaluated at {_span(run)}, "
            f"the control at {_span(control)}"
        )
    if other.loss <= 0:
        return f"the control's loss at {tokens:,} tokens is {other.loss:g}: no share of it"
    if other.loss > control[0].loss:  # two that diverge alike are close, and no success
        return (
            f"the control's loss grew, from {control[0].loss:.4f} to {other.loss:.4f} at "
            f"{tokens:,} tokens: it measures nothing"
        )
    return Gap(mine, other)


def gap(history: History) -> Gap | str:
    """The run against its control; or why they cannot be compared."""
    if history.control is None:
        return "there is no control's measurement in the journal"
    control = history.control.event
    if not control.conclusive:
        return f"the control ({control.name}) is not conclusive: {control.outcome}"
    if not control.ended_finite:
        return f"the control's ({control.name}) last evaluation has no finite loss"
    if not ended_finite(history):
        tokens = history.evaluated[-1].event.tokens
        return f"the run's last evaluation, at {tokens:,} tokens, has no finite loss"
    return compared(curve(history), control_curve(history))


def gap_bound(history: History) -> float:
    """The bound of check 13: the gate's, where the experiment sets one."""
    asked = history.run.spec.get("gate")
    bound = asked.get(GATE) if isinstance(asked, dict) else None
    return float(bound) if isinstance(bound, int | float) else GAP_MAX


def _span(points: Sequence[Point]) -> str:
    return f"{points[0].tokens:,} to {points[-1].tokens:,} tokens"
