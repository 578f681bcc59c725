"""How a learner gets its state: from a checkpoint, from a healthy peer, or from the syncer.

    an earlier run's part (first life only) ──────────────────> LoadState ┐
    a donor's whole state (``recovery``) ─────────────────────> LoadState ├──> Joined
    no donor: all P fragments of the syncer, no inner state ──> LoadAll ──┘

A learner never trains on parameters of its own making. Without a state it keeps the newest of each
fragment that it is sent: they are the state when no donor is left, and are adopted on top of a
donor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from harness.events import Joined, UnitNote
from targets.base import Effect, Work
from targets.diloco.arrivals import Arrivals
from targets.diloco.checkpointing import Resuming
from targets.diloco.holding import Holding
from targets.diloco.liveness import NEVER
from targets.diloco.messages import Fragment, LoadAll, Loaded, LoadState, NeedState, Welcome
from targets.diloco.params import DilocoParams
from targets.diloco.recovery import Recovery, Taken
from targets.diloco.uplink import Uplink
from targets.diloco.vector import VectorClock
from targets.node import Desk

STATE_NS = 30_000_000_000
"""How long a newcomer waits for the next fragment of its state; slow links need their time."""


class Trainee(Protocol):
    """Whoever trains once there is a state."""

    def go_on(self) -> None:
        """There is a state now."""

    def resumed(self) -> None:
        """It is that of an earlier run, of which the syncer was told nothing yet."""


class Joining:
    """``donors`` are the learners that can be dialled, ``layout`` what they must hold too."""

    def __init__(
        self,
        desk: Desk,
        params: DilocoParams,
        layout: str,
        donors: Sequence[str],
        resuming: Resuming | None,
        clock: VectorClock,
        uplink: Uplink,
        holding: Holding,
        arrivals: Arrivals,
        learner: Trainee,
    ) -> None:
        self.due = NEVER
        """When :meth:`tick` should be called next."""
        self.resuming = resuming
        """The part of an earlier run's checkpoint that is being loaded."""
        self._desk = desk
        self._params = params
        self._clock = clock
        self._uplink = uplink
        self._holding = holding
        self._arrivals = arrivals
        self._learner = learner
        self._recovery = Recovery(desk.name, params, layout, donors)
        self._incoming: dict[int, Fragment] = {}
        """The newest of each fragment that came before there was a state."""
        self._loading: tuple[Fragment, ...] = ()
        self._taken: Taken | None = None
        """The donor's state that is being loaded."""

    @property
    def loading(self) -> bool:
        """Whether a whole state is here and is being loaded."""
        return bool(self._loading) or self._taken is not None or self.resuming is not None

    # --- the syncer -----------------------------------------------------------------------------

    def welcomed(self, welcome: Welcome) -> None:
        """The syncer let this learner in, which has no state."""
        self._uplink.expect(STATE_NS)
        if not welcome.send_state:
            desk = self._desk
            self._recover(self._recovery.begin(welcome.donors, desk.incarnation, desk.now))

    def lost(self) -> None:
        """The link to the syncer is gone: half a state is none."""
        if not self._recovery.active:  # which needs no syncer any more
            self._incoming.clear()

    def keep(self, fragment: Fragment) -> None:
        """There is no state yet to adopt it into."""
        held = self._incoming.get(fragment.fragment)
        if held is None or held.version <= fragment.version:
            self._incoming[fragment.fragment] = fragment
        self._uplink.expect(STATE_NS)
        if self._recovery.active:
            self._uplink.answer_by = NEVER  # it watches its own deadlines
            now, clock = self._desk.now, self._clock.read()
            self._recover(self._recovery.stamped(fragment.committed, now, clock))
        elif len(self._incoming) == self._params.fragments:
            self._load()

    def _load(self) -> None:
        self._uplink.answer_by = NEVER
        self._loading = tuple(f for _, f in sorted(self._incoming.items()))
        self._incoming.clear()
        for fragment in self._loading:
            self._arrivals.expect(fragment)
        self._desk.out.append(Work(LoadAll(tuple(f.payload for f in self._loading))))

    def loaded(self, job: LoadAll, result: Loaded) -> None:
        """The syncer's parameters are loaded, with fresh inner state."""
        state, self._loading = self._loading, ()
        closed = max(f.clock.get(self._uplink.syncer, 0) for f in state)
        holding = self._holding
        holding.joined = True
        holding.step = closed if self._params.blocking else 0
        for f in state:
            holding.restart(f)
        stamp = max(holding.committed)
        self._desk.note(
            Joined,
            source="syncer" if stamp else "initial",
            clock=stamp,
            step=holding.step,
            inner="fresh",
            digests=result.digests,
            nbytes=sum(f.payload.nbytes for f in state),
            versions=tuple(f.version for f in state),
        )
        self._learner.go_on()

    # --- a donor --------------------------------------------------------------------------------

    def connected(self, peer: str) -> None:
        """The link to a donor works."""
        self._recover(self._recovery.connected(peer, self._desk.now, self._clock.read()))

    def disconnected(self, peer: str, why: str) -> None:
        """The link to a donor broke, or could not be opened."""
        self._recover(self._recovery.disconnected(peer, why, self._desk.now))

    def arriving(self, peer: str, now_ns: int) -> None:
        """A part of a message of the donor came."""
        self._recovery.arriving(peer, now_ns)

    def received(self, peer: str, message: Any) -> None:
        """A message of a donor."""
        clock = self._clock.read()
        self._recover(self._recovery.received(peer, message, self._desk.now, clock))

    def tick(self) -> None:
        """Look at every deadline of the recovery."""
        self._recover(self._recovery.tick(self._desk.now, self._clock.read()))

    def _recover(self, effects: list[Effect]) -> None:
        recovery = self._recovery
        self._desk.out += effects
        for detail in recovery.told:
            self._desk.note(UnitNote, what="recovery", detail=detail)
        recovery.told.clear()
        if recovery.taken is not None:
            self._take(recovery.taken)
            recovery.taken = None
        elif recovery.failed is not None:
            self._do_without_donor(recovery.failed)
            recovery.failed = None
        self.due = recovery.due_ns()

    def _do_without_donor(self, why: str) -> None:
        """Nobody can hand over inner state: the syncer's parameters, with fresh inner state."""
        detail = f"no donor, so fresh inner state: {why}"
        self._desk.note(UnitNote, what="recovery", detail=detail)
        if len(self._incoming) == self._params.fragments:
            self._load()
        elif self._uplink.welcomed:
            self._uplink.expect(STATE_NS)
            self._uplink.send(NeedState(why, self._clock.read()))

    def _take(self, taken: Taken) -> None:
        """All of the donor's state is here; what was broadcast since is adopted on top of it."""
        self._uplink.answer_by = NEVER
        self._taken = taken
        offer = taken.offer
        self._arrivals.start(offer.versions, offer.committed)
        self._desk.out.append(Work(LoadState(taken.payloads, offer.trained, offer.moments)))
        for fragment in self._incoming.values():
            self._arrivals.came(fragment)

    def state_loaded(self, job: LoadState, result: Loaded) -> None:
        """A whole state is loaded: the earlier run's, or a donor's."""
        if self.resuming is not None:
            self._part_loaded(self.resuming, result)
            return
        taken, self._taken = self._taken, None
        assert taken is not None
        offer, holding = taken.offer, self._holding
        self._incoming.clear()
        # Where learners wait for each other, the donor's next step would come too late.
        waits = self._params.blocking
        holding.take(offer, self._clock.of(self._uplink.syncer) if waits else offer.step)
        self._desk.note(
            Joined,
            source=taken.donor,
            clock=max(offer.committed),
            step=holding.step,
            inner=taken.donor,
            digests=result.digests,
            donor_digests={k: v for k, _, v in (d.partition("=") for d in offer.digests)},
            nbytes=taken.nbytes,
            versions=offer.versions,
            donor_step=offer.step,
        )
        self._learner.go_on()

    def not_loaded(self, why: str) -> None:
        """The donor's state is damaged or does not fit: as if it had never come."""
        taken, self._taken = self._taken, None
        assert taken is not None
        # Whole ones: the syncer sends no changes to a newcomer.
        self._incoming.update(self._arrivals.forget())
        self._recover(self._recovery.rejected(taken.donor, why, self._desk.now))

    # --- an earlier run -------------------------------------------------------------------------

    def begin(self) -> None:
        """A life begins: the first one goes on where an earlier run's checkpoint has it."""
        if self._desk.incarnation > 1:
            self.resuming = None  # its steps may be merged already: never twice from one part
        resuming = self.resuming
        if resuming is None:
            return
        counters = resuming.counters
        self._arrivals.start(counters.versions, counters.committed)
        self._holding.step = counters.step
        self._clock.advance(self._desk.name, counters.step)
        self._clock.advance(self._uplink.syncer, resuming.part.marker)
        self._desk.out.append(Work(resuming.job()))

    def _part_loaded(self, resuming: Resuming, result: Loaded) -> None:
        self.resuming = None
        self._holding.resume(resuming.counters)
        resuming.say(self._desk.note, result.digests)
        self._learner.resumed()
