"""The learner's protocol: Algorithm 1 of the paper as a state machine without I/O.

    no state ──a donor's state──> LoadState ┬─> Joined ──> TrainStep, TrainStep, TrainStep, ...
       │  │                                 │  between two steps: Adopt what came meanwhile
       │  └──── all P fragments ──> LoadAll ┘  after every step: Report
       │        (no donor)                     at any time: Pull -> Read -> Push
       └── link lost: start over

Rules of this file:

* Training never waits for a link or for the syncer, unless ``blocking``: then, after local step
  s, it waits until it has the merge of the fragment that is due at global step s. In that mode
  local steps are counted as global ones: a newcomer starts at the syncer's last closed step.
* Jobs of lane "main" (steps, adopting) are queued in the order in which they apply. Counters
  change when a job is done, in the critical section in which the driver publishes the snapshot
  after it; a Read uses the snapshot, and the push the counters, of the instant of the pull.
* Passing a deadline of the syncer's gives the link up; the driver connects anew with backoff.

Its parts: the link to the syncer (``uplink``), how it gets its state (``joining``), its counters
(``holding``), what it was sent and has not adopted (``arrivals``), what it gives of its state
(``giving``) and its cuts for checkpoints (``cutting``).

The drivers write UnitStarted and UnitReady; everything else a learner has to say is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.events import (
    Adopted,
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
    Received,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.diloco.arrivals import Arrivals
from targets.diloco.checkpointing import Resuming
from targets.diloco.cutting import Cutting
from targets.diloco.fragments import schedule
from targets.diloco.giving import Giving
from targets.diloco.holding import Counted, Holding
from targets.diloco.joining import Joining
from targets.diloco.liveness import NEVER
from targets.diloco.messages import (
    Adopt,
    CopyState,
    DropState,
    Fragment,
    Heartbeat,
    Hello,
    KeepPart,
    LoadAll,
    LoadState,
    NeedState,
    Payload,
    PruneParts,
    Pull,
    Push,
    Read,
    ReadState,
    Refused,
    Report,
    SnapshotsKept,
    StepResult,
    TrainStep,
    Welcome,
)
from targets.diloco.params import DilocoParams
from targets.diloco.uplink import Uplink
from targets.diloco.vector import VectorClock
from targets.node import Desk

WAITED_EVERY_NS = 1_000_000_000
"""A long wait is journalled in pieces, so that a unit killed in it loses at most one."""

STOP_NS_MAX = 500_000_000
"""How long a stop may be put off to answer pulls."""

NOTHING = Payload(dtype="f32", nbytes=0, digest="")
"""Answers a pull of a fragment that was adopted after the last step."""


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
        self._desk = desk = Desk(name)
        self._clock = clock = VectorClock()
        self._uplink = uplink = Uplink(desk, params, syncer, clock)
        self.holding = holding = Holding(params.fragments)
        self._arrivals = arrivals = Arrivals(params.fragments, params.wire_down == "int4")
        self._joining = Joining(
            desk, params, layout, donors, resuming, clock, uplink, holding, arrivals, self
        )
        self._giving = Giving(desk, params, layout, clock, uplink, holding, arrivals)
        marker = resuming.part.marker if resuming is not None else 0
        every = params.checkpoint_every
        self._cutting = Cutting(desk, every, clock, uplink, holding, marker, lives_before)
        self._told = [0] * params.fragments
        """The syncer's versions when it said welcome."""
        self._closed = 0
        """The last global step that it said to have closed (``blocking``)."""
        self._reads: dict[int, Counted] = {}
        """Request to what its push will say."""
        self._spoilt: dict[int, int] = {}
        """Fragment to the local step after which a fault spoilt it last."""
        self._report: Report | None = None
        self._stepping = False
        self._waiting_since: int | None = None
        self._stop_by: int | None = None
        self._stopped = False
        self._schedule = schedule(params.fragments, params.sync_every)
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
            Heartbeat: uplink.heartbeat,
            Refused: self._refused,
            NeedState: self._giving.need_state,
            SnapshotsKept: self._cutting.prune,
        }
        self._on_result: dict[type[Any], Callable[[Any, Any], None]] = {
            TrainStep: self._trained,
            Adopt: self._adopted,
            LoadAll: self._joining.loaded,
            Read: self._read,
            LoadState: self._joining.state_loaded,
            CopyState: self._giving.copied,
            ReadState: self._giving.part_read,
            DropState: lambda job, result: None,
            KeepPart: self._cutting.kept,
            PruneParts: lambda job, result: None,
        }

    # --- the Node interface ---------------------------------------------------------------------

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to one input; see ``targets.base.Node``."""
        out = self._desk.begin(now_ns)
        if not self._stopped:
            self._on_input[type(event)](event)
        return out

    def arriving(self, peer: str, now_ns: int) -> None:
        """A part of a message of ``peer`` came: it is alive, however long the rest takes."""
        if peer.startswith(CALLER):
            self._giving.arriving(peer, now_ns)
        elif peer == self.syncer:
            self._uplink.arriving(now_ns)
        else:
            self._joining.arriving(peer, now_ns)

    def deadline_ns(self) -> int | None:
        """The earliest of: the link's next look, an awaited answer, a stop, a piece of waiting."""
        if self._stopped:
            return None
        # Asked after every input; comparisons in line cost a third of calls to min().
        due = self._uplink.look
        if self._uplink.answer_by < due:
            due = self._uplink.answer_by
        if self._joining.due < due:
            due = self._joining.due
        if self._giving.due < due:
            due = self._giving.due
        if self._stop_by is not None and self._stop_by < due:
            due = self._stop_by
        since = self._waiting_since
        if since is not None and since + WAITED_EVERY_NS < due:
            due = since + WAITED_EVERY_NS
        return None if due >= NEVER else due

    # --- life -----------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        self._desk.incarnation = event.incarnation
        self._joining.begin()

    def _stop_asked(self, event: StopAsked) -> None:
        self._stop_by = self._desk.now + min(event.grace_ns // 2, STOP_NS_MAX)
        self._stop_when_answered()

    def _stop_when_answered(self) -> None:
        if self._stop_by is not None and (not self._reads or self._desk.now >= self._stop_by):
            left = f", {len(self._reads)} pulls unanswered" if self._reads else ""
            self._end(f"asked to stop{left}", code=0)

    def _end(self, why: str, code: int) -> None:
        self._note_waiting("stopped while waiting")
        self._desk.note(UnitEnded, why=why)
        self._desk.out.append(Stop(why, code))
        self._stopped = True

    def _tick(self, event: Tick) -> None:
        if why := self._uplink.tick():
            self._give_up(why)
        if self._desk.now >= self._giving.due:
            self._giving.tick()
        if self._desk.now >= self._joining.due:
            self._joining.tick()
        since = self._waiting_since
        if since is not None and self._desk.now - since >= WAITED_EVERY_NS:
            self._note_waiting("still waiting")
            self._waiting_since = self._desk.now
        self._stop_when_answered()

    # --- the link -------------------------------------------------------------------------------

    def _connected(self, event: Connected) -> None:
        peer = event.peer
        if peer.startswith(CALLER):
            self._giving.connected(peer)
        elif peer != self.syncer:
            self._joining.connected(peer)
        else:
            self._greet()

    def _greet(self) -> None:
        if self._uplink.up:
            self._lose("replaced by a new connection")
        self._uplink.opened()
        if self._joining.resuming is None:
            self._say_hello()  # else once the part is loaded

    def _say_hello(self) -> None:
        self._uplink.expect(self.params.silence_ms_max * 1_000_000)
        held = self.holding.joined or self._joining.loading
        self._uplink.send(
            Hello(
                incarnation=self._desk.incarnation,
                layout=self.layout,
                step=self.holding.step,
                versions=tuple(self._arrivals.known) if held else None,
                clock=self._clock.read(),
            )
        )

    def _disconnected(self, event: Disconnected) -> None:
        peer = event.peer
        if peer.startswith(CALLER):
            self._giving.disconnected(peer)
        elif peer != self.syncer:
            self._joining.disconnected(peer, event.why)
        elif self._uplink.up:
            self._lose(event.why)

    def _give_up(self, why: str) -> None:
        self._desk.out.append(Disconnect(self.syncer, why))
        self._lose(why)

    def _lose(self, why: str) -> None:
        """The connection is gone: nobody awaits our answers, and half a state is none."""
        self._uplink.lost(why)
        self._reads.clear()
        self._joining.lost()
        self._stop_when_answered()

    # --- messages -------------------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        message = event.message
        if event.sender != self.syncer:
            self._of_peer(event.sender, message)
            return
        if not self._uplink.up:
            return  # of a connection that was given up
        self._uplink.heard()
        self._look_for_marker(message)
        self._clock.merge(message.clock)
        if self.params.blocking:
            self._closed = max(self._closed, message.clock.get(self.syncer, 0))
        handler = self._on_message.get(type(message))
        if handler is not None:
            handler(message)
        if self._waiting_since is not None and self._may_pass():
            self.go_on()

    def _of_peer(self, peer: str, message: Any) -> None:
        self._look_for_marker(message)
        self._clock.merge(message.clock)
        if peer.startswith(CALLER):
            self._giving.received(peer, message)
        else:
            self._joining.received(peer, message)

    def _look_for_marker(self, message: Any) -> None:
        if self._cutting.every:
            self._cutting.look(message, self._joining.loading)

    def _welcome(self, welcome: Welcome) -> None:
        if why := self._uplink.welcome(welcome):
            self._give_up(why)
            return
        self._told = list(welcome.versions)
        if not (self.holding.joined or self._joining.loading):
            self._joining.welcomed(welcome)
        elif self._waiting_since is not None and self._report is not None:
            self._uplink.send(self._report)  # the one sent before may have died with the old link

    def _refused(self, message: Refused) -> None:
        self._end(f"{self.syncer} refused: {message.why}", code=1)

    def _pull(self, pull: Pull) -> None:
        """Answer from what the learner holds now; with an empty push when there is no step."""
        p = pull.fragment
        if not self.holding.joined or pull.request in self._reads:
            return
        state = self.holding.of(p)
        if state.step == state.since_step:
            self._uplink.send(self._push(pull.request, p, state, NOTHING))
            return
        self._reads[pull.request] = state
        self._desk.out.append(Work(Read(p, pull.request), lane="io"))

    def _push(self, request: int, fragment: int, state: Counted, payload: Payload) -> Push:
        return Push(
            incarnation=self._desk.incarnation,
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
        if not (self.holding.joined or self._joining.loading):
            self._joining.keep(fragment)
        elif self._arrivals.came(fragment) and self.holding.joined and not self._stepping:
            self.go_on()

    # --- work -----------------------------------------------------------------------------------

    def _work_done(self, event: WorkDone) -> None:
        self._on_result[type(event.job)](event.job, event.result)

    def go_on(self) -> None:
        """The main lane is free: adopt what came, then step, or wait where that is the rule."""
        for fragment in self._arrivals.to_adopt():
            job = Adopt(fragment.fragment, fragment.version, fragment.payload)
            self._desk.out.append(Work(job))
        if self._stop_by is not None:
            return
        if self.params.blocking and not self._may_pass():
            if self._waiting_since is None:
                self._waiting_since = self._desk.now
            return
        self._note_waiting("the merge came")
        self._stepping = True
        self._desk.out.append(Work(TrainStep(self.holding.step + 1)))

    def resumed(self) -> None:
        """See ``joining.Trainee``."""
        if self.holding.step:  # what it said last, to a syncer on which it may have to wait
            self._report = self._reported(step_ns=0)
        if self._uplink.up:
            self._say_hello()
        self.go_on()

    def _may_pass(self) -> bool:
        """Whether the merge that is due at this step is here (at the start nothing is)."""
        fragment = self._schedule[self.holding.step % self.params.sync_every]
        if fragment is None or self._report is None:
            return True
        if self._arrivals.awaited[fragment] >= self.holding.step:
            return True
        # Closed without a merge, or skipped by a syncer that had lost something: it never comes.
        return (
            self._closed >= self.holding.step
            and self._arrivals.known[fragment] >= self._told[fragment]
        )

    def _note_waiting(self, how: str) -> None:
        if self._waiting_since is not None:
            self._desk.note(
                Waited,
                began_at_ns=self._waiting_since,
                why=f"for the merge due at step {self.holding.step}: {how}",
            )
            self._waiting_since = None

    def _trained(self, job: TrainStep, result: StepResult) -> None:
        self._stepping = False
        self.holding.trained(job.step, result.tokens)
        self._clock.advance(self.name, job.step)
        self._desk.note(
            Step,
            step=job.step,
            began_at_ns=result.began_at_ns,
            tokens=result.tokens,
            compute_ns=result.compute_ns,
            nominal_ns=result.nominal_ns,
            clock=self._clock.of(self.syncer),
            loss=result.loss,
        )
        self._report = self._reported(self._desk.now - result.began_at_ns)
        if self._uplink.welcomed:
            self._uplink.send(self._report)
        self.go_on()

    def _reported(self, step_ns: int) -> Report:
        return Report(
            incarnation=self._desk.incarnation,
            step=self.holding.step,
            c_steps=self.holding.c_steps(),
            c_tokens=self.holding.c_tokens(),
            step_ns=step_ns,
            clock=self._clock.read(),
        )

    def _adopted(self, job: Adopt, result: Any) -> None:
        fragment = self._arrivals.adopting.pop(0)
        self.holding.restart(fragment)
        self._desk.note(
            Adopted,
            fragment=fragment.fragment,
            version=fragment.version,
            clock=fragment.committed,
            step=self.holding.step,
        )
        self._giving.observed()

    def _read(self, job: Read, payload: Payload) -> None:
        state = self._reads.pop(job.request, None)
        if state is not None:  # else the link it was for is gone
            self._note_tampering(job.fragment, state.step, payload.tampered)
            self._uplink.send(self._push(job.request, job.fragment, state, payload))
        self._stop_when_answered()

    def _note_tampering(self, fragment: int, step: int, update: str) -> None:
        """A tape has to say which payloads were spoilt: some are accepted all the same."""
        if update or self._spoilt.get(fragment) == step:
            self._spoilt[fragment] = step
            self._desk.note(Tampered, fragment=fragment, step=step, update=update)

    def _work_failed(self, event: WorkFailed) -> None:
        job = event.job
        if isinstance(job, Read):
            self._reads.pop(job.request, None)  # the syncer's own deadline passes
            self._desk.note(UnitNote, what="read-failed", detail=event.why)
            self._stop_when_answered()
        elif isinstance(job, Adopt):
            fragment = self._arrivals.adopting.pop(0)
            detail = f"fragment {fragment.fragment} version {fragment.version}: {event.why}"
            self._desk.note(UnitNote, what="adopt-failed", detail=detail)
            if fragment.payload.relative:
                self._lost_anchor(fragment.fragment)
            self._giving.observed()
        elif isinstance(job, CopyState | ReadState):
            self._giving.failed(job, event.why)
        elif isinstance(job, KeepPart):
            self._cutting.failed(job.marker, event.why)
        elif isinstance(job, PruneParts):
            self._desk.note(UnitNote, what="checkpoint-failed", detail=f"pruning: {event.why}")
        elif isinstance(job, LoadState) and self._joining.resuming is not None:
            self._end(f"its part of the checkpoint cannot be loaded: {event.why}", code=1)
        elif isinstance(job, LoadState):
            self._joining.not_loaded(event.why)
        else:
            self._end(f"{type(job).__name__} failed: {event.why}", code=1)

    def _lost_anchor(self, fragment: int) -> None:
        """No later change of this fragment can be used either; on a new link the syncer hears
        that and sends the whole of it."""
        self._arrivals.known[fragment] = 0
        if self._uplink.up:
            self._give_up(f"fragment {fragment} is no longer what {self.syncer} takes it for")
