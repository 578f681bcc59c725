"""One pull of the syncer: who was asked for the fragment, who answered, and whose push counts.

A learner that was asked answers once, is lost, or is late. Whatever came is judged at once
(``admission``); what was not admitted is excluded, with the reason that the journal gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.events import UpdateRefused
from targets.diloco.admission import Expected, admit
from targets.diloco.committed import Committed
from targets.diloco.liveness import NEVER
from targets.diloco.messages import MergeInput, Pull, Push
from targets.diloco.params import DilocoParams
from targets.diloco.roster import Peer, Roster
from targets.diloco.sessions import Sessions
from targets.diloco.vector import VectorClock
from targets.diloco.weighting import weight
from targets.node import Desk


class Pulling:
    """``elements`` (parameters per fragment) lets it refuse pushes of the wrong size."""

    def __init__(
        self,
        desk: Desk,
        params: DilocoParams,
        roster: Roster,
        clock: VectorClock,
        committed: Committed,
        sessions: Sessions,
        elements: Sequence[int],
    ) -> None:
        self.request = 0
        """Names the pull; rises with each."""
        self.fragment = 0
        self.until = NEVER
        """When nobody is waited for any more."""
        self.pending: dict[str, Peer] = {}
        """Who was asked and has not answered."""
        self.admitted: dict[str, tuple[Push, int]] = {}
        """Learner to its push and how long that took, in ns."""
        self.excluded: dict[str, str] = {}
        """Learner to why it has no part in the merge."""
        self.empty = 0
        """How many answered that they have not trained since they adopted the fragment."""
        self._answered: dict[str, Peer] = {}
        self._step = 0
        self._asked_ns = 0
        self._desk = desk
        self._params = params
        self._roster = roster
        self._clock = clock
        self._committed = committed
        self._sessions = sessions
        self._elements = tuple(elements)

    def begin(self, incarnation: int) -> None:
        """A life of the syncer begins."""
        self.request = incarnation << 32  # never an id of an earlier life

    def ask(self, step: int, fragment: int) -> None:
        """Ask all that are fresh for what they trained; from here on they are not."""
        desk = self._desk
        self._step, self.fragment = step, fragment
        self.request += 1
        self._asked_ns = desk.now
        self.until = desk.now + self._params.pull_ms_max * 1_000_000
        self.pending, self.admitted, self.excluded = {}, {}, {}
        self._answered, self.empty = {}, 0
        pull = Pull(self.request, fragment, self._clock.read())
        for peer in self._roster.peers:
            if peer.fresh:
                peer.fresh = False
                self.pending[peer.name] = peer
                self._sessions.send(peer, pull)
            elif peer.training:
                self.excluded[peer.name] = f"no report since step {step} opened"
            else:
                self.excluded[peer.name] = peer.away

    def came(self, peer: Peer, push: Push, open_: bool) -> bool:
        """A push, while the pull is ``open_`` or not; whether it answers the pull."""
        if push.request == self.request and peer.name in self._answered:
            why = f"duplicate: request {push.request} was answered before"
        elif not open_ or push.request != self.request:
            why = f"late: answers request {push.request}, which is closed"
            if push.incarnation != peer.incarnation:
                why = f"fenced: from life {push.incarnation}, the learner lives {peer.incarnation}"
        elif self.pending.pop(peer.name, None) is None:
            why = f"late: it was not asked in request {push.request}"
        else:
            self._answered[peer.name] = peer
            self._take(peer, push)
            return True
        self.refuse(peer.name, push, why)
        return False

    def lost(self, peer: Peer, why: str) -> bool:
        """Its link is gone; whether its answer was waited for."""
        if self.pending.pop(peer.name, None) is None:
            return False
        self.excluded[peer.name] = f"link lost while its fragment was pulled: {why}"
        return True

    def late(self) -> None:
        """The time is over for all that have not answered."""
        for name in self.pending:
            self.excluded[name] = f"late: no push within {self._params.pull_ms_max} ms"
        self.pending.clear()

    def inputs(self) -> tuple[MergeInput, ...]:
        """What is to be merged, with its weights."""
        return tuple(
            MergeInput(name, weight(push.c_tokens, push.c_steps), push.payload, push.base_version)
            for name, (push, _) in sorted(self.admitted.items())
        )

    def refuse(self, sender: str, push: Push, why: str) -> None:
        """Journal that a push counts for nothing."""
        self._desk.note(
            UpdateRefused,
            sender=sender,
            sender_incarnation=push.incarnation,
            fragment=push.fragment,
            step=push.step,
            why=why,
        )

    def _take(self, peer: Peer, push: Push) -> None:
        if push.incarnation == peer.incarnation and push.c_steps == 0:
            self.excluded[peer.name] = f"no step since it adopted fragment {push.fragment}"
            self.empty += 1
            return
        p, committed = self.fragment, self._committed
        admitted, why = admit(
            push,
            Expected(
                incarnation=peer.incarnation,
                request=self.request,
                fragment=p,
                step=self._step,
                version=committed.versions[p],
                committed=committed.steps[p],
                merged_through=peer.merged_through[p],
                stale_limit=self._params.stale_limit,
                elements=self._elements[p] if self._elements else None,
                floor=committed.floor[p],
            ),
        )
        if admitted:
            self.admitted[peer.name] = (push, self._desk.now - self._asked_ns)
            return
        self.excluded[peer.name] = f"refused: {why}"
        self.refuse(peer.name, push, why)
        if why.startswith(("stale", "duplicate")):
            peer.wanted.add(p)
            self._sessions.read_for(peer)
