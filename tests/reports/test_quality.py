"""Loss against tokens: curves, equal-token comparison, check 13, and what reports show of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import reports.quality
from harness import events as ev
from reports.build import analyse
from reports.compare import compare
from reports.history import fold
from reports.html import render
from reports.quality import Gap, Point, Value, by_trained, compared, curve, value_at
from reports.schema import Invariant, Report
from reports.text import terminal
from tests.reports.builder import SECOND, Cluster, E, change, journal, replace

Events = list[ev.AnyEvent]


def points(*pairs: tuple[int, float]) -> list[Point]:
    return [Point(tokens, loss, None) for tokens, loss in pairs]


# --- curves -------------------------------------------------------------------------------------


def test_between_two_evaluations_the_curve_is_a_straight_line() -> None:
    line = [Point(100, 4.0, 0.1), Point(300, 2.0, 0.5)]
    middle = value_at(line, 150)
    assert middle is not None
    assert middle.loss == 3.5
    assert middle.accuracy == pytest.approx(0.2)
    assert value_at(line, 100) == Value(100, 4.0, 0.1)
    assert value_at(line, 300) == Value(300, 2.0, 0.5)


@pytest.mark.parametrize("tokens", [99, 301])
def test_there_is_no_curve_outside_of_its_points(tokens: int) -> None:
    assert value_at(points((100, 4.0), (300, 2.0)), tokens) is None
    assert value_at([], tokens) is None


def test_runs_are_compared_at_the_largest_number_that_both_reached() -> None:
    run = points((100, 4.0), (200, 3.0))
    control = points((100, 4.0), (300, 2.0))
    found = compared(run, control)
    assert isinstance(found, Gap)
    assert (found.run, found.control) == (Value(200, 3.0, None), Value(200, 3.0, None))
    assert found.ratio == 0
    # The other way round it is the run that is read off between two of its evaluations.
    found = compared(control, run)
    assert isinstance(found, Gap)
    assert found.run.tokens == 200
    assert found.ratio == 0


@pytest.mark.parametrize(
    ("run", "control", "said"),
    [
        ([], [(1, 2.0)], "the run was never evaluated"),
        ([(1, 2.0)], [], "the control was never evaluated"),
        ([(1, 2.0), (5, 1.0)], [(6, 2.0), (9, 1.0)], "no number of tokens was reached by both"),
        ([(1, 2.0)], [(1, 0.0)], "no share of it"),
        ([(1, 2.0), (5, 3.0)], [(1, 2.0), (5, 3.0)], "the control's loss grew"),
    ],
)
def test_what_cannot_be_compared_says_why(run: Any, control: Any, said: str) -> None:
    found = compared(points(*run), points(*control))
    assert isinstance(found, str)
    assert said in found


# --- journals -----------------------------------------------------------------------------------


def kind(events: Sequence[ev.AnyEvent], of: type[E]) -> list[E]:
    return [e for e in events if isinstance(e, of)]


def told(events: Events, losses: Sequence[float], *, wrong: int = 0) -> Events:
    """The journal with an evaluation after every tenth merge, ``losses`` in turn; their tokens are
    right unless they are ``wrong`` by some."""
    merges = kind(events, ev.Merged)
    sizes = Cluster().fragments
    found: Events = []
    merged = [0] * len(sizes)
    left = iter(losses)
    for number, merge in enumerate(merges, 1):
        merged[merge.fragment] += sum(p.c_tokens for p in merge.contributions)
        if number % 10:
            continue
        loss = next(left, None)
        if loss is None:
            break
        tokens = sum(n * m for n, m in zip(sizes, merged, strict=True)) // sum(sizes)
        found.append(
            ev.Evaluated(
                t_ns=merge.t_ns,
                unit="syncer",
                incarnation=1,
                clock=merge.clock,
                tokens=tokens + wrong,
                steps=merge.clock,
                loss=loss,
                accuracy=1 / loss,
                floor=0.5,
                records=8,
            )
        )
    at = max(i for i, e in enumerate(events) if e is merges[-1])
    return sorted([*events[: at + 1], *found, *events[at + 1 :]], key=lambda e: e.t_ns)


def with_control(
    events: Events, *pairs: tuple[int, float], conclusive: bool = True, **gate: float
) -> Events:
    measured = ev.ControlMeasured(
        t_ns=0,
        name="calm",
        run="run-0",
        outcome="passed" if conclusive else "host-too-slow",
        conclusive=conclusive,
        points=tuple(ev.Measured(tokens=t, loss=loss) for t, loss in pairs),
    )
    head = events[0]
    assert isinstance(head, ev.RunStarted)
    spec = {**head.spec, "control": True, "gate": gate}
    return [replace(head, spec=spec), measured, *events[1:]]


def report(events: Events) -> Report:
    return analyse(fold(journal(events))).report


def check(events: Events, name: str = "control") -> Invariant:
    return next(i for i in report(events).invariants if i.name == name)


LOSSES = (4.0, 3.0, 2.5, 2.2, 2.0)


def evaluated() -> Events:
    return told(Cluster().events(), LOSSES)


def reached(events: Events) -> list[int]:
    return [e.tokens for e in kind(events, ev.Evaluated)]


def test_the_report_has_the_held_out_figures_and_the_curve() -> None:
    found = report(evaluated()).quality
    assert (found.first_loss, found.final_loss, found.loss_floor) == (4.0, 2.0, 0.5)
    assert found.held_out
    assert found.final_accuracy == 0.5
    assert [p.loss for p in found.curve] == list(LOSSES)
    assert found.tokens == reached(evaluated())[-1]
    assert found.training_loss not in (None, found.final_loss)
    trained = [p.tokens_trained for p in found.curve]
    assert all(t >= p.tokens for t, p in zip(trained, found.curve, strict=True))
    assert trained == sorted(trained)


def test_without_evaluations_the_loss_is_that_of_training() -> None:
    found = report(Cluster().events()).quality
    assert not found.held_out
    assert found.final_loss == found.training_loss
    assert (found.curve, found.loss_floor, found.final_accuracy) == ([], None, None)


def test_what_was_rolled_back_leaves_the_curve() -> None:
    events = evaluated()
    first, second, *_ = kind(events, ev.Evaluated)
    again = replace(second, t_ns=9 * SECOND, tokens=first.tokens + 1, loss=3.9)
    history = fold(journal(sorted([*events, again], key=lambda e: e.t_ns)))
    assert [(p.tokens, p.loss) for p in curve(history)] == [
        (first.tokens, 4.0),
        (first.tokens + 1, 3.9),
    ]


def test_by_trained_tokens_a_curve_that_hardly_merged_is_as_long_as_any() -> None:
    some = [Point(10, 3.0, None, trained=1000), Point(20, 2.0, None, trained=2000)]
    assert [(p.tokens, p.loss) for p in by_trained(some)] == [(1000, 3.0), (2000, 2.0)]


# --- check 13 -----------------------------------------------------------------------------------


def test_nothing_is_asked_without_a_control() -> None:
    found = check(evaluated())
    assert (found.valid, found.asked) == ("unknown", False)


def test_a_loss_within_the_bound_is_valid() -> None:
    events = evaluated()
    last = reached(events)[-1]
    found = check(with_control(events, (1, 9.0), (last, 1.99), (last * 3, 0.6)))
    assert found.valid is True
    assert f"at {last:,} tokens the loss is 2.0000, the control's 1.9900: +0.50%" in found.why


def test_a_larger_loss_is_invalid_and_named_with_its_lines() -> None:
    events = evaluated()
    last = reached(events)[-1]
    broken = with_control(events, (1, 9.0), (last, 1.9))
    found = check(broken)
    assert found.valid is False
    assert "+5.26%" in found.why
    kinds = {type(broken[line - 1]) for line in found.events}
    assert kinds == {ev.ControlMeasured, ev.Evaluated}
    assert report(broken).verdict.outcome == "deviated"


def test_the_gate_sets_the_bound() -> None:
    events = evaluated()
    last = reached(events)[-1]
    found = report(with_control(events, (1, 9.0), (last, 1.9), loss_gap_max=0.06))
    assert next(i for i in found.invariants if i.name == "control").valid is True
    (gate,) = found.gates
    assert gate.ok
    assert gate.value == pytest.approx(0.0526, abs=1e-4)


def test_a_smaller_loss_than_the_controls_is_no_fault() -> None:
    events = evaluated()
    assert check(with_control(events, (1, 9.0), (reached(events)[-1], 3.0))).valid is True


def control_is_inconclusive(events: Events) -> Events:
    return with_control(events, (1, 9.0), (10**9, 1.0), conclusive=False)


def no_common_range(events: Events) -> Events:
    return with_control(events, (10**8, 2.0), (10**9, 1.0))


def run_not_evaluated(events: Events) -> Events:
    kept = [e for e in events if not isinstance(e, ev.Evaluated)]
    return with_control(kept, (1, 2.0), (10**9, 1.0))


def last_loss_is_none(events: Events) -> Events:
    last = kind(events, ev.Evaluated)[-1]
    told = [replace(e, loss=None) if e is last else e for e in events]
    # The curve before it would be within any bound.
    return with_control(told, (1, 9.0), (last.tokens, 2.0))


def control_ended_as_no_number(events: Events) -> Events:
    told = with_control(events, (1, 9.0), (reached(events)[-1], 2.0))
    return [
        replace(e, ended_finite=False) if isinstance(e, ev.ControlMeasured) else e for e in told
    ]


def control_never_finite(events: Events) -> Events:
    told = with_control(events)
    return [
        replace(e, ended_finite=False) if isinstance(e, ev.ControlMeasured) else e for e in told
    ]


def control_not_in_the_journal(events: Events) -> Events:
    kept = with_control(events, (1, 2.0))
    return [e for e in kept if not isinstance(e, ev.ControlMeasured)]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (control_is_inconclusive, "the control (calm) is not conclusive: host-too-slow"),
        (no_common_range, "no number of tokens was reached by both"),
        (run_not_evaluated, "the run was never evaluated"),
        (control_ended_as_no_number, "the control's (calm) last evaluation has no finite loss"),
        (control_never_finite, "the control's (calm) last evaluation has no finite loss"),
        (control_not_in_the_journal, "there is no control's measurement in the journal"),
    ],
)
def test_what_proves_nothing_is_unknown_and_the_run_inconclusive(spoil: Any, said: str) -> None:
    events = spoil(evaluated())
    found = check(events)
    assert (found.valid, found.asked) == ("unknown", True)
    assert said in found.why
    assert report(events).verdict.exit_status == 3


def test_a_run_whose_last_loss_is_no_number_is_not_compared_by_the_ones_before() -> None:
    events = last_loss_is_none(evaluated())
    found = check(events)
    assert (found.valid, found.asked) == ("unknown", True)
    assert f"last evaluation, at {reached(events)[-1]:,} tokens, has no finite loss" in found.why
    told = report(events)
    assert not told.quality.ended_finite
    assert told.quality.gap_ratio is None
    assert told.verdict.exit_status == 1  # check 5 names it
    assert report(evaluated()).quality.ended_finite


def unequal(run: Sequence[Point], control: Sequence[Point]) -> Gap | str:
    """A planted bug: both at their own ends, whatever they had learned from by then."""
    mine, other = run[-1], control[-1]
    return Gap(Value(mine.tokens, mine.loss, None), Value(other.tokens, other.loss, None))


def test_a_comparison_at_unequal_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run learned from half as much as its control and is exactly as good as that was then."""
    events = evaluated()
    tokens = reached(events)
    control = [*zip(tokens, LOSSES, strict=True), (2 * tokens[-1], 1.2)]
    fair = with_control(events, *control)
    assert check(fair).valid is True
    assert report(fair).quality.gap_ratio == 0
    with monkeypatch.context() as patch:
        patch.setattr(reports.quality, "compared", unequal)
        assert check(fair).valid is False


# --- evaluations against merges -----------------------------------------------------------------


def test_an_evaluation_that_claims_other_tokens_breaks_tokens_once() -> None:
    assert check(evaluated(), "tokens-once").valid is True
    found = check(told(Cluster().events(), LOSSES, wrong=1), "tokens-once")
    assert found.valid is False
    assert "claims" in found.why


def test_a_journal_that_lacks_a_merge_proves_nothing_about_evaluations() -> None:
    events = evaluated()
    lacking = next(e for e in events if isinstance(e, ev.Merged) and e.version == 2)
    found = check([e for e in events if e is not lacking], "tokens-once")
    assert "claims" not in found.why


# --- what people see ----------------------------------------------------------------------------


def test_the_page_draws_run_control_and_floor() -> None:
    events = evaluated()
    last = reached(events)[-1]
    analysis = analyse(fold(journal(with_control(events, (1, 9.0), (2 * last, 1.0)))))
    page = render(analysis).decode()
    assert "Held-out loss against the tokens learned from" in page
    assert "control: calm" in page
    assert "least possible loss" in page
    assert f"compared at {last:,} tokens" in page
    assert "against calm at" in terminal(analysis.report)


def test_a_page_without_evaluations_has_no_such_drawing() -> None:
    page = render(analyse(fold(journal(Cluster().events())))).decode()
    assert "Held-out loss" not in page


def test_losses_of_two_kinds_are_not_compared_silently() -> None:
    one, other = report(evaluated()), report(Cluster().events())
    assert "one loss is held-out, the other one training loss" in compare(one, other).warnings


def test_events_survive_the_journal() -> None:
    events = with_control(evaluated(), (1, 2.0), (5, 1.0))
    for event in events:
        if isinstance(event, ev.Evaluated | ev.ControlMeasured):
            assert ev.decode(ev.encode(event)) == event
    moved = change(events, ev.Evaluated, lambda e: replace(e, loss=9.0), None)
    assert all(e.loss == 9.0 for e in kind(moved, ev.Evaluated))
