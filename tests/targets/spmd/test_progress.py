"""Tokens of a data-parallel run: rolled back ones are taken back, worlds differ in size."""

from __future__ import annotations

from harness.events import Evaluated
from targets.base import Started, Work, WorkDone
from targets.diloco.evaluation import LANE, Evaluate, Judged
from targets.spmd.messages import Advance, Enter, Entered, Form, OpenWorld, Proceed
from targets.spmd.progress import Progress
from tests.targets.spmd.nodes import Hand
from tests.targets.spmd.test_launcher import W, hello, launcher, running
from tests.targets.spmd.test_worker import DONE, ME, advanced, said, training


def test_steps_count_by_the_size_of_their_world() -> None:
    progress = Progress(10)
    assert progress.tokens(0) == 0
    progress.begin(0, 4)
    assert progress.tokens(5) == 200
    progress.begin(5, 3)
    assert progress.tokens(7) == 200 + 60


def test_what_is_rolled_back_does_not_count() -> None:
    progress = Progress(10)
    progress.begin(0, 4)
    progress.begin(6, 3)
    progress.begin(4, 2)
    assert progress.tokens(4) == 160
    assert progress.tokens(9) == 160 + 100
    assert progress.tokens(2) == 80


def test_it_survives_the_launcher() -> None:
    progress, other = Progress(10), Progress(10)
    progress.begin(0, 4)
    progress.begin(5, 3)
    other.resume(progress.saved())
    assert other.tokens(8) == progress.tokens(8)


def test_a_world_is_told_how_many_tokens_are_behind_it() -> None:
    hand = running(evaluate_every=5)
    assert {form.tokens for _, form in hand.sent(Form)} == {0}
    (saved,) = [s for s in hand.saved() if s.key == "progress"]
    assert saved.value == [[0, 3]]
    later = launcher(evaluate_every=5)
    later.feed(Started(2, {"world": 1, "progress": saved.value}))
    later.feed(*(hello(w, 10) for w in W))
    forms = later.feed(WorkDone(OpenWorld(2, 3), "host:2")).sent(Form)
    assert {form.tokens for _, form in forms} == {10 * 3 * 8 * 64}


def test_without_evaluations_nothing_more_is_saved() -> None:
    assert [s.key for s in running().saved()] == []


# --- who evaluates, and when --------------------------------------------------------------------

FIRST = Form(world=4, members=(ME, "worker-0"), address="host:1", step=20, share=1, tokens=5000)


def first_of_two(*, barrier: bool) -> Hand:
    from targets.base import Connected
    from targets.spmd.messages import Held, Look
    from tests.targets.spmd.test_worker import worker

    hand = worker(barrier=barrier, evaluate_every=2)
    hand.feed(WorkDone(Look(), Held((0, 20))), Connected("launcher"), said(FIRST))
    return hand.feed(WorkDone(Enter(FIRST, 0), Entered("digest")))


def asked(hand: Hand) -> list[Evaluate]:
    return [e.job for e in hand.effects if isinstance(e, Work) and e.lane == LANE]


def test_rank_0_evaluates_after_its_step() -> None:
    hand = first_of_two(barrier=False)
    assert asked(hand) == []  # what it entered with was evaluated by those who made it
    assert asked(advanced(hand, 21)) == []
    (job,) = asked(advanced(hand, 22))
    assert job == Evaluate(22, 5000 + 2 * 2 * 8 * 64, 22)
    hand.feed(WorkDone(job, Judged(1.5, 0.5, None, 4)))
    (told,) = hand.notes(Evaluated)
    assert (told.tokens, told.steps, told.loss) == (job.tokens, 22, 1.5)


def test_with_a_barrier_it_evaluates_once_everybody_is_there() -> None:
    hand = first_of_two(barrier=True)
    advanced(hand, 21).feed(said(Proceed(world=4, step=21)))
    assert asked(hand.feed(WorkDone(Advance(22), DONE))) == []
    assert len(asked(hand.feed(said(Proceed(world=4, step=22))))) == 1


def test_the_others_evaluate_nothing() -> None:
    hand = training(evaluate_every=2)
    assert asked(advanced(hand, 21)) == asked(advanced(hand, 22)) == []
