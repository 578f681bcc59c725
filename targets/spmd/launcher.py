"""The launcher's protocol: who trains with whom, from which step, and when that ends.

    gathering ──enough workers──> opening ──meeting point is up──> running
        ^                                                            │
        └── a member died, fell silent, failed or is to be joined ───┘

Every world is new: its members are fresh processes at a meeting point of its own, because a
process cannot leave a world and enter another. What the members' checkpoints have in common with
the newest one among them decides where they go on; a member that lacks it is given it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.events import LinkDown, LinkUp, UnitEnded, UnitNote, WorldEnded, WorldFormed
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Input,
    Received,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.diloco.liveness import NEVER, Link
from targets.node import Desk
from targets.spmd.messages import (
    Beat,
    Break,
    CloseWorlds,
    Failed,
    Form,
    Hello,
    Leaving,
    OpenWorld,
    Proceed,
    Reached,
    Regroup,
)
from targets.spmd.params import SpmdParams
from targets.spmd.progress import Progress

RETURN_NS = 30_000_000_000
"""Elastic: a survivor of the last world that is not back by then is done without."""

BLAME_NS = 300_000_000
"""Survivors may notice a death before its link breaks; whose it was is waited for so long."""


class Launcher:
    """Node of the launcher."""

    def __init__(self, name: str, params: SpmdParams) -> None:
        self.name = name
        self.params = params
        self.world = 0
        """The newest world."""
        self.members: tuple[str, ...] = ()
        """Who trains in it now; empty unless it is running."""
        self._opening: tuple[str, ...] = ()
        self._ready: dict[str, tuple[int, ...]] = {}
        """Fresh processes that wait, with the checkpoints they hold."""
        self._arrived_ns = 0
        self._expected: frozenset[str] = frozenset()
        """Members of the last world that are on their way back: none of them is left behind."""
        self._expected_until_ns = 0
        self._retry_ns = NEVER
        self._blame: tuple[int, str] | None = None
        """(until when a culprit is waited for, what the first survivor said)."""
        self._said_bye: set[str] = set()
        self._regrouping = ""
        self._step = 0
        self._reached: set[str] = set()
        self._progress = Progress(params.batch * params.sequence)
        diloco = params.as_diloco()
        self._links = {unit: Link(unit, diloco) for unit in params.names()}
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
        """The earliest of: a link's next look, a late culprit, a world that may be formed."""
        if self._stopped:
            return None
        due = min((link.due_ns() for link in self._links.values()), default=NEVER)
        due = min(due, self._retry_ns)
        if self._blame is not None:
            due = min(due, self._blame[0])
        if self._gathering and self._few_will_do():
            due = min(due, self._patient_until_ns())
        return None if due >= NEVER else due

    def _react(self, event: Input) -> None:
        match event:
            case Started(incarnation=incarnation, saved=saved):
                self._desk.incarnation = incarnation
                self.world = int(saved.get("world", 0))
                self._progress.resume(saved.get("progress", ()))
            case Connected(peer=peer):
                self._links[peer].opened(self._desk.now)
                self._desk.note(LinkUp, peer=peer)
            case Disconnected(peer=peer, why=why):
                self._gone(peer, why)
            case Received(sender=sender, message=message):
                self._links[sender].heard_ns = self._desk.now
                self._hear(sender, message)
            case WorkDone(job=OpenWorld() as job, result=address):
                self._opened(job, str(address))
            case WorkFailed(job=OpenWorld(), why=why):
                self._desk.note(UnitNote, what="world-not-opened", detail=why)
                self._opening = ()
                self._retry_ns = self._desk.now + self._regroup_ns
            case WorkFailed(job=job, why=why):
                self._desk.note(UnitNote, what="job-failed", detail=f"{type(job).__name__}: {why}")
            case Tick():
                self._tick()
            case StopAsked():
                self._desk.note(UnitEnded, why="asked to stop")
                self._desk.out.append(Stop("asked to stop"))
                self._stopped = True

    # --- workers --------------------------------------------------------------------------------

    def _hear(self, unit: str, message: Any) -> None:
        match message:
            case Hello(held=held):
                self._hello(unit, held)
            case Beat(world=world, step=step):
                self._beat(unit, world, step)
            case Failed(world=world, why=why) if self._is_in(unit, world):
                if self._blame is None:
                    self._blame = (self._desk.now + BLAME_NS, f"{unit}: {why}")
                self._bye(unit)
            case Leaving(world=world) if self._is_in(unit, world):
                self._bye(unit)
            case Reached(world=world, step=step) if self._is_in(unit, world):
                self._reach(unit, step)

    def _hello(self, unit: str, held: tuple[int, ...]) -> None:
        if unit in self.members:
            # Its death went unseen: a process never enters a world twice.
            if unit not in self._said_bye:
                self._end(unit, "it came back as a new process")
            elif self._blame is not None:
                self._end("", self._blame[1])
        self._ready[unit] = held
        self._arrived_ns = self._desk.now
        if self.members and not self._regrouping:
            self._take_back(unit)
        self._form()

    def _take_back(self, unit: str) -> None:
        """A smaller world is running: end it at a checkpoint, so that ``unit`` may join."""
        every = self.params.checkpoint_every
        # Beats are up to a heartbeat old, and nobody must be beyond the step when it hears of it.
        stale_ns = 2 * self.params.heartbeat_ms * 1_000_000
        margin = 2 + (stale_ns // self.params.step_ns if self.params.step_ns else 50)
        at_step = -(-(self._step + margin) // every) * every
        self._regrouping = unit
        why = f"{unit} is back"
        for member in self.members:
            self._send(member, Regroup(world=self.world, at_step=at_step, why=why))

    def _beat(self, unit: str, world: int, step: int) -> None:
        if self._is_in(unit, world):
            self._step = max(self._step, step)
        elif world:
            self._send(unit, Break(world=world, why="this world is over"))

    def _bye(self, unit: str) -> None:
        self._said_bye.add(unit)
        if self._regrouping and self._said_bye.issuperset(self.members):
            self._end(self._regrouping, "it is back, and the world is formed anew", planned=True)

    def _reach(self, unit: str, step: int) -> None:
        self._step = step
        self._reached.add(unit)
        if self._reached.issuperset(self.members):
            self._reached.clear()
            for member in self.members:
                self._send(member, Proceed(world=self.world, step=step))

    def _gone(self, unit: str, why: str) -> None:
        self._links[unit].up = False
        self._desk.note(LinkDown, peer=unit, why=why)
        self._ready.pop(unit, None)
        if unit in self.members and unit not in self._said_bye:
            self._end(unit, f"its link to the launcher broke: {why}")

    def _is_in(self, unit: str, world: int) -> bool:
        return world == self.world and unit in self.members

    # --- worlds ---------------------------------------------------------------------------------

    @property
    def _gathering(self) -> bool:
        return not self.members and not self._opening and self._retry_ns >= NEVER

    @property
    def _regroup_ns(self) -> int:
        return round(self.params.regroup_s * 1e9)

    def _few_will_do(self) -> bool:
        return self.params.variant == "elastic" and len(self._ready) >= self.params.workers_min

    def _patient_until_ns(self) -> int:
        if self._expected.issubset(self._ready):
            return self._arrived_ns + self._regroup_ns
        return max(self._expected_until_ns, self._arrived_ns + self._regroup_ns)

    def _form(self) -> None:
        if not self._gathering:
            return
        all_there = len(self._ready) == self.params.workers
        patient = self._desk.now < self._patient_until_ns()
        if not all_there and (patient or not self._few_will_do()):
            return
        self.world += 1
        self._opening = tuple(u for u in self.params.names() if u in self._ready)
        self._desk.out.append(Save("world", self.world))
        self._desk.out.append(Work(OpenWorld(self.world, len(self._opening))))

    def _opened(self, job: OpenWorld, address: str) -> None:
        chosen, self._opening = self._opening, ()
        if job.world != self.world or any(u not in self._ready for u in chosen):
            self._form()
            return
        held = [self._ready.pop(u) for u in chosen]
        step, share = common_step(held)
        self.members = chosen
        self._step = step
        self._said_bye, self._reached, self._regrouping = set(), set(), ""
        missing = [u for u in self.params.names() if u not in chosen]
        why = f"without {', '.join(missing)}" if missing else "all workers"
        self._desk.note(WorldFormed, world=self.world, members=chosen, step=step, why=why)
        tokens = 0
        if self.params.evaluate_every:
            tokens = self._progress.tokens(step)
            self._progress.begin(step, len(chosen))
            self._desk.out.append(Save("progress", self._progress.saved()))
        form = Form(
            world=self.world,
            members=chosen,
            address=address,
            step=step,
            share=share,
            tokens=tokens,
        )
        for member in chosen:
            self._send(member, form)
        # All its members are new processes, so the worlds before have none left that matter.
        if len(chosen) == self.params.workers:
            self._desk.out.append(Work(CloseWorlds(self.world)))

    def _end(self, because: str, why: str, *, planned: bool = False) -> None:
        ended, self.members = self.members, ()
        self._blame = None
        self._expected = frozenset(ended) if planned else frozenset(ended) - {because}
        self._expected_until_ns = self._desk.now + RETURN_NS
        self._desk.note(WorldEnded, world=self.world, because=because, why=why, planned=planned)
        for member in ended:
            if member not in self._said_bye and member not in self._ready:
                text = f"{because}: {why}" if because else why
                self._send(member, Break(world=self.world, why=text))
        self._form()

    # --- time -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        for unit, link in self._links.items():
            what, why = link.check(self._desk.now)
            if what == "silent":
                self._desk.out.append(Disconnect(unit, why))
                self._gone(unit, why)
            elif what == "speak":
                link.probe(self._desk.now)
                self._send(unit, Beat(world=self.world if unit in self.members else 0))
        if self._blame is not None and self._desk.now >= self._blame[0]:
            self._end("", self._blame[1])
        if self._desk.now >= self._retry_ns:
            self._retry_ns = NEVER
        self._form()

    # --- effects --------------------------------------------------------------------------------

    def _send(self, unit: str, message: Any) -> None:
        self._links[unit].sent_ns = self._desk.now
        self._desk.out.append(Send(unit, message))


def common_step(held: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """(step to go on from, rank that shares it or -1) for members that hold these checkpoints.

    Parameters are replicated, so a checkpoint that one member holds is everybody's.
    """
    step = max((max(steps, default=0) for steps in held), default=0)
    having = [rank for rank, steps in enumerate(held) if step in steps or step == 0]
    return step, -1 if len(having) == len(held) else having[0]
