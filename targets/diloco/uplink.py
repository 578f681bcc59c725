"""A learner's link to the syncer: signs of life, what is awaited from it, and which life it is of.

Every wait on the syncer has a deadline: for its welcome, for each next part of the state, and the
silence bound. A syncer of an earlier life than one that was heard is not listened to.
"""

from __future__ import annotations

from typing import Any

from harness.events import Heard, LinkDown, LinkUp
from targets.base import Send
from targets.diloco.liveness import NEVER, Link
from targets.diloco.messages import Heartbeat, Welcome
from targets.diloco.params import DilocoParams
from targets.diloco.vector import VectorClock
from targets.node import Desk


class Uplink:
    """``clock`` is the learner's."""

    def __init__(self, desk: Desk, params: DilocoParams, syncer: str, clock: VectorClock) -> None:
        self.syncer = syncer
        self.welcomed = False
        """Whether the syncer has let this learner in, over this connection."""
        self.look = NEVER
        """When :meth:`tick` should look at the link. Sends and receipts move that later, never
        earlier, so it is looked up anew only when it passes."""
        self.answer_by = NEVER
        """By when the syncer must have sent what is awaited."""
        self._desk = desk
        self._clock = clock
        self._link = Link(syncer, params)
        self._life = 0

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self._link.up

    def opened(self) -> None:
        """There is a new connection."""
        self._link.opened(self._desk.now)
        self.look = self._link.due_ns()

    def heard(self) -> None:
        """Something came over it."""
        self._link.heard_ns = self._desk.now

    def arriving(self, now_ns: int) -> None:
        """A part of a message came over it, outside any input."""
        self._link.heard_ns = now_ns

    def spoke(self) -> None:
        """Something was sent over it."""
        self._link.sent_ns = self._desk.now

    def send(self, message: Any) -> None:
        """Ask for one message to be sent."""
        self._link.sent_ns = self._desk.now
        self._desk.out.append(Send(self.syncer, message))

    def expect(self, limit_ns: int) -> None:
        """The syncer owes something within ``limit_ns``."""
        self.answer_by = self._desk.now + limit_ns

    def heartbeat(self, message: Heartbeat) -> None:
        """Echo it, or take the round trip of our own."""
        if not message.echo:
            self.send(Heartbeat(message.nonce, True, self._clock.read()))
            return
        rtt = self._link.echoed(message.nonce, self._desk.now)
        if rtt is not None:
            self._desk.note(Heard, peer=self.syncer, rtt_ns=rtt)

    def welcome(self, welcome: Welcome) -> str:
        """The syncer let this learner in; a sentence when it is one that must not be heeded."""
        if welcome.incarnation < self._life:
            return (
                f"fenced: life {welcome.incarnation} of {self.syncer} is over, "
                f"life {self._life} was here"
            )
        self._life = welcome.incarnation
        self._desk.note(LinkUp, peer=self.syncer)
        self.welcomed = True
        self.answer_by = NEVER
        return ""

    def tick(self) -> str:
        """Say something if it is time; a sentence when the connection must be given up."""
        now = self._desk.now
        verdict, why = self._link.check(now)
        if verdict == "silent":
            return why
        if now >= self.answer_by:
            what = "the rest of the state" if self.welcomed else "a welcome"
            return f"{self.syncer} did not send {what} in time"
        if verdict == "speak":
            self.send(Heartbeat(self._link.probe(now), False, self._clock.read()))
        if now >= self.look:
            self.look = self._link.due_ns()
        return ""

    def lost(self, why: str) -> None:
        """The connection is gone."""
        if self.welcomed:
            self._desk.note(LinkDown, peer=self.syncer, why=why)
        self._link.up = False
        self.look = self.answer_by = NEVER
        self.welcomed = False
