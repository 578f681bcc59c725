"""A worker's protocol: one process, one world.

    look for checkpoints ─> Hello ─> Form ─> Enter ─> Advance, Advance, ... ─> the end

The end of the world is the end of the process: when a collective fails, when the launcher says so,
or at a step agreed upon. It exits with :data:`RESTART` and the supervisor starts a new one, which
is all that a restart of a data-parallel job is.

With ``barrier`` the launcher holds everybody until all have done their part of a step. Real units
need none: the collective in the step is the barrier.
"""

from __future__ import annotations

from typing import Any

from harness.events import Evaluated, Joined, LinkDown, LinkUp, Step, UnitEnded, UnitNote, Waited
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Input,
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
from targets.diloco.evaluation import LANE, Evaluate, Judged
from targets.diloco.liveness import Link
from targets.node import Desk
from targets.spmd.messages import (
    Advance,
    Advanced,
    Beat,
    Break,
    Enter,
    Entered,
    Failed,
    Form,
    Held,
    Hello,
    Keep,
    Leaving,
    Look,
    Proceed,
    Reached,
    Regroup,
)
from targets.spmd.params import SpmdParams

RESTART = 75
"""Exit code (EX_TEMPFAIL) of a worker whose world is over: start it anew, it did nothing wrong."""

STUCK_STEPS = 2
"""Whoever is this many step times in one step is not computing: it waits for somebody."""

UNPACED_NS = 1_000_000_000
"""The same for steps without a nominal time."""

WHY_MAX = 300


class Worker:
    """Node of one worker."""

    def __init__(
        self, name: str, params: SpmdParams, launcher: str = "launcher", *, barrier: bool = False
    ) -> None:
        self.name = name
        self.params = params
        self.launcher = launcher
        self.step = 0
        """Steps taken, those of earlier processes included."""
        self.form: Form | None = None
        self._barrier = barrier
        self._link = Link(launcher, params.as_diloco())
        self._held: tuple[int, ...] | None = None
        self._until: int | None = None
        self._keeping: int | None = None
        self._waiting_since = 0
        self._idle_since: int | None = None
        """When the last step ended; None before the first one."""
        self._desk = Desk(name)
        self._stopped = False

    # --- the Node interface ---------------------------------------------------------------------

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to one input; see ``targets.base.Node``."""
        out = self._desk.begin(now_ns)
        if not self._stopped:
            self._react(event)
        return out

    def deadline_ns(self) -> int | None:
        """The link's next look."""
        return self._link.due_ns() if self._link.up and not self._stopped else None

    def _react(self, event: Input) -> None:
        match event:
            case Started(incarnation=incarnation):
                self._desk.incarnation = incarnation
                self._desk.out.append(Work(Look()))
            case Connected(peer=peer):
                self._link.opened(self._desk.now)
                self._desk.note(LinkUp, peer=peer)
                self._greet()
            case Disconnected(peer=peer, why=why):
                self._link.up = False
                self._desk.note(LinkDown, peer=peer, why=why)
            case Received(message=message):
                self._link.heard_ns = self._desk.now
                self._hear(message)
            case WorkDone(job=job, result=result):
                self._done(job, result)
            case WorkFailed(job=job, why=why):
                self._failed(job, why)
            case Tick():
                self._tick()
            case StopAsked():
                self._end("asked to stop", 0)

    # --- the launcher ---------------------------------------------------------------------------

    def _greet(self) -> None:
        if self.form is not None:
            # The launcher gave this link up meanwhile, or is a new one: it knows what holds.
            self._send(Beat(world=self.form.world, step=self.step))
        elif self._held is not None:
            self._send(Hello(held=self._held))

    def _hear(self, message: Any) -> None:
        world = self.form.world if self.form is not None else 0
        match message:
            case Form() if self.form is None and self.name in message.members:
                self.form = message
                self._desk.out.append(Work(Enter(message, message.members.index(self.name))))
            case Break(world=over, why=why) if over == world:
                self._end(f"world {over} is over: {why}", RESTART)
            case Regroup(world=over, at_step=at_step) if over == world and at_step > self.step:
                self._until = at_step
            case Proceed(world=at, step=step) if at == world and step == self.step:
                self._waited(self._waiting_since, self._desk.now)
                self._next()

    def _tick(self) -> None:
        what, why = self._link.check(self._desk.now)
        if what == "silent":
            self._link.up = False
            self._desk.out.append(Disconnect(self.launcher, why))
            self._desk.note(LinkDown, peer=self.launcher, why=why)
        elif what == "speak":
            self._link.probe(self._desk.now)
            world = self.form.world if self.form is not None else 0
            self._send(Beat(world=world, step=self.step))

    # --- work -----------------------------------------------------------------------------------

    def _done(self, job: Any, result: Any) -> None:
        match job:
            case Look():
                held: Held = result
                for text in held.damaged:
                    self._desk.note(UnitNote, what="checkpoint-damaged", detail=text)
                self._held = held.steps
                if self._link.up:
                    self._greet()
            case Enter(form=form, rank=rank):
                self._entered(form, rank, result)
            case Advance():
                self._advanced(job, result)
            case Keep(step=step):
                self._kept(step)
            case Evaluate():
                self._judged(job, result)

    def _entered(self, form: Form, rank: int, result: Entered) -> None:
        self.step = form.step
        shared = form.share >= 0 and form.share != rank
        source = form.members[form.share] if shared else "checkpoint"
        self._desk.note(
            Joined,
            source=source if form.step else "initial",
            clock=form.step,
            step=form.step,
            inner="fresh" if form.step == 0 else source,
            digests={"state": result.digest} if result.digest else {},
        )
        if result.program:
            detail = f"step program from {result.program} in {result.took_ns / 1e9:.2f} s"
            self._desk.note(UnitNote, what="entered", detail=detail)
        self._next()

    def _advanced(self, job: Advance, result: Advanced) -> None:
        self.step = job.step
        self._idle_since = self._desk.now
        if result.waited is not None:
            self._desk.note(
                Waited,
                t_ns=result.waited[1],
                began_at_ns=result.waited[0],
                why=f"for the others, before step {job.step}",
            )
        self._desk.note(
            Step,
            step=self.step,
            began_at_ns=result.began_at_ns,
            tokens=result.tokens,
            compute_ns=result.compute_ns,
            nominal_ns=result.nominal_ns,
            clock=self.step,
            loss=result.loss,
        )
        if self.step % self.params.checkpoint_every == 0:
            self._keeping = self.step
            self._desk.out.append(Work(Keep(self.step), "io"))
        if self._until is not None and self.step >= self._until:
            if self._keeping is None:
                self._leave()
        elif self._barrier and self.form is not None:
            self._waiting_since = self._desk.now
            self._send(Reached(world=self.form.world, step=self.step))
        else:
            self._next()

    def _kept(self, step: int) -> None:
        if self._keeping == step:
            self._keeping = None
        if self._until is not None and self.step >= self._until and self._keeping is None:
            self._leave()

    def _failed(self, job: Any, why: str) -> None:
        why = why[:WHY_MAX]
        if isinstance(job, Evaluate):
            self._desk.note(UnitNote, what="evaluation-failed", detail=f"step {job.steps}: {why}")
        elif isinstance(job, Keep):
            self._desk.note(UnitNote, what="checkpoint-failed", detail=f"step {job.step}: {why}")
            self._kept(job.step)
        elif isinstance(job, Look) or self.form is None:
            self._desk.note(UnitEnded, why=f"fatal, {type(job).__name__}: {why}")
            self._stop("fatal", 1)
        else:
            self._send(Failed(world=self.form.world, why=why))
            self._end(f"world {self.form.world} failed in {type(job).__name__}: {why}", RESTART)

    def _leave(self) -> None:
        assert self.form is not None
        self._send(Leaving(world=self.form.world, step=self.step))
        self._end(f"world {self.form.world} is formed anew after step {self.step}", RESTART)

    def _evaluate(self) -> None:
        """After a step of all, by rank 0: what is evaluated is everybody's."""
        every, form = self.params.evaluate_every, self.form
        if not every or self.step % every or form is None or self.step == form.step:
            return
        if form.members[0] == self.name:
            size = len(form.members) * self.params.batch * self.params.sequence
            tokens = form.tokens + (self.step - form.step) * size
            self._desk.out.append(Work(Evaluate(self.step, tokens, self.step), LANE))

    def _judged(self, job: Evaluate, result: Judged) -> None:
        self._desk.note(
            Evaluated,
            clock=job.clock,
            tokens=job.tokens,
            steps=job.steps,
            loss=result.loss,
            accuracy=result.accuracy,
            floor=result.floor,
            records=result.records,
        )

    def _next(self) -> None:
        self._evaluate()
        self._desk.out.append(Work(Advance(self.step + 1)))

    def _waited(self, began_ns: int, ended_ns: int) -> None:
        if ended_ns > began_ns:
            why = f"for the others, after step {self.step}"
            self._desk.note(Waited, t_ns=ended_ns, began_at_ns=began_ns, why=why)

    # --- effects --------------------------------------------------------------------------------

    def _send(self, message: Any) -> None:
        self._link.sent_ns = self._desk.now
        self._desk.out.append(Send(self.launcher, message))

    def _end(self, why: str, code: int) -> None:
        since = self._idle_since
        limit_ns = STUCK_STEPS * self.params.step_ns or UNPACED_NS
        if since is not None and self._desk.now - since > limit_ns:
            self._desk.note(Waited, began_at_ns=since, why="for the others, in vain")
        self._desk.note(UnitEnded, why=why)
        self._stop(why, code)

    def _stop(self, why: str, code: int) -> None:
        self._desk.out.append(Stop(why, code))
        self._stopped = True
