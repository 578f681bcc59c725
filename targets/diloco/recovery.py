"""Recovery of a learner from a healthy peer (paper section E.3), both sides, without I/O.

    newcomer                                   donor
    Welcome names donors: Dial one
    first fragment, stamped t_s: StateRequest ─>  has it seen t_s itself? pending until it has,
    (broadcasts are kept meanwhile)               and training all the while
                                    StateOffer <─ the state after its last step, pinned (CopyState)
    StateAck after each part        StatePart  <─ at most WINDOW parts ahead of the acknowledged
    all parts: LoadState, then what was kept is replayed

Rules of this file:

* The newcomer gives a donor up, and asks the next one, when the link breaks or is silent, when it
  refuses, when it does not answer or go on in time, and when ``recovery_limit`` global steps have
  passed since t_s. The next one is asked for the newest stamp heard, so that the bound on
  staleness starts anew. With no donor left the learner turns to the syncer.
* The donor forgets a newcomer whose link breaks or is silent, or that asks again.
* Both return effects; the learner carries them out among its own. Neither holds arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from targets.base import Dial, Disconnect, Effect, Send, Work
from targets.diloco.liveness import NEVER, Link
from targets.diloco.messages import (
    STATE_KINDS,
    Clock,
    CopyState,
    DropState,
    Heartbeat,
    Payload,
    ReadState,
    Refused,
    StateAck,
    StateCopy,
    StateOffer,
    StatePart,
    StateRequest,
)
from targets.diloco.params import DilocoParams

WINDOW = 8
"""Parts that a donor sends beyond those acknowledged: bounds what waits on either side."""

PENDING_NS = 5_000_000_000
"""How long a request may stay pending while the syncer's clock stands still."""

PART_NS = 30_000_000_000
"""How long the next part may take; slow links need their time."""

LANE = "donor"


@dataclass(frozen=True, slots=True)
class Taken:
    """A donor's whole state, ready to be loaded."""

    donor: str
    offer: StateOffer
    payloads: tuple[Payload, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(payload.nbytes for payload in self.payloads)


class Recovery:
    """The newcomer's side. ``donors`` are the peers that it has a link to, in order of asking."""

    def __init__(
        self, me: str, params: DilocoParams, layout: str, donors: Sequence[str] = ()
    ) -> None:
        self.active = False
        self.taken: Taken | None = None
        """Set when all of a donor's state is here; taking part of the effects is the learner's."""
        self.failed: str | None = None
        """Set when no donor is left to ask: why not, one reason for each."""
        self.told: list[str] = []
        """Sentences for the journal; whoever reads them clears them."""
        self._me = me
        self._params = params
        self._layout = layout
        self._reachable = tuple(donors)
        self._incarnation = 0
        self._left: list[str] = []
        self._why: list[str] = []
        self._donor = ""
        self._link = Link("", params)
        self._asked = False
        self._stamp: int | None = None
        self._newest = 0
        self._until = NEVER
        self._offer: StateOffer | None = None
        self._parts: list[Payload] = []

    # --- what the learner tells -----------------------------------------------------------------

    def begin(self, healthy: Sequence[str], incarnation: int, now: int) -> list[Effect]:
        """The syncer named its ``healthy`` learners: dial the first of those within reach."""
        if self.active:
            return []  # the link to the syncer was made anew meanwhile; the transfer goes on
        self._incarnation = incarnation
        self._left = [name for name in self._reachable if name in healthy]
        self._why = [] if self._left else ["none of the healthy learners is within reach"]
        self._stamp, self._newest = None, 0
        self.active, self.failed, self.taken = True, None, None
        return self._next(now)

    def stamped(self, step: int, now: int, clock: Clock) -> list[Effect]:
        """A fragment that was committed at global step ``step`` came from the syncer."""
        if not self.active:
            return []
        self._newest = max(self._newest, step)
        if self._stamp is None:
            self._stamp = step
            return self._ask(now, clock)
        if self._newest - self._stamp > self._params.recovery_limit:
            limit = self._params.recovery_limit
            return self._give_up(f"it took more than {limit} global steps", now)
        return []

    def connected(self, peer: str, now: int, clock: Clock) -> list[Effect]:
        """The link that was asked for works."""
        if peer != self._donor or not self.active:
            return [Disconnect(peer, "no longer needed")]
        self._link.opened(now)
        self._until = NEVER
        return self._ask(now, clock)

    def disconnected(self, peer: str, why: str, now: int) -> list[Effect]:
        """The link broke, or could not be opened."""
        if peer != self._donor or not self.active:
            return []
        self._link.up = False
        return self._give_up(why, now, hang_up=False)

    def arriving(self, peer: str, now: int) -> None:
        """A part of a message of the donor came."""
        if peer == self._donor:
            self._link.heard_ns = now

    def received(self, peer: str, message: Any, now: int, clock: Clock) -> list[Effect]:
        """A message of the donor."""
        if peer != self._donor or not self.active or not self._link.up:
            return []
        self._link.heard_ns = now
        match message:
            case StateOffer():
                return self._offered(message, now)
            case StatePart():
                return self._part(message, now, clock)
            case Refused(why=why):
                return self._give_up(f"it refused: {why}", now)
            case Heartbeat(nonce=nonce, echo=True):
                self._link.echoed(nonce, now)
            case Heartbeat(nonce=nonce):
                return [self._send(Heartbeat(nonce, True, clock), now)]
        return []

    def rejected(self, donor: str, why: str, now: int) -> list[Effect]:
        """What was taken from ``donor`` could not be loaded."""
        self.active, self._donor = True, donor
        return self._give_up(f"its state cannot be loaded: {why}", now, hang_up=False)

    def tick(self, now: int, clock: Clock) -> list[Effect]:
        """Look at every deadline."""
        if not self.active:
            return []
        if now >= self._until:
            what = (
                "be reached" if not self._link.up else "answer" if self._offer is None else "go on"
            )
            return self._give_up(f"it did not {what} in time", now)
        verdict, why = self._link.check(now)
        if verdict == "silent":
            return self._give_up(why, now)
        if verdict == "speak":
            return [self._send(Heartbeat(self._link.probe(now), False, clock), now)]
        return []

    def due_ns(self) -> int:
        """When :meth:`tick` should be called next."""
        return min(self._until, self._link.due_ns()) if self.active else NEVER

    # --- steps ----------------------------------------------------------------------------------

    def _next(self, now: int) -> list[Effect]:
        self._offer, self._parts, self._asked = None, [], False
        self._link.up = False
        if self._stamp is not None:
            self._stamp = self._newest
        if not self._left:
            self.active = False
            self._donor, self._until = "", NEVER
            self.failed = "; ".join(self._why)
            return []
        self._donor = self._left.pop(0)
        self._until = now + self._params.silence_ms_max * 1_000_000
        return [Dial(self._donor)]

    def _give_up(self, why: str, now: int, hang_up: bool = True) -> list[Effect]:
        donor = self._donor
        self._why.append(f"{donor}: {why}")
        self.told.append(f"gave up recovery from {donor}: {why}")
        hung: list[Effect] = [Disconnect(donor, why)] if hang_up else []
        return hung + self._next(now)

    def _ask(self, now: int, clock: Clock) -> list[Effect]:
        if self._stamp is None or not self._link.up or self._asked:
            return []
        self._asked = True
        self._until = now + PENDING_NS
        request = StateRequest(self._incarnation, self._layout, self._stamp, clock)
        return [self._send(request, now)]

    def _offered(self, offer: StateOffer, now: int) -> list[Effect]:
        if not self._asked or self._offer is not None:
            return []
        assert self._stamp is not None
        count = self._params.fragments
        if len(offer.versions) != count or len(offer.committed) != count:
            return self._give_up("it offers another number of fragments", now)
        if max(offer.committed) < self._stamp:
            return self._give_up(f"it offers a state from before step {self._stamp}", now)
        self._offer = offer
        self._until = now + PART_NS
        return []

    def _part(self, part: StatePart, now: int, clock: Clock) -> list[Effect]:
        if self._offer is None:
            return []
        number = len(self._parts)
        if (part.number, part.fragment) != (number, number // STATE_KINDS):
            return self._give_up(f"it sent part {part.number} where {number} was due", now)
        self._parts.append(part.payload)
        self._until = now + PART_NS
        out = [self._send(StateAck(len(self._parts), clock), now)]
        if len(self._parts) == STATE_KINDS * self._params.fragments:
            self.taken = Taken(self._donor, self._offer, tuple(self._parts))
            self.active = False
            out.append(Disconnect(self._donor, "the transfer is complete"))
            self._donor, self._parts, self._until = "", [], NEVER
        return out

    def _send(self, message: Any, now: int) -> Effect:
        self._link.sent_ns = now
        return Send(self._donor, message)


# --- the donor's side ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What the learner holds after its last main-lane job, as far as its messages say."""

    incarnation: int
    joined: bool
    step: int
    versions: tuple[int, ...]
    committed: tuple[int, ...]

    def saw(self, stamp: int) -> bool:
        """Whether it has itself observed global step ``stamp``."""
        return self.joined and max(self.committed) >= stamp


@dataclass(slots=True)
class _Taker:
    """One newcomer that is connected."""

    name: str
    link: Link
    incarnation: int = 0
    stamp: int | None = None
    """What its pending request waits for."""
    transfer: str = ""
    held: Held | None = None
    """The learner's counters at the instant of the copy."""
    read: int = 0
    acked: int = 0


class Donating:
    """The donor's side; any number of newcomers at a time."""

    def __init__(self, params: DilocoParams, layout: str) -> None:
        self.pending = False
        """Whether a request waits for the learner to observe its stamp."""
        self._params = params
        self._layout = layout
        self._parts = STATE_KINDS * params.fragments
        self._takers: dict[str, _Taker] = {}
        self._count = 0
        self.copies: list[tuple[str, int]] = []
        """For whom, and for which life of it, a copy was asked for; whoever reads them clears."""

    def connected(self, peer: str, now: int) -> list[Effect]:
        """A newcomer dialled; ``peer`` is its name as a caller."""
        out = self.disconnected(peer)
        link = Link(peer, self._params)
        link.opened(now)
        self._takers[peer] = _Taker(peer, link)
        return out

    def disconnected(self, peer: str) -> list[Effect]:
        """Its link is gone, and with it what was kept for it."""
        taker = self._takers.pop(peer, None)
        self._look()
        return [] if taker is None else _dropped(taker)

    def arriving(self, peer: str, now: int) -> None:
        """A part of a message of a newcomer came."""
        if (taker := self._takers.get(peer)) is not None:
            taker.link.heard_ns = now

    def received(self, peer: str, message: Any, held: Held, now: int, clock: Clock) -> list[Effect]:
        """A message of a newcomer; ``held`` is what the learner has at this instant."""
        taker = self._takers.get(peer)
        if taker is None:
            return []
        taker.link.heard_ns = now
        match message:
            case StateRequest():
                return self._requested(taker, message, held, now, clock)
            case StateAck(received=received):
                return self._acked(taker, received)
            case Heartbeat(nonce=nonce, echo=False):
                return [_send(taker, Heartbeat(nonce, True, clock), now)]
        return []

    def observed(self, held: Held) -> list[Effect]:
        """The learner adopted everything it had: serve the requests that waited for it."""
        out: list[Effect] = []
        for taker in self._takers.values():
            if taker.stamp is not None and held.saw(taker.stamp):
                out += self._open(taker, held)
        self._look()
        return out

    def copied(self, job: CopyState, copy: StateCopy, now: int, clock: Clock) -> list[Effect]:
        """The state is pinned: offer it and read the first parts."""
        taker = self._of(job.transfer)
        if taker is None or taker.held is None:
            return []
        held = taker.held
        offer = StateOffer(
            incarnation=held.incarnation,
            step=held.step,
            trained=copy.trained,
            moments=copy.moments,
            versions=held.versions,
            committed=held.committed,
            digests=tuple(f"{name}={value}" for name, value in sorted(copy.digests.items())),
            clock=clock,
        )
        return [_send(taker, offer, now), *self._read(taker)]

    def part(self, job: ReadState, payload: Payload, now: int, clock: Clock) -> list[Effect]:
        """A part was read: send it."""
        taker = self._of(job.transfer)
        if taker is None:
            return []
        fragment = job.number // STATE_KINDS
        return [_send(taker, StatePart(job.number, fragment, payload, clock), now)]

    def failed(self, job: CopyState | ReadState, why: str, now: int, clock: Clock) -> list[Effect]:
        """The worker could not read: the newcomer asks somebody else."""
        taker = self._of(job.transfer)
        return [] if taker is None else self._refuse(taker, f"reading failed: {why}", now, clock)

    def tick(self, now: int) -> list[Effect]:
        """Forget newcomers that fell silent."""
        out: list[Effect] = []
        for taker in list(self._takers.values()):
            verdict, why = taker.link.check(now)
            if verdict == "silent":
                out += [Disconnect(taker.name, why), *self.disconnected(taker.name)]
        return out

    def due_ns(self) -> int:
        """When :meth:`tick` should be called next."""
        if not self._takers:
            return NEVER
        bound = self._params.silence_ms_max * 1_000_000
        return min(taker.link.heard_ns for taker in self._takers.values()) + bound

    # --- steps ----------------------------------------------------------------------------------

    def _requested(
        self, taker: _Taker, request: StateRequest, held: Held, now: int, clock: Clock
    ) -> list[Effect]:
        out = _dropped(taker)
        if request.layout != self._layout:
            why = f"layout: {request.layout} is not {self._layout}"
            return out + self._refuse(taker, why, now, clock)
        if request.incarnation < taker.incarnation:
            why = f"fenced: life {taker.incarnation} of it was here"
            return out + self._refuse(taker, why, now, clock)
        if not held.joined:
            return out + self._refuse(taker, "it has no state itself", now, clock)
        taker.incarnation = request.incarnation
        taker.stamp = request.stamp
        if held.saw(request.stamp):
            out += self._open(taker, held)
        self._look()
        return out

    def _open(self, taker: _Taker, held: Held) -> list[Effect]:
        self._count += 1
        taker.stamp = None
        taker.transfer = f"{taker.name}/{self._count}"
        taker.held = held
        self.copies.append((taker.name, taker.incarnation))
        return [Work(CopyState(taker.transfer), lane=LANE)]

    def _read(self, taker: _Taker) -> list[Effect]:
        upto = min(self._parts, taker.acked + WINDOW)
        numbers = range(taker.read, upto)
        taker.read = max(taker.read, upto)
        return [Work(ReadState(taker.transfer, number), lane=LANE) for number in numbers]

    def _acked(self, taker: _Taker, received: int) -> list[Effect]:
        if not taker.transfer or not taker.acked < received <= taker.read:
            return []
        taker.acked = received
        return _dropped(taker) if received == self._parts else self._read(taker)

    def _refuse(self, taker: _Taker, why: str, now: int, clock: Clock) -> list[Effect]:
        out = _dropped(taker)
        self._look()
        return [*out, _send(taker, Refused(why, clock), now)]

    def _of(self, transfer: str) -> _Taker | None:
        """Whose transfer that is, while it goes on."""
        return next((t for t in self._takers.values() if t.transfer == transfer), None)

    def _look(self) -> None:
        self.pending = any(t.stamp is not None for t in self._takers.values())


def _dropped(taker: _Taker) -> list[Effect]:
    transfer = taker.transfer
    taker.transfer, taker.held, taker.stamp = "", None, None
    taker.read = taker.acked = 0
    return [Work(DropState(transfer), lane=LANE)] if transfer else []


def _send(taker: _Taker, message: Any, now: int) -> Effect:
    taker.link.sent_ns = now
    return Send(taker.name, message)
