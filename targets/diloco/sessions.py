"""The syncer's sessions with its learners: who is let in, and what each of them is sent.

    connection ──Hello──> turned away, with the reason
                     └──> Welcome ──what it lacks──> broadcasts, whole fragments where it must be

A learner whose part was refused as duplicate or stale gets the committed fragment, so that it
cannot be refused for ever; so does one that comes back without the outcome of its own part.
What is sent whole has to be read by the worker first; ``Peer.wanted`` is what waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.events import Heard, LinkUp, UnitNote, UpdateRefused
from targets.base import Send, Work
from targets.diloco.committed import Committed
from targets.diloco.messages import (
    AllFragments,
    Fragment,
    Heartbeat,
    Hello,
    ReadAll,
    Refused,
    Welcome,
)
from targets.diloco.params import DilocoParams
from targets.diloco.roster import Peer, Roster
from targets.diloco.vector import VectorClock
from targets.node import Desk

NO_FRAGMENT = -1
"""The ``fragment`` of a refusal that concerns a learner as a whole."""


class Sessions:
    """``layout`` is the digest that every Hello must carry."""

    def __init__(
        self,
        desk: Desk,
        params: DilocoParams,
        roster: Roster,
        clock: VectorClock,
        committed: Committed,
        layout: str,
    ) -> None:
        self._desk = desk
        self._params = params
        self._roster = roster
        self._clock = clock
        self._committed = committed
        self._layout = layout

    # --- saying ---------------------------------------------------------------------------------

    def send(self, peer: Peer, message: Any) -> None:
        """Ask for one message to be sent; it counts as a sign of life."""
        desk = self._desk
        peer.link.sent_ns = desk.now
        desk.out.append(Send(peer.name, message))

    def probe(self, peer: Peer) -> None:
        """Send a heartbeat that asks for its echo."""
        nonce = peer.link.probe(self._desk.now)
        self.send(peer, Heartbeat(nonce, False, self._clock.read()))

    def heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        """Echo it, or take the round trip of our own."""
        if not peer.link.up:
            return
        if not message.echo:
            self.send(peer, Heartbeat(message.nonce, True, self._clock.read()))
            return
        rtt = peer.link.echoed(message.nonce, self._desk.now)
        if rtt is not None:
            self._desk.note(Heard, peer=peer.name, rtt_ns=rtt)

    # --- letting in -----------------------------------------------------------------------------

    def hello(self, peer: Peer, hello: Hello) -> bool:
        """Let the learner in and welcome it, or turn it away; whether it is in."""
        if not peer.link.up:
            return False
        if why := self._objection(peer, hello):
            self.turn_away(peer.name, hello, why)
            return False
        if hello.incarnation > peer.incarnation:
            peer.begin_life(hello.incarnation)
        if not peer.greeted:
            self._desk.note(LinkUp, peer=peer.name)
        peer.greeted = True
        peer.away = "joining"
        newcomer = hello.versions is None
        donors = self._donors(peer) if newcomer else ()
        if hello.versions is not None:
            peer.holds = list(hello.versions)
            if self._params.blocking and peer.position < 0:
                # Not known to this life of ours. It says its last report again, because it may be
                # waiting for the merge of that step; of a step closed before, that is no news.
                peer.position = hello.step
        peer.training = not newcomer
        peer.awaiting = newcomer and not donors
        peer.wanted = self._newest(donors) if newcomer else self._missed(peer, hello)
        self.send(
            peer,
            Welcome(
                incarnation=self._desk.incarnation,
                versions=tuple(self._committed.versions),
                send_state=peer.awaiting,
                donors=donors,
                clock=self._clock.read(),
            ),
        )
        return True

    def _objection(self, peer: Peer, hello: Hello) -> str:
        """Why this learner cannot be let in; empty when it can."""
        if hello.layout != self._layout:
            return f"layout: parameter layout {hello.layout}, this run has {self._layout}"
        if hello.versions is not None and len(hello.versions) != self._params.fragments:
            have, want = len(hello.versions), self._params.fragments
            return f"layout: {have} fragments, this run has {want}"
        if hello.incarnation < peer.incarnation:
            return f"fenced: life {hello.incarnation} is over, life {peer.incarnation} was here"
        return ""

    def turn_away(self, name: str, hello: Hello, why: str) -> None:
        """Refuse whoever said ``hello``."""
        self._desk.out.append(Send(name, Refused(why, self._clock.read())))
        self._desk.note(
            UpdateRefused,
            sender=name,
            sender_incarnation=hello.incarnation,
            fragment=NO_FRAGMENT,
            step=hello.step,
            why=why,
        )

    def _donors(self, newcomer: Peer) -> tuple[str, ...]:
        """Whom a newcomer may recover from. While the cluster is only beginning, the syncer's
        parameters are as good as anybody's and inner states are nothing yet."""
        if self._params.recovery == "syncer" or not all(self._committed.versions):
            return ()
        return self._roster.donors(newcomer.name)

    def _newest(self, donors: Sequence[str]) -> set[int]:
        """What a newcomer is sent at once: everything, or for one that has donors the fragment
        committed last. Its stamp starts the recovery (paper E.3.2) without waiting for the next
        merge, which may be far off or even need the newcomer."""
        if not donors:
            return set(range(self._params.fragments))
        return {max(range(self._params.fragments), key=self._committed.steps.__getitem__)}

    def _missed(self, peer: Peer, hello: Hello) -> set[int]:
        """Fragments that a returning learner cannot do without: the outcome of its own part was
        lost on the way, or it may be waiting for one."""
        assert hello.versions is not None
        committed = self._committed
        ahead = [p for p, held in enumerate(hello.versions) if held > committed.versions[p]]
        if ahead and not committed.bereft:
            self._desk.note(
                UnitNote,
                what="history-lost",
                detail=f"{peer.name} holds newer versions of fragments {ahead} than the syncer",
            )
        bar = committed.versions if self._params.blocking else peer.contributed
        floor = committed.floor
        return {p for p, held in enumerate(hello.versions) if held < max(bar[p], floor[p])}

    # --- fragments ------------------------------------------------------------------------------

    def need_state(self, peer: Peer) -> None:
        """A newcomer found no donor: everything comes from the syncer."""
        if not peer.training:
            peer.awaiting = True
            peer.wanted = set(range(self._params.fragments))
            self.read_for(peer)

    def broadcast(self, peer: Peer, message: Fragment) -> None:
        """Send a merged fragment; whole to a learner that lacks the version it is a change of, and
        to one that is only recovering, which keeps nothing but the newest of each fragment."""
        p = message.fragment
        known = peer.training and peer.holds[p] == message.version - 1
        if message.payload.relative and not known:
            self.send_whole(peer, p)
            return
        peer.holds[p] = message.version
        self.send(peer, message)

    def send_whole(self, peer: Peer, fragment: int) -> None:
        """Send the committed fragment itself, once it is read."""
        if peer.greeted:
            peer.wanted.add(fragment)
            self.read_for(peer)

    def read_for(self, peer: Peer) -> None:
        """Let the worker read what the learner is to be sent."""
        if not peer.reading and not self._committed.bereft:
            peer.reading += 1
            self._desk.out.append(Work(ReadAll(peer.name)))

    def send_wanted(self, peer: Peer, result: AllFragments) -> None:
        """The worker has read: send what is wanted of it."""
        peer.reading = 0
        if not peer.greeted:
            return
        clock, committed = self._clock.read(), self._committed
        for p in sorted(peer.wanted):
            payload = result.payloads[p]
            version = peer.holds[p] = committed.versions[p]
            self.send(peer, Fragment(p, version, committed.steps[p], payload, clock))
        peer.wanted.clear()
        peer.awaiting = False
