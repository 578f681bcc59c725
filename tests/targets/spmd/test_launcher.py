"""The launcher alone: when worlds are formed and ended, from where they go on, who is to blame."""

from __future__ import annotations

from typing import Any

from harness.events import LinkDown, UnitNote, WorldEnded, WorldFormed
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Received,
    Started,
    StopAsked,
    Tick,
    WorkDone,
    WorkFailed,
)
from targets.spmd.launcher import BLAME_NS, RETURN_NS, Launcher, common_step
from targets.spmd.messages import (
    Beat,
    Break,
    CloseWorlds,
    Failed,
    Form,
    Hello,
    Leaving,
    OpenWorld,
    Proceed,
    Reached,
    Regroup,
)
from targets.spmd.params import SpmdParams
from tests.targets.spmd.nodes import MS, Hand, S

W = ("worker-0", "worker-1", "worker-2")


def launcher(**params: Any) -> Hand:
    hand = Hand(Launcher("launcher", SpmdParams(workers=3, **params)))
    hand.feed(Started(1), *(Connected(w) for w in W))
    return hand


def hello(unit: str, *held: int) -> Received:
    return Received(unit, Hello(held=(0, *held)))


def running(held: tuple[int, ...] = (), **params: Any) -> Hand:
    """A launcher whose three workers form world 1."""
    hand = launcher(**params)
    hand.feed(*(hello(w, *held) for w in W))
    assert hand.jobs() == [OpenWorld(1, 3)]
    return hand.feed(WorkDone(OpenWorld(1, 3), "host:1"))


def test_nothing_is_formed_before_everybody_is_there() -> None:
    hand = launcher()
    assert hand.feed(hello(W[0]), hello(W[1])).jobs() == []
    assert hand.feed(hello(W[2])).jobs() == [OpenWorld(1, 3)]
    assert [s.value for s in hand.saved()] == [1], "a world's number is durable before it is used"


def test_members_are_told_ranks_address_and_step() -> None:
    hand = running(held=(10,))
    forms = dict(hand.sent(Form))
    assert set(forms) == set(W)
    assert forms[W[1]] == Form(world=1, members=W, address="host:1", step=10, share=-1)
    (formed,) = hand.notes(WorldFormed)
    assert (formed.members, formed.step) == (W, 10)
    assert CloseWorlds(1) in hand.jobs()


def test_the_newest_checkpoint_of_any_member_is_everybodys() -> None:
    assert common_step([(0, 10), (0, 10, 20), (0, 20)]) == (20, 1)
    assert common_step([(0, 10), (0, 10)]) == (10, -1)
    assert common_step([(0,), (0,)]) == (0, -1)
    assert common_step([(), ()]) == (0, -1)


def test_a_broken_link_ends_the_world_and_names_whose_it_was() -> None:
    hand = running().feed(Disconnected(W[1], "reset"), at_ns=S)
    (ended,) = hand.notes(WorldEnded)
    assert (ended.world, ended.because, ended.planned) == (1, W[1], False)
    assert [peer for peer, _ in hand.sent(Break)] == [W[0], W[1], W[2]]
    assert [n.peer for n in hand.notes(LinkDown)] == [W[1]]


def test_a_survivors_complaint_waits_for_the_culprit() -> None:
    hand = running().feed(Received(W[0], Failed(world=1, why="gloo")), at_ns=S)
    assert hand.notes(WorldEnded) == []
    hand.feed(Disconnected(W[0], "it ended"))
    assert hand.notes(WorldEnded) == [], "who complained is no culprit"
    hand.feed(Disconnected(W[2], "reset"))
    assert [e.because for e in hand.notes(WorldEnded)] == [W[2]]


def test_without_a_culprit_the_complaint_itself_ends_the_world() -> None:
    hand = running().feed(Received(W[0], Failed(world=1, why="gloo")), at_ns=S)
    assert hand.node.deadline_ns() <= S + BLAME_NS
    hand.feed(Tick(), at_ns=S + BLAME_NS)
    (ended,) = hand.notes(WorldEnded)
    assert (ended.because, ended.why) == ("", "worker-0: gloo")


def test_a_silent_member_ends_the_world() -> None:
    hand = running(silence_ms_max=1000)
    hand.feed(*(Received(w, Beat(world=1, step=3)) for w in W[:2]), at_ns=900 * MS)
    hand.feed(Tick(), at_ns=1000 * MS)
    assert Disconnect(W[2], "heard nothing for 1000 ms (bound 1000 ms)") in hand.effects
    assert [e.because for e in hand.notes(WorldEnded)] == [W[2]]


def test_a_member_that_says_hello_again_died_unseen() -> None:
    hand = running().feed(hello(W[1], 10), at_ns=S)
    assert [e.because for e in hand.notes(WorldEnded)] == [W[1]]
    hand.feed(hello(W[0], 10), hello(W[2], 10))
    assert hand.jobs() == [OpenWorld(2, 3)]


def test_a_late_sign_of_an_old_world_is_answered() -> None:
    hand = running().feed(Disconnected(W[1], "reset"), at_ns=S)
    hand.feed(Received(W[0], Beat(world=1, step=9)))
    assert [(p, m.world) for p, m in hand.sent(Break)] == [(W[0], 1)]


def test_a_worker_that_vanishes_while_the_world_opens_is_waited_for() -> None:
    hand = launcher()
    hand.feed(*(hello(w) for w in W)).feed(Disconnected(W[0], "reset"))
    hand.feed(WorkDone(OpenWorld(1, 3), "host:1"))
    assert hand.notes(WorldFormed) == []
    hand.feed(Connected(W[0]), hello(W[0]))
    assert hand.jobs() == [OpenWorld(2, 3)]


def test_a_meeting_point_that_cannot_be_had_is_tried_again() -> None:
    hand = launcher()
    hand.feed(*(hello(w) for w in W))
    hand.feed(WorkFailed(OpenWorld(1, 3), "OSError: no port"))
    assert hand.notes(UnitNote)[0].what == "world-not-opened"
    hand.feed(*(Received(w, Beat()) for w in W), at_ns=3 * S)
    hand.feed(Tick())
    assert hand.jobs() == [OpenWorld(2, 3)]


def test_a_later_life_goes_on_counting_worlds() -> None:
    hand = Hand(Launcher("launcher", SpmdParams(workers=1)))
    hand.feed(Started(2, {"world": 7}), Connected(W[0]), hello(W[0]))
    assert hand.jobs() == [OpenWorld(8, 1)]


def test_as_a_barrier_it_waits_for_all() -> None:
    hand = running()
    hand.feed(*(Received(w, Reached(world=1, step=1)) for w in W[:2]))
    assert hand.sent(Proceed) == []
    hand.feed(Received(W[2], Reached(world=1, step=1)))
    assert [(p, m.step) for p, m in hand.sent(Proceed)] == [(w, 1) for w in W]


def test_asked_to_stop_it_stops() -> None:
    stop = running().feed(StopAsked(S)).stop()
    assert stop is not None
    assert stop.code == 0


# --- elastic ------------------------------------------------------------------------------------


def broken_elastic() -> Hand:
    """An elastic world 1 that lost worker-1 at 1 s; its survivors are back at 3 s."""
    hand = running(variant="elastic", silence_ms_max=60_000)
    hand.feed(Disconnected(W[1], "reset"), at_ns=S)
    assert hand.feed(hello(W[0], 10), at_ns=2 * S).jobs() == []
    hand.feed(hello(W[2], 10), at_ns=3 * S)
    return hand


def test_survivors_go_on_without_the_missing() -> None:
    hand = broken_elastic()
    assert hand.jobs() == []
    assert hand.feed(Tick(), at_ns=5 * S).jobs() == [OpenWorld(2, 2)]
    hand.feed(WorkDone(OpenWorld(2, 2), "host:2"))
    (formed,) = hand.notes(WorldFormed)
    assert (formed.members, formed.step, formed.why) == ((W[0], W[2]), 10, "without worker-1")
    assert CloseWorlds(2) not in hand.jobs(), "a frozen one may still be in the old world"


def test_a_survivor_that_is_on_its_way_is_not_left_behind() -> None:
    hand = running(variant="elastic", silence_ms_max=60_000)
    hand.feed(Disconnected(W[1], "reset"), at_ns=S)
    hand.feed(hello(W[0], 10), at_ns=2 * S)
    assert hand.feed(Tick(), at_ns=10 * S).jobs() == []
    assert hand.feed(Tick(), at_ns=S + RETURN_NS).jobs() == [OpenWorld(2, 1)]


def test_who_comes_back_is_taken_in_at_a_checkpoint() -> None:
    hand = broken_elastic().feed(Tick(), at_ns=5 * S)
    hand.feed(WorkDone(OpenWorld(2, 2), "host:2"))
    hand.feed(Received(W[0], Beat(world=2, step=14)), at_ns=6 * S)
    hand.feed(Connected(W[1]), hello(W[1], 10))
    asked = hand.sent(Regroup)
    assert [peer for peer, _ in asked] == [W[0], W[2]]
    # Half a second of beats is five steps of 0.1 s: 14 + 7 lies beyond 20.
    assert asked[0][1].at_step == 30
    hand.feed(Received(W[0], Leaving(world=2, step=30)))
    assert hand.notes(WorldEnded) == []
    hand.feed(Received(W[2], Leaving(world=2, step=30)))
    (ended,) = hand.notes(WorldEnded)
    assert (ended.because, ended.planned) == (W[1], True)
    assert hand.feed(Tick(), at_ns=9 * S).jobs() == [], "the two that left come back"
    hand.feed(hello(W[0], 30), hello(W[2], 30), at_ns=10 * S)
    assert hand.jobs() == [OpenWorld(3, 3)]
    hand.feed(WorkDone(OpenWorld(3, 3), "host:3"))
    assert {m.share for _, m in hand.sent(Form)} == {0}, "worker-1 lacks the newest checkpoint"
