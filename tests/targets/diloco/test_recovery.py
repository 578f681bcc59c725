"""Both sides of a recovery as scripts of inputs: who is asked for what, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest

from targets.base import Dial, Disconnect, Effect, Send, Work
from targets.diloco import messages as m
from targets.diloco.params import DilocoParams
from targets.diloco.recovery import (
    PART_NS,
    PENDING_NS,
    WINDOW,
    Donating,
    Held,
    Recovery,
)

MS = 1_000_000
CLOCK = {"learner-0": 1}
PARAMS = DilocoParams(learners=3, fragments=4, sync_every=4, trainer="scripted")
PARTS = 3 * PARAMS.fragments
PART = m.Payload("f32", 32, "d")


def offer(stamp: int = 9) -> m.StateOffer:
    return m.StateOffer(1, 30, 30, 30, (2,) * 4, (6, 7, 8, stamp), ("params=p", "step=30"), {})


def part(number: int, fragment: int | None = None) -> m.StatePart:
    return m.StatePart(number, number // 3 if fragment is None else fragment, PART, {})


def sent(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def jobs(effects: list[Effect], kind: type[Any]) -> list[Any]:
    assert all(e.lane == "donor" for e in effects if isinstance(e, Work))
    return [e.job for e in effects if isinstance(e, Work) and isinstance(e.job, kind)]


# --- the newcomer -------------------------------------------------------------------------------


class Newcomer:
    """learner-0, which may ask learner-1 and then learner-2."""

    def __init__(self) -> None:
        self.it = Recovery("learner-0", PARAMS, "L", ("learner-1", "learner-2"))
        self.now = 0
        assert self.it.begin(("learner-2", "learner-1"), 2, 0) == [Dial("learner-1")]

    def asked(self, stamp: int = 9) -> Newcomer:
        """The first donor is connected and was asked."""
        self.it.connected("learner-1", self.now, CLOCK)
        effects = self.it.stamped(stamp, self.now, CLOCK)
        assert sent(effects, m.StateRequest) == [m.StateRequest(2, "L", stamp, CLOCK)]
        return self

    def hear(self, message: Any, peer: str = "learner-1") -> list[Effect]:
        return self.it.received(peer, message, self.now, CLOCK)

    def tick(self, ms: int) -> list[Effect]:
        self.now += ms * MS
        return self.it.tick(self.now, CLOCK)


def test_asks_with_the_first_stamp_whichever_comes_first_link_or_stamp() -> None:
    Newcomer().asked()
    s = Newcomer()
    assert s.it.stamped(9, 0, CLOCK) == []
    assert s.it.stamped(10, 0, CLOCK) == []
    assert sent(s.it.connected("learner-1", 0, CLOCK), m.StateRequest)[0].stamp == 9


def test_takes_every_part_acknowledges_it_and_hangs_up() -> None:
    s = Newcomer().asked()
    assert s.hear(offer()) == []
    for number in range(PARTS - 1):
        assert sent(s.hear(part(number)), m.StateAck) == [m.StateAck(number + 1, CLOCK)]
    assert s.it.taken is None
    effects = s.hear(part(PARTS - 1))
    assert isinstance(effects[-1], Disconnect)
    taken = s.it.taken
    assert taken is not None
    assert (taken.donor, taken.offer, taken.nbytes) == ("learner-1", offer(), 32 * PARTS)
    assert not s.it.active
    assert s.it.due_ns() > 1 << 60


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (m.Refused("busy", {}), "it refused: busy"),
        (offer(stamp=8), "it offers a state from before step 9"),
        (m.StateOffer(1, 1, 1, 1, (1,), (9,), (), {}), "it offers another number of fragments"),
    ],
)
def test_an_answer_that_is_of_no_use_leads_to_the_next_donor(message: Any, why: str) -> None:
    s = Newcomer().asked()
    assert s.hear(message) == [Disconnect("learner-1", why), Dial("learner-2")]
    assert s.it.told == [f"gave up recovery from learner-1: {why}"]


def test_a_part_out_of_order_leads_to_the_next_donor() -> None:
    for wrong in (part(1), part(0, fragment=1)):
        s = Newcomer().asked()
        s.hear(offer())
        assert Dial("learner-2") in s.hear(wrong)


def test_a_link_that_breaks_leads_to_the_next_donor_which_is_asked_for_the_newest_stamp() -> None:
    s = Newcomer().asked()
    s.it.stamped(11, 0, CLOCK)
    assert s.it.disconnected("learner-1", "reset", 0) == [Dial("learner-2")]
    assert s.hear(offer()) == []  # of the one given up
    effects = s.it.connected("learner-2", 0, CLOCK)
    assert sent(effects, m.StateRequest)[0].stamp == 11


def test_more_global_steps_than_allowed_lead_to_the_next_donor() -> None:
    s = Newcomer().asked(9)
    assert s.it.stamped(13, 0, CLOCK) == []
    assert Dial("learner-2") in s.it.stamped(14, 0, CLOCK)
    assert "it took more than 4 global steps" in s.it.told[0]


@pytest.mark.parametrize("stage", ["dial", "ask", "part"])
def test_every_wait_has_a_deadline(stage: str) -> None:
    s = Newcomer()
    bound = PARAMS.silence_ms_max
    if stage != "dial":
        s.asked()
        bound = PENDING_NS // MS
    if stage == "part":
        s.hear(offer())
        bound = PART_NS // MS
    waited = 0
    while waited + 200 < bound:
        waited += 200
        assert Dial("learner-2") not in s.tick(200)
        s.hear(m.Heartbeat(1, True, {}))
    assert s.it.due_ns() <= s.now + (bound - waited) * MS
    assert Dial("learner-2") in s.tick(bound - waited)


def test_a_silent_donor_is_given_up_long_before() -> None:
    s = Newcomer().asked()
    assert len(sent(s.tick(300), m.Heartbeat)) == 1
    assert Dial("learner-2") not in s.tick(600)
    assert Dial("learner-2") in s.tick(600)
    assert "heard nothing for 1500 ms" in s.it.told[0]


def test_with_no_donor_left_it_says_why_for_each() -> None:
    s = Newcomer().asked()
    s.hear(m.Refused("busy", {}))
    s.it.disconnected("learner-2", "no connection", 0)
    assert s.it.failed == "learner-1: it refused: busy; learner-2: no connection"
    assert not s.it.active


def test_without_a_donor_within_reach_it_fails_at_once() -> None:
    it = Recovery("learner-0", PARAMS, "L", ("learner-1",))
    assert it.begin(("learner-2",), 2, 0) == []
    assert it.failed == "none of the healthy learners is within reach"


def test_a_state_that_cannot_be_loaded_leads_to_the_next_donor() -> None:
    s = Newcomer().asked()
    s.hear(offer())
    for number in range(PARTS):
        s.hear(part(number))
    assert s.it.rejected("learner-1", "checksum", 0) == [Dial("learner-2")]
    assert s.it.active


def test_a_new_connection_to_the_syncer_does_not_disturb_it() -> None:
    s = Newcomer().asked()
    assert s.it.begin(("learner-2",), 2, 0) == []
    assert s.it.due_ns() < 1 << 60


# --- the donor ----------------------------------------------------------------------------------


PEER = "caller:learner-0"


def held(stamp: int = 9, joined: bool = True) -> Held:
    return Held(1, joined, 30, (2,) * 4, (6, 7, 8, stamp))


class Donor:
    """Somebody dialled."""

    def __init__(self) -> None:
        self.it = Donating(PARAMS, "L")
        self.it.connected(PEER, 0)

    def request(
        self, stamp: int = 9, layout: str = "L", life: int = 2, has: Held | None = None
    ) -> list[Effect]:
        return self.hear(m.StateRequest(life, layout, stamp, {}), has)

    def hear(self, message: Any, has: Held | None = None) -> list[Effect]:
        return self.it.received(PEER, message, has or held(), 0, CLOCK)

    def opened(self) -> str:
        """The transfer that a request began."""
        (copy,) = jobs(self.request(), m.CopyState)
        return str(copy.transfer)


def copied(s: Donor, transfer: str) -> list[Effect]:
    return s.it.copied(m.CopyState(transfer), m.StateCopy(30, 29, {"params": "p"}), 0, CLOCK)


def test_a_request_is_served_at_once_when_the_stamp_was_seen() -> None:
    s = Donor()
    effects = copied(s, s.opened())
    (said,) = sent(effects, m.StateOffer)
    assert (said.step, said.trained, said.moments) == (30, 30, 29)
    assert (said.versions, said.committed) == ((2,) * 4, (6, 7, 8, 9))
    assert said.digests == ("params=p",)
    assert [j.number for j in jobs(effects, m.ReadState)] == list(range(WINDOW))


def test_a_request_is_pending_until_the_stamp_was_seen() -> None:
    s = Donor()
    assert s.request(stamp=10) == []
    assert s.it.pending
    assert s.it.observed(held(9)) == []
    assert len(jobs(s.it.observed(held(10)), m.CopyState)) == 1
    assert not s.it.pending


def test_no_more_parts_are_read_than_the_window_allows() -> None:
    s = Donor()
    transfer = s.opened()
    copied(s, transfer)
    effects = s.it.part(m.ReadState(transfer, 0), PART, 0, CLOCK)
    assert sent(effects, m.StatePart) == [m.StatePart(0, 0, PART, CLOCK)]
    assert [j.number for j in jobs(s.hear(m.StateAck(1, {})), m.ReadState)] == [WINDOW]
    assert s.hear(m.StateAck(1, {})) == []
    assert s.hear(m.StateAck(PARTS, {})) == []  # more than was read
    rest = jobs(s.hear(m.StateAck(WINDOW, {})), m.ReadState)
    assert [j.number for j in rest] == list(range(WINDOW + 1, PARTS))
    assert jobs(s.hear(m.StateAck(PARTS, {})), m.DropState) == [m.DropState(transfer)]


@pytest.mark.parametrize("how", ["link", "silence", "again", "dials anew"])
def test_what_was_kept_is_dropped_when_the_newcomer_goes_or_asks_again(how: str) -> None:
    s = Donor()
    transfer = s.opened()
    copied(s, transfer)
    if how == "link":
        effects = s.it.disconnected(PEER)
    elif how == "silence":
        assert s.it.due_ns() == PARAMS.silence_ms_max * MS
        effects = s.it.tick(s.it.due_ns())
        assert isinstance(effects[0], Disconnect)
    elif how == "again":
        effects = s.request()
        assert len(jobs(effects, m.CopyState)) == 1
    else:
        effects = s.it.connected(PEER, 5)
    assert m.DropState(transfer) in jobs(effects, m.DropState)
    assert s.it.part(m.ReadState(transfer, 0), PART, 0, CLOCK) == []


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"layout": "M"}, "layout: M is not L"),
        ({"life": 1}, "fenced: life 2 of it was here"),
        ({"has": held(joined=False)}, "it has no state itself"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(own: dict[str, Any], why: str) -> None:
    s = Donor()
    s.request(stamp=99)
    assert sent(s.request(**own), m.Refused) == [m.Refused(why, CLOCK)]
    assert not s.it.pending


def test_a_read_that_fails_is_told_to_the_newcomer() -> None:
    s = Donor()
    transfer = s.opened()
    effects = s.it.failed(m.CopyState(transfer), "no memory", 0, CLOCK)
    assert sent(effects, m.Refused) == [m.Refused("reading failed: no memory", CLOCK)]


def test_heartbeats_are_echoed_so_that_waiting_is_not_silence() -> None:
    s = Donor()
    s.request(stamp=99)
    assert s.hear(m.Heartbeat(7, False, {})) == [Send(PEER, m.Heartbeat(7, True, CLOCK))]
