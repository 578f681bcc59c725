"""What a learner gives of its state: to newcomers that recover from it, and to a bereft syncer.

The protocols are in ``recovery`` and ``rescue``; here they are given what the learner holds at
the instant, and what comes of them is carried out.
"""

from __future__ import annotations

from typing import Any

from harness.events import StateCopied, UnitNote
from targets.base import CALLER, Effect
from targets.diloco.arrivals import Arrivals
from targets.diloco.holding import Holding
from targets.diloco.liveness import NEVER
from targets.diloco.messages import CopyState, NeedState, Payload, ReadState, StateCopy
from targets.diloco.params import DilocoParams
from targets.diloco.recovery import Donating, Held
from targets.diloco.rescue import Handing
from targets.diloco.uplink import Uplink
from targets.diloco.vector import VectorClock
from targets.node import Desk


class Giving:
    """``layout`` is the digest that a newcomer must have too."""

    def __init__(
        self,
        desk: Desk,
        params: DilocoParams,
        layout: str,
        clock: VectorClock,
        uplink: Uplink,
        holding: Holding,
        arrivals: Arrivals,
    ) -> None:
        self.due = NEVER
        """When :meth:`tick` should be called next."""
        self._desk = desk
        self._params = params
        self._clock = clock
        self._uplink = uplink
        self._holding = holding
        self._arrivals = arrivals
        self._donating = Donating(params, layout)
        self._handing = Handing(uplink.syncer)

    # --- to a newcomer --------------------------------------------------------------------------

    def connected(self, peer: str) -> None:
        """A newcomer dialled; ``peer`` is its name as a caller."""
        self._do(self._donating.connected(peer, self._desk.now))

    def disconnected(self, peer: str) -> None:
        """Its link is gone."""
        self._do(self._donating.disconnected(peer))

    def arriving(self, peer: str, now_ns: int) -> None:
        """A part of a message of a newcomer came."""
        self._donating.arriving(peer, now_ns)

    def received(self, peer: str, message: Any) -> None:
        """A message of a newcomer."""
        clock = self._clock.read()
        self._do(self._donating.received(peer, message, self._held(), self._desk.now, clock))

    def tick(self) -> None:
        """Look at every newcomer's link."""
        self._do(self._donating.tick(self._desk.now))

    def observed(self) -> None:
        """A fragment was adopted, or failed to be: requests may have waited for that."""
        if self._donating.pending and not self._arrivals.adopting:
            self._do(self._donating.observed(self._held()))

    def _held(self) -> Held:
        # With fragments still to be adopted a stamp is not observed, whatever came before it.
        holding = self._holding
        settled = holding.joined and not self._arrivals.adopting
        committed = tuple(holding.committed) if settled else (-1,) * self._params.fragments
        return Held(
            self._desk.incarnation,
            holding.joined,
            holding.step,
            tuple(holding.versions),
            committed,
        )

    def _do(self, effects: list[Effect]) -> None:
        self._desk.out += effects
        for peer, life in self._donating.copies:
            name = peer.removeprefix(CALLER)
            step = self._holding.step
            self._desk.note(StateCopied, peer=name, peer_incarnation=life, step=step)
        self._donating.copies.clear()
        self.due = self._donating.due_ns()

    # --- to the syncer --------------------------------------------------------------------------

    def need_state(self, need: NeedState) -> None:
        """The syncer lost everything; what this learner holds may be the newest there is."""
        holding = self._holding
        if holding.joined:
            detail = f"hands its fragments over: {need.why}"
            self._desk.note(UnitNote, what="rescue", detail=detail)
            self._desk.out += self._handing.asked(tuple(holding.versions), tuple(holding.committed))

    # --- the worker -----------------------------------------------------------------------------

    def copied(self, job: CopyState, copy: StateCopy) -> None:
        """The state is pinned."""
        if self._handing.owns(job):
            self._desk.out += self._handing.copied(job)
            return
        self._do(self._donating.copied(job, copy, self._desk.now, self._clock.read()))

    def part_read(self, job: ReadState, payload: Payload) -> None:
        """A part of what is pinned was read."""
        if self._handing.owns(job):
            self._uplink.spoke()
            self._desk.out += self._handing.part(job, payload, self._clock.read())
            return
        self._do(self._donating.part(job, payload, self._desk.now, self._clock.read()))

    def failed(self, job: CopyState | ReadState, why: str) -> None:
        """The worker could not read."""
        self._desk.note(UnitNote, what="read-failed", detail=why)
        self._do(self._donating.failed(job, why, self._desk.now, self._clock.read()))
