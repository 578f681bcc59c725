"""The learner's protocol: Algorithm 1 of the paper as a state machine without I/O.

    no state ──a donor's state──> LoadState ┬─> Joined ──> TrainStep, TrainStep, TrainStep, ...
       │  │                                 │  between two steps: Adopt what came meanwhile
       │  └──── all P fragments ──> LoadAll ┘  after every step: Report
       │        (no donor)                     at any time: Pull -> Read -> Push
       └── link lost: start over

Rules of this file:

* A learner never trains on parameters of its own making: the first ones come from a healthy
  peer, with its inner state (``targets.diloco.recovery``), or else from the syncer.
* Training never waits for a link or for the syncer, unless ``blocking``: then, after local step
  s, it waits until it has the merge of the fragment that is due at global step s. In that mode
  local steps are counted as global ones: a newcomer starts at the syncer's last closed step.
* Jobs of lane "main" (steps, adopting) are queued in the order in which they apply. Counters
  change when a job is done, in the critical section in which the driver publishes the snapshot
  after it; a Read uses the snapshot, and the push the counters, of the instant of the pull.
* Every wait on the syncer has a deadline: for its welcome, for each next part of the state, and
  the silence bound. Passing one gives the link up; the driver connects anew with backoff.
* A syncer of an earlier life than one that was heard is not listened to.

The drivers write UnitStarted and UnitReady; everything else a learner has to say is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from harness.events import (
    Adopted,
    Heard,
    Joined,
    LinkDown,
    LinkUp,
    StateCopied,
    Step,
    Tampered,
    UnitEnded,
    UnitNote,
    Waited,
)
from targets.base import (
    CALLER,
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Input,
    Note,
    Received,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.diloco.checkpointing import Checkpointing, Counters, Resuming
from targets.diloco.fragments import schedule
from targets.diloco.liveness import NEVER, Link
from targets.diloco.messages import (
    Adopt,
    CopyState,
    DropState,
    Fragment,
    Heartbeat,
    Hello,
    KeepPart,
    LoadAll,
    Loaded,
    LoadState,
    NeedState,
    PartKept,
    Payload,
    PruneParts,
    Pull,
    Push,
    Read,
    ReadState,
    Refused,
    Report,
    SnapshotsKept,
    StateCopy,
    StepResult,
    TrainStep,
    Welcome,
)
from targets.diloco.params import DilocoParams
from targets.diloco.recovery import Donating, Held, Recovery, Taken
from targets.diloco.rescue import Handing
from targets.diloco.vector import VectorClock

STATE_NS = 30_000_000_000
"""How long a newcomer waits for the next fragment of its state; slow links need their time."""

WAITED_EVERY_NS = 1_000_000_000
"""A long wait is journalled in pieces, so that a unit killed in it loses at most one."""

STOP_NS_MAX = 500_000_000
"""How long a stop may be put off to answer pulls."""

NOTHING = Payload(dtype="f32", nbytes=0, digest="")
"""Answers a pull of a fragment that was adopted after the last step."""


class _Counted(NamedTuple):
    """Counters of one fragment at the instant of a pull."""

    since_step: int
    step: int
    c_tokens: int
    base_version: int
    base_clock: int


class Learner:
    """Node of one learner. ``layout`` is the digest of its parameter layout (see Hello);
    ``donors`` are the learners that it has a link to, on demand."""

    def __init__(
        self,
        name: str,
        params: DilocoParams,
        syncer: str = "syncer",
        layout: str = "",
        donors: Sequence[str] = (),
        resuming: Resuming | None = None,
        lives_before: int = 0,
    ) -> None:
        self.name = name
        self.params = params
        self.syncer = syncer
        self.layout = layout
        self.step = 0
        """Local steps completed: t_m."""
        self.joined = False
        self.versions = [0] * params.fragments
        """Version of each fragment that the parameters (will, once loaded) build on."""
        self.committed = [0] * params.fragments
        self.since = [0] * params.fragments
        """Local step at which each fragment was adopted; its counters run from there."""
        self._tokens = 0
        self._tokens_at = [0] * params.fragments
        self._known = [0] * params.fragments
        """Newest version received, adopted or not."""
        self._awaited = [0] * params.fragments
        """Global step of the newest version received."""
        self._told = [0] * params.fragments
        """The syncer's versions when it said welcome."""
        self._closed = 0
        """The last global step that it said to have closed (``blocking``)."""
        self._clock = VectorClock()
        self._link = Link(syncer, params)
        # Looked up anew only when it passes: sends and receipts move it later, never earlier.
        self._link_due = NEVER
        self._welcomed = False
        self._answer_by = NEVER
        self._syncer_life = 0
        self._incoming: dict[int, Fragment] = {}
        """The newest of each fragment that came before there was a state."""
        self._loading: tuple[Fragment, ...] = ()
        self._taken: Taken | None = None
        """The donor's state that is being loaded."""
        self._resuming = resuming
        """The part of an earlier run's checkpoint that the first life here goes on from."""
        self._lives_before = lives_before
        marker = resuming.part.marker if resuming is not None else 0
        self._checkpoints = Checkpointing(syncer, params.checkpoint_every, self._note, marker)
        self._recovery = Recovery(name, params, layout, donors)
        self._donating = Donating(params, layout)
        self._handing = Handing(syncer)
        self._peers_due = NEVER
        """As ``_link_due``, for links to other learners; they are rare."""
        self._pending: dict[int, list[Fragment]] = {}
        """Fragment to what came of it since the last step: changes one after the other."""
        self._adopting: list[Fragment] = []
        self._reads: dict[int, _Counted] = {}
        """Request to what its push will say."""
        self._spoilt: dict[int, int] = {}
        """Fragment to the local step after which a fault spoilt it last."""
        self._report: Report | None = None
        self._stepping = False
        self._waiting_since: int | None = None
        self._stop_by: int | None = None
        self._stopped = False
        self._schedule = schedule(params.fragments, params.sync_every)
        self._incarnation = 0
        self._now = 0
        self._out: list[Effect] = []
        self._on_input: dict[type[Any], Callable[[Any], None]] = {
            Started: self._started,
            Connected: self._connected,
            Disconnected: self._disconnected,
            Received: self._received,
            WorkDone: self._work_done,
            WorkFailed: self._work_failed,
            Tick: self._tick,
            StopAsked: self._stop_asked,
        }
        self._on_message: dict[type[Any], Callable[[Any], None]] = {
            Welcome: self._welcome,
            Pull: self._pull,
            Fragment: self._fragment,
            Heartbeat: self._heartbeat,
            Refused: self._refused,
            NeedState: self._hand_over,
            SnapshotsKept: lambda told: self._out.extend(self._checkpoints.prune(told)),
        }
        self._on_result: dict[type[Any], Callable[[Any, Any], None]] = {
            TrainStep: self._trained,
            Adopt: self._adopted,
            LoadAll: self._loaded,
            Read: self._read,
            LoadState: self._state_loaded,
            CopyState: self._copied,
            ReadState: self._part_read,
            DropState: lambda job, result: None,
            KeepPart: self._part_kept,
            PruneParts: lambda job, result: None,
        }

    # --- the Node interface ---------------------------------------------------------------------

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to one input; see ``targets.base.Node``."""
        self._now = now_ns
        out: list[Effect] = []
        self._out = out
        if not self._stopped:
            self._on_input[type(event)](event)
        return out

    def deadline_ns(self) -> int | None:
        """The earliest of: the link's next look, an awaited answer, a stop, a piece of waiting."""
        if self._stopped:
            return None
        # Asked after every input; comparisons in line cost a third of calls to min().
        due = self._link_due
        if self._answer_by < due:
            due = self._answer_by
        if self._peers_due < due:
            due = self._peers_due
        if self._stop_by is not None and self._stop_by < due:
            due = self._stop_by
        since = self._waiting_since
        if since is not None and since + WAITED_EVERY_NS < due:
            due = since + WAITED_EVERY_NS
        return None if due >= NEVER else due

    # --- life -----------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        self._incarnation = event.incarnation
        if event.incarnation > 1:
            self._resuming = None  # its steps may be merged already: never twice from one part
        if self._resuming is not None:
            self._take_part(self._resuming)

    def _stop_asked(self, event: StopAsked) -> None:
        self._stop_by = self._now + min(event.grace_ns // 2, STOP_NS_MAX)
        self._stop_when_answered()

    def _stop_when_answered(self) -> None:
        if self._stop_by is not None and (not self._reads or self._now >= self._stop_by):
            left = f", {len(self._reads)} pulls unanswered" if self._reads else ""
            self._end(f"asked to stop{left}", code=0)

    def _end(self, why: str, code: int) -> None:
        self._note_waiting("stopped while waiting")
        self._note(UnitEnded, why=why)
        self._out.append(Stop(why, code))
        self._stopped = True

    def _tick(self, event: Tick) -> None:
        verdict, why = self._link.check(self._now)
        if verdict == "silent":
            self._give_up(why)
        elif self._now >= self._answer_by:
            what = "the rest of the state" if self._welcomed else "a welcome"
            self._give_up(f"{self.syncer} did not send {what} in time")
        elif verdict == "speak":
            nonce = self._link.probe(self._now)
            self._send(Heartbeat(nonce, False, self._clock.read()))
        if self._now >= self._link_due:
            self._link_due = self._link.due_ns()
        if self._now >= self._peers_due:
            self._look_at_peers()
        since = self._waiting_since
        if since is not None and self._now - since >= WAITED_EVERY_NS:
            self._note_waiting("still waiting")
            self._waiting_since = self._now
        self._stop_when_answered()

    # --- the link -------------------------------------------------------------------------------

    def _connected(self, event: Connected) -> None:
        peer = event.peer
        if peer.startswith(CALLER):
            self._donate(self._donating.connected(peer, self._now))
        elif peer != self.syncer:
            self._recover(self._recovery.connected(peer, self._now, self._clock.read()))
        else:
            self._greet()

    def _greet(self) -> None:
        if self._link.up:
            self._lose("replaced by a new connection")
        self._link.opened(self._now)
        self._link_due = self._link.due_ns()
        if self._resuming is None:
            self._say_hello()  # else once the part is loaded

    def _say_hello(self) -> None:
        self._answer_by = self._now + self.params.silence_ms_max * 1_000_000
        held = self.joined or self._has_state()
        self._send(
            Hello(
                incarnation=self._incarnation,
                layout=self.layout,
                step=self.step,
                versions=tuple(self._known) if held else None,
                clock=self._clock.read(),
            )
        )

    def _has_state(self) -> bool:
        return bool(self._loading) or self._taken is not None or self._resuming is not None

    def _disconnected(self, event: Disconnected) -> None:
        peer = event.peer
        if peer.startswith(CALLER):
            self._donate(self._donating.disconnected(peer))
        elif peer != self.syncer:
            self._recover(self._recovery.disconnected(peer, event.why, self._now))
        elif self._link.up:
            self._lose(event.why)

    def _give_up(self, why: str) -> None:
        self._out.append(Disconnect(self.syncer, why))
        self._lose(why)

    def _lose(self, why: str) -> None:
        """The connection is gone: nobody awaits our answers, and half a state is none."""
        if self._welcomed:
            self._note(LinkDown, peer=self.syncer, why=why)
        self._link.up = False
        self._link_due = NEVER
        self._welcomed = False
        self._answer_by = NEVER
        self._reads.clear()
        if not self._recovery.active:  # which needs no syncer any more
            self._incoming.clear()
        self._stop_when_answered()

    def _send(self, message: Any) -> None:
        self._link.sent_ns = self._now
        self._out.append(Send(self.syncer, message))

    def _note(self, kind: Callable[..., Any], **fields: Any) -> None:
        self._out.append(
            Note(kind(t_ns=self._now, unit=self.name, incarnation=self._incarnation, **fields))
        )

    # --- messages -------------------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        if event.sender != self.syncer:
            self._of_peer(event)
            return
        if not self._link.up:
            return  # of a connection that was given up
        self._link.heard_ns = self._now
        message = event.message
        self._look_for_marker(message)
        self._clock.merge(message.clock)
        if self.params.blocking:
            self._closed = max(self._closed, message.clock.get(self.syncer, 0))
        handler = self._on_message.get(type(message))
        if handler is not None:
            handler(message)
        if self._waiting_since is not None and self._may_pass():
            self._go_on()

    def _heartbeat(self, message: Heartbeat) -> None:
        if not message.echo:
            self._send(Heartbeat(message.nonce, True, self._clock.read()))
            return
        rtt = self._link.echoed(message.nonce, self._now)
        if rtt is not None:
            self._note(Heard, peer=self.syncer, rtt_ns=rtt)

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.incarnation < self._syncer_life:
            self._give_up(
                f"fenced: life {welcome.incarnation} of {self.syncer} is over, "
                f"life {self._syncer_life} was here"
            )
            return
        self._syncer_life = welcome.incarnation
        self._told = list(welcome.versions)
        self._note(LinkUp, peer=self.syncer)
        self._welcomed = True
        self._answer_by = NEVER
        if not (self.joined or self._has_state()):
            self._answer_by = self._now + STATE_NS
            if not welcome.send_state:
                began = self._recovery.begin(welcome.donors, self._incarnation, self._now)
                self._recover(began)
        elif self._waiting_since is not None and self._report is not None:
            self._send(self._report)  # the one sent before may have died with the old link

    def _refused(self, message: Refused) -> None:
        self._end(f"{self.syncer} refused: {message.why}", code=1)

    def _hand_over(self, need: NeedState) -> None:
        """The syncer lost everything; what this learner holds may be the newest there is."""
        if self.joined:
            self._note(UnitNote, what="rescue", detail=f"hands its fragments over: {need.why}")
            self._out += self._handing.asked(tuple(self.versions), tuple(self.committed))

    def _pull(self, pull: Pull) -> None:
        """Answer from what the learner holds now; with an empty push when there is no step."""
        p = pull.fragment
        if not self.joined or pull.request in self._reads:
            return
        state = _Counted(
            self.since[p],
            self.step,
            self._tokens - self._tokens_at[p],
            self.versions[p],
            self.committed[p],
        )
        if state.step == state.since_step:
            self._send(self._push(pull.request, p, state, NOTHING))
            return
        self._reads[pull.request] = state
        self._out.append(Work(Read(p, pull.request), lane="io"))

    def _push(self, request: int, fragment: int, state: _Counted, payload: Payload) -> Push:
        return Push(
            incarnation=self._incarnation,
            request=request,
            fragment=fragment,
            since_step=state.since_step,
            step=state.step,
            c_steps=state.step - state.since_step,
            c_tokens=state.c_tokens,
            base_version=state.base_version,
            base_clock=state.base_clock,
            payload=payload,
            clock=self._clock.read(),
        )

    def _fragment(self, fragment: Fragment) -> None:
        p = fragment.fragment
        if not (self.joined or self._has_state()):
            self._keep(fragment)
        elif fragment.version > self._known[p]:
            self._expect(fragment)
            queued = self._pending.get(p, []) if fragment.payload.relative else []
            self._pending[p] = [*queued, fragment]
            if self.joined and not self._stepping:
                self._go_on()

    def _keep(self, fragment: Fragment) -> None:
        """There is no state yet to adopt it into."""
        held = self._incoming.get(fragment.fragment)
        if held is None or held.version <= fragment.version:
            self._incoming[fragment.fragment] = fragment
        self._answer_by = self._now + STATE_NS
        if self._recovery.active:
            self._answer_by = NEVER  # it watches its own deadlines
            clock = self._clock.read()
            self._recover(self._recovery.stamped(fragment.committed, self._now, clock))
        elif len(self._incoming) == self.params.fragments:
            self._load()

    def _expect(self, fragment: Fragment) -> None:
        self._known[fragment.fragment] = fragment.version
        self._awaited[fragment.fragment] = fragment.committed

    def _load(self) -> None:
        self._answer_by = NEVER
        self._loading = tuple(f for _, f in sorted(self._incoming.items()))
        self._incoming.clear()
        for fragment in self._loading:
            self._expect(fragment)
        self._out.append(Work(LoadAll(tuple(f.payload for f in self._loading))))

    # --- recovery from a peer, and of a peer ----------------------------------------------------

    def _of_peer(self, event: Received) -> None:
        peer, message = event.sender, event.message
        self._look_for_marker(message)
        self._clock.merge(message.clock)
        clock = self._clock.read()
        if peer.startswith(CALLER):
            held = self._held()
            self._donate(self._donating.received(peer, message, held, self._now, clock))
        else:
            self._recover(self._recovery.received(peer, message, self._now, clock))

    def _look_at_peers(self) -> None:
        self._donate(self._donating.tick(self._now))
        self._recover(self._recovery.tick(self._now, self._clock.read()))

    def _held(self) -> Held:
        # With fragments still to be adopted a stamp is not observed, whatever came before it.
        settled = self.joined and not self._adopting
        committed = tuple(self.committed) if settled else (-1,) * self.params.fragments
        return Held(self._incarnation, self.joined, self.step, tuple(self.versions), committed)

    def _donate(self, effects: list[Effect]) -> None:
        self._out += effects
        for peer, life in self._donating.copies:
            name = peer.removeprefix(CALLER)
            self._note(StateCopied, peer=name, peer_incarnation=life, step=self.step)
        self._donating.copies.clear()
        self._peers_due = min(self._recovery.due_ns(), self._donating.due_ns())

    def _recover(self, effects: list[Effect]) -> None:
        recovery = self._recovery
        self._out += effects
        for detail in recovery.told:
            self._note(UnitNote, what="recovery", detail=detail)
        recovery.told.clear()
        if recovery.taken is not None:
            self._take(recovery.taken)
            recovery.taken = None
        elif recovery.failed is not None:
            self._do_without_donor(recovery.failed)
            recovery.failed = None
        self._peers_due = min(recovery.due_ns(), self._donating.due_ns())

    def _do_without_donor(self, why: str) -> None:
        """Nobody can hand over inner state: the syncer's parameters, with fresh inner state."""
        self._note(UnitNote, what="recovery", detail=f"no donor, so fresh inner state: {why}")
        if len(self._incoming) == self.params.fragments:
            self._load()
        elif self._welcomed:
            self._answer_by = self._now + STATE_NS
            self._send(NeedState(why, self._clock.read()))

    def _take(self, taken: Taken) -> None:
        """All of the donor's state is here; what was broadcast since is adopted on top of it."""
        self._answer_by = NEVER
        self._taken = taken
        # A change can only be added to what the syncer sent, so that has to be adopted once more.
        again = self.params.wire_down == "int4"
        self._known = [max(0, version - again) for version in taken.offer.versions]
        self._awaited = list(taken.offer.committed)
        job = LoadState(taken.payloads, taken.offer.trained, taken.offer.moments)
        self._out.append(Work(job))
        for fragment in self._incoming.values():
            self._fragment(fragment)

    def _state_loaded(self, job: LoadState, result: Loaded) -> None:
        if self._resuming is not None:
            self._part_loaded(self._resuming, result)
            return
        taken, self._taken = self._taken, None
        assert taken is not None
        offer = taken.offer
        self._incoming.clear()
        self.joined = True
        # Where learners wait for each other, the donor's next step would come too late.
        self.step = self._clock.of(self.syncer) if self.params.blocking else offer.step
        self.versions, self.committed = list(offer.versions), list(offer.committed)
        self.since = [self.step] * self.params.fragments
        self._note(
            Joined,
            source=taken.donor,
            clock=max(offer.committed),
            step=self.step,
            inner=taken.donor,
            digests=result.digests,
            donor_digests={k: v for k, _, v in (d.partition("=") for d in offer.digests)},
            nbytes=taken.nbytes,
            versions=offer.versions,
            donor_step=offer.step,
        )
        self._go_on()

    def _not_loaded(self, why: str) -> None:
        """The donor's state is damaged or does not fit: as if it had never come."""
        taken, self._taken = self._taken, None
        assert taken is not None
        for p, queued in self._pending.items():
            self._incoming[p] = queued[-1]  # whole: the syncer sends no changes to a newcomer
        self._pending.clear()
        self._known = [0] * self.params.fragments
        self._recover(self._recovery.rejected(taken.donor, why, self._now))

    def _serve_pending(self) -> None:
        if self._donating.pending and not self._adopting:
            self._donate(self._donating.observed(self._held()))

    def _copied(self, job: CopyState, copy: StateCopy) -> None:
        if self._handing.owns(job):
            self._out += self._handing.copied(job)
            return
        self._donate(self._donating.copied(job, copy, self._now, self._clock.read()))

    def _part_read(self, job: ReadState, payload: Payload) -> None:
        if self._handing.owns(job):
            self._link.sent_ns = self._now
            self._out += self._handing.part(job, payload, self._clock.read())
            return
        self._donate(self._donating.part(job, payload, self._now, self._clock.read()))

    # --- checkpoints ----------------------------------------------------------------------------

    def _look_for_marker(self, message: Any) -> None:
        """Cut before ``message`` is acted on, if it is the first one past a multiple of T_c."""
        if not self._checkpoints.every:
            return
        marker = self._checkpoints.passed(message.clock)
        if not marker:
            return
        if not self.joined:
            if self._has_state():  # the syncer was told of it and may wait
                self._no_part(marker, "its state was not loaded yet")
            return
        counters = Counters(
            step=self.step,
            versions=tuple(self.versions),
            committed=tuple(self.committed),
            since=tuple(self.since),
            tokens=tuple([self._tokens - at for at in self._tokens_at]),
            life=self._lives_before + self._incarnation,
        )
        self._out += self._checkpoints.cut(marker, self._incarnation, counters, self._now)

    def _part_kept(self, job: KeepPart, result: PartKept) -> None:
        saved = self._checkpoints.kept(job, result, self._now, self._clock.read())
        if self._welcomed:
            self._send(saved)

    def _no_part(self, marker: int, why: str) -> None:
        none = self._checkpoints.failed(marker, why, self._clock.read())
        if self._welcomed:
            self._send(none)

    def _take_part(self, resuming: Resuming) -> None:
        """Go on where an earlier run's checkpoint has this learner."""
        counters = resuming.counters
        # As after a recovery: a change can only be added to what was sent in this run.
        again = self.params.wire_down == "int4"
        self._known = [max(0, version - again) for version in counters.versions]
        self._awaited = list(counters.committed)
        self.step = counters.step
        self._clock.advance(self.name, counters.step)
        self._clock.advance(self.syncer, resuming.part.marker)
        self._out.append(Work(resuming.job()))

    def _part_loaded(self, resuming: Resuming, result: Loaded) -> None:
        self._resuming = None
        counters = resuming.counters
        self.joined = True
        self.versions, self.committed = list(counters.versions), list(counters.committed)
        self.since = list(counters.since)
        self._tokens = max(counters.tokens)
        self._tokens_at = [self._tokens - tokens for tokens in counters.tokens]
        if self.step:  # what it said last, to a syncer on which it may have to wait
            self._report = self._reported(step_ns=0)
        resuming.say(self._note, result.digests)
        if self._link.up:
            self._say_hello()
        self._go_on()

    # --- work -----------------------------------------------------------------------------------

    def _work_done(self, event: WorkDone) -> None:
        self._on_result[type(event.job)](event.job, event.result)

    def _loaded(self, job: LoadAll, result: Loaded) -> None:
        state, self._loading = self._loading, ()
        closed = max(f.clock.get(self.syncer, 0) for f in state)
        self.joined = True
        self.step = closed if self.params.blocking else 0
        for f in state:
            self._restart_counters(f)
        stamp = max(self.committed)
        self._note(
            Joined,
            source="syncer" if stamp else "initial",
            clock=stamp,
            step=self.step,
            inner="fresh",
            digests=result.digests,
            nbytes=sum(f.payload.nbytes for f in state),
            versions=tuple(f.version for f in state),
        )
        self._go_on()

    def _restart_counters(self, f: Fragment) -> None:
        p = f.fragment
        self.versions[p] = f.version
        self.committed[p] = f.committed
        self.since[p] = self.step
        self._tokens_at[p] = self._tokens

    def _go_on(self) -> None:
        """The main lane is free: adopt what came, then step, or wait where that is the rule."""
        for fragment in chain.from_iterable(self._pending.values()):
            self._adopting.append(fragment)
            job = Adopt(fragment.fragment, fragment.version, fragment.payload)
            self._out.append(Work(job))
        self._pending.clear()
        if self._stop_by is not None:
            return
        if self.params.blocking and not self._may_pass():
            if self._waiting_since is None:
                self._waiting_since = self._now
            return
        self._note_waiting("the merge came")
        self._stepping = True
        self._out.append(Work(TrainStep(self.step + 1)))

    def _may_pass(self) -> bool:
        """Whether the merge that is due at this step is here (at the start nothing is)."""
        fragment = self._schedule[self.step % self.params.sync_every]
        if fragment is None or self._report is None:
            return True
        if self._awaited[fragment] >= self.step:
            return True
        # Closed without a merge, or skipped by a syncer that had lost something: it never comes.
        return self._closed >= self.step and self._known[fragment] >= self._told[fragment]

    def _note_waiting(self, how: str) -> None:
        if self._waiting_since is not None:
            self._note(
                Waited,
                began_at_ns=self._waiting_since,
                why=f"for the merge due at step {self.step}: {how}",
            )
            self._waiting_since = None

    def _trained(self, job: TrainStep, result: StepResult) -> None:
        self._stepping = False
        self.step = job.step
        self._tokens += result.tokens
        self._clock.advance(self.name, job.step)
        self._note(
            Step,
            step=job.step,
            began_at_ns=result.began_at_ns,
            tokens=result.tokens,
            compute_ns=result.compute_ns,
            nominal_ns=result.nominal_ns,
            clock=self._clock.of(self.syncer),
            loss=result.loss,
        )
        self._report = self._reported(self._now - result.began_at_ns)
        if self._welcomed:
            self._send(self._report)
        self._go_on()

    def _reported(self, step_ns: int) -> Report:
        return Report(
            incarnation=self._incarnation,
            step=self.step,
            c_steps=tuple([self.step - since for since in self.since]),
            c_tokens=tuple([self._tokens - at for at in self._tokens_at]),
            step_ns=step_ns,
            clock=self._clock.read(),
        )

    def _adopted(self, job: Adopt, result: Any) -> None:
        fragment = self._adopting.pop(0)
        self._restart_counters(fragment)
        self._note(
            Adopted,
            fragment=fragment.fragment,
            version=fragment.version,
            clock=fragment.committed,
            step=self.step,
        )
        self._serve_pending()

    def _read(self, job: Read, payload: Payload) -> None:
        state = self._reads.pop(job.request, None)
        if state is not None:  # else the link it was for is gone
            self._note_tampering(job.fragment, state.step, payload.tampered)
            self._send(self._push(job.request, job.fragment, state, payload))
        self._stop_when_answered()

    def _note_tampering(self, fragment: int, step: int, update: str) -> None:
        """A tape has to say which payloads were spoilt: some are accepted all the same."""
        if update or self._spoilt.get(fragment) == step:
            self._spoilt[fragment] = step
            self._note(Tampered, fragment=fragment, step=step, update=update)

    def _work_failed(self, event: WorkFailed) -> None:
        job = event.job
        if isinstance(job, Read):
            self._reads.pop(job.request, None)  # the syncer's own deadline passes
            self._note(UnitNote, what="read-failed", detail=event.why)
            self._stop_when_answered()
        elif isinstance(job, Adopt):
            fragment = self._adopting.pop(0)
            detail = f"fragment {fragment.fragment} version {fragment.version}: {event.why}"
            self._note(UnitNote, what="adopt-failed", detail=detail)
            if fragment.payload.relative:
                self._lost_anchor(fragment.fragment)
            self._serve_pending()
        elif isinstance(job, CopyState | ReadState):
            self._note(UnitNote, what="read-failed", detail=event.why)
            clock = self._clock.read()
            self._donate(self._donating.failed(job, event.why, self._now, clock))
        elif isinstance(job, KeepPart):
            self._no_part(job.marker, event.why)
        elif isinstance(job, PruneParts):
            self._note(UnitNote, what="checkpoint-failed", detail=f"pruning: {event.why}")
        elif isinstance(job, LoadState) and self._resuming is not None:
            self._end(f"its part of the checkpoint cannot be loaded: {event.why}", code=1)
        elif isinstance(job, LoadState):
            self._not_loaded(event.why)
        else:
            self._end(f"{type(job).__name__} failed: {event.why}", code=1)

    def _lost_anchor(self, fragment: int) -> None:
        """No later change of this fragment can be used either; on a new link the syncer hears
        that and sends the whole of it."""
        self._known[fragment] = 0
        if self._link.up:
            self._give_up(f"fragment {fragment} is no longer what {self.syncer} takes it for")
