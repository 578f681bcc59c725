"""A worker alone: from its checkpoints to the end of its world."""

from __future__ import annotations

from typing import Any

import pytest

from harness.events import Joined, Step, UnitEnded, UnitNote, Waited
from targets.base import (
    Connected,
    Disconnected,
    Received,
    Started,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.spmd.messages import (
    Advance,
    Advanced,
    Beat,
    Break,
    Enter,
    Entered,
    Failed,
    Form,
    Held,
    Hello,
    Keep,
    Leaving,
    Look,
    Proceed,
    Reached,
    Regroup,
)
from targets.spmd.params import SpmdParams
from targets.spmd.worker import RESTART, Worker
from tests.targets.spmd.nodes import MS, Hand, S

ME = "worker-1"
PEER = "launcher"
FORM = Form(world=4, members=("worker-0", ME), address="host:1", step=20, share=0)
DONE = Advanced(tokens=512, began_at_ns=S, compute_ns=MS, nominal_ns=100 * MS, loss=2.5)


def said(message: Any) -> Received:
    return Received(PEER, message)


def worker(*, barrier: bool = False, **params: Any) -> Hand:
    hand = Hand(Worker(ME, SpmdParams(workers=2, **params), barrier=barrier))
    return hand.feed(Started(3))


def training(*, barrier: bool = False, form: Form = FORM, **params: Any) -> Hand:
    """A worker that is about to take the step after ``form.step``."""
    hand = worker(barrier=barrier, **params)
    hand.feed(WorkDone(Look(), Held((0, 20))), Connected(PEER), said(form))
    assert hand.jobs() == [Enter(form, 1)]
    return hand.feed(WorkDone(Enter(form, 1), Entered("digest")))


def advanced(hand: Hand, step: int) -> Hand:
    return hand.feed(WorkDone(Advance(step), DONE))


@pytest.mark.parametrize("link_first", [True, False])
def test_it_says_hello_once_it_knows_what_it_holds(link_first: bool) -> None:
    hand = worker()
    assert hand.jobs() == [Look()]
    inputs = [WorkDone(Look(), Held((0, 10), ("step-20.ckpt is damaged",))), Connected(PEER)]
    hand.feed(*(reversed(inputs) if link_first else inputs))
    assert hand.sent(Hello) == [(PEER, Hello(held=(0, 10)))]
    assert [n.what for n in hand.notes(UnitNote)] == ["checkpoint-damaged"]


def test_it_goes_on_from_the_worlds_step_and_says_whose_state_it_has() -> None:
    hand = training()
    (joined,) = hand.notes(Joined)
    assert (joined.source, joined.step, joined.digests) == ("worker-0", 20, {"state": "digest"})
    assert hand.jobs() == [Advance(21)]


def test_the_initial_state_and_the_own_checkpoint_have_names_too() -> None:
    fresh = training(form=Form(world=1, members=("worker-0", ME), address="a", step=0))
    assert [j.source for j in fresh.notes(Joined)] == ["initial"]
    own = training(form=Form(world=1, members=("worker-0", ME), address="a", step=20))
    assert [(j.source, j.inner) for j in own.notes(Joined)] == [("checkpoint", "checkpoint")]


def test_every_step_is_noted_and_followed_by_the_next() -> None:
    hand = advanced(training(), 21)
    (step,) = hand.notes(Step)
    assert (step.step, step.clock, step.tokens, step.loss) == (21, 21, 512, 2.5)
    assert hand.jobs() == [Advance(22)]


def test_a_checkpoint_is_made_beside_the_next_step() -> None:
    hand = training(checkpoint_every=7)
    advanced(hand, 21)
    work = [e for e in hand.effects if isinstance(e, Work)]
    assert work == [Work(Keep(21), "io"), Work(Advance(22))]


def test_a_failed_collective_ends_the_process_and_says_so() -> None:
    hand = training().feed(WorkFailed(Advance(21), "Gloo all-reduce failed"))
    assert [m for _, m in hand.sent(Failed)] == [Failed(world=4, why="Gloo all-reduce failed")]
    assert "Gloo" in hand.notes(UnitEnded)[0].why
    stop = hand.stop()
    assert stop is not None
    assert stop.code == RESTART


def test_the_end_of_its_own_world_is_its_end_and_no_others() -> None:
    hand = training().feed(said(Break(world=3, why="old")))
    assert hand.stop() is None
    assert hand.feed(said(Break(world=4, why="worker-0"))).stop() is not None


def test_a_wait_in_vain_is_no_work() -> None:
    hand = advanced(training(), 21)
    hand.feed(said(Break(world=4, why="silent")), at_ns=5 * S)
    assert [(w.began_at_ns, w.t_ns) for w in hand.notes(Waited)] == [(0, 5 * S)]
    quick = advanced(training(), 21)
    assert quick.feed(said(Break(world=4, why="dead")), at_ns=150 * MS).notes(Waited) == []


def test_it_leaves_at_the_step_agreed_upon_with_its_checkpoint_kept() -> None:
    hand = training(checkpoint_every=11).feed(said(Regroup(world=4, at_step=22, why="back")))
    assert advanced(hand, 21).jobs() == [Advance(22)]
    assert advanced(hand, 22).jobs() == [Keep(22)]
    assert hand.stop() is None, "not before the checkpoint is on disk"
    hand.feed(WorkDone(Keep(22), None))
    assert [m for _, m in hand.sent(Leaving)] == [Leaving(world=4, step=22)]
    stop = hand.stop()
    assert stop is not None
    assert stop.code == RESTART


def test_a_regroup_that_comes_too_late_is_left_to_fail() -> None:
    hand = advanced(training(), 21).feed(said(Regroup(world=4, at_step=21, why="back")))
    assert advanced(hand, 22).jobs() == [Advance(23)]


def test_a_checkpoint_that_cannot_be_kept_is_said_and_survived() -> None:
    hand = training().feed(WorkFailed(Keep(20), "OSError: disk full"))
    assert hand.notes(UnitNote)[0].what == "checkpoint-failed"
    assert hand.stop() is None


def test_training_goes_on_without_the_launcher() -> None:
    hand = training().feed(Disconnected(PEER, "reset"))
    assert advanced(hand, 21).jobs() == [Advance(22)]
    hand.feed(Connected(PEER))
    assert [m for _, m in hand.sent(Beat)] == [Beat(world=4, step=21)]
    assert hand.sent(Hello) == []


def test_with_a_barrier_it_waits_for_the_launchers_word() -> None:
    hand = advanced(training(barrier=True), 21)
    assert [m for _, m in hand.sent(Reached)] == [Reached(world=4, step=21)]
    assert hand.jobs() == []
    hand.feed(said(Proceed(world=4, step=20)))
    assert hand.jobs() == [], "the word for an earlier step"
    hand.feed(said(Proceed(world=4, step=21)), at_ns=9 * MS)
    assert hand.jobs() == [Advance(22)]
    assert [(w.began_at_ns, w.t_ns) for w in hand.notes(Waited)] == [(0, 9 * MS)]


def test_it_gives_signs_of_life_and_gives_a_silent_link_up() -> None:
    hand = training()
    hand.feed(Tick(), at_ns=250 * MS)
    assert [m for _, m in hand.sent(Beat)] == [Beat(world=4, step=20)]
    hand.feed(Tick(), at_ns=5000 * MS)
    assert hand.stop() is None
    assert hand.node.deadline_ns() is None


def test_unusable_checkpoints_of_all_kinds_are_fatal() -> None:
    stop = worker().feed(WorkFailed(Look(), "OSError: no such disk")).stop()
    assert stop is not None
    assert stop.code == 1


def test_asked_to_stop_it_stops() -> None:
    stop = training().feed(StopAsked(S)).stop()
    assert stop is not None
    assert stop.code == 0
