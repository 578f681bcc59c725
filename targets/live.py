"""Runs any :class:`targets.base.Node` on the wall clock: the driver of real units.

    python -m SOME.MODULE CONFIG.json      ->  main(argv, build)

``build`` says what the unit is (node, worker, transport); everything else is here. A unit's
threads: one per lane of work (``main``: training, merging; ``io``: reading fragments), the
ticker (the node's deadline and the control file), the transport's own, and one for signals.

**One lock** is held around every ``node.handle`` and the effects that follow, so effects happen
in order; it is also held while a finished main-lane job's snapshot is published, so that the
node's counters and the arrays that a concurrent read sees always belong to the same step.
A ``Save`` therefore blocks the node until it is on disk: that is what makes it safe.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from faults.base import Tuning
from harness.events import Event, UnitEnded, UnitNote, UnitReady, UnitStarted
from targets.base import (
    Connected,
    Dial,
    Disconnect,
    Disconnected,
    Input,
    Node,
    Note,
    Received,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    Worker,
    WorkFailed,
)
from targets.unit_config import UnitConfig, read_unit_config
from targets.unit_files import ControlFile, EventLines, StateDir

STOP_GRACE_S = 1.5
"""After SIGTERM the node has this long to end by itself; then the process ends anyway."""

CONTROL_POLL_S = 0.05
"""The control file is looked at no less often."""

TUNING_NS = 25_000_000
"""The control file is looked at no more often, however often its setting is asked for: a look
gives the interpreter away, and a busy unit waits to get it back."""

TICK_MIN_NS = 1_000_000
"""Least time between two looks at the node's deadline."""

SPACE_POLL_S = 0.1
"""Pause between two attempts to write to a disk that is full."""

FATAL = 1
"""Exit code of a unit that cannot go on."""


class Transport(Protocol):
    """A unit's links. Tells the :class:`Driver` (its sink) what happens on them.

    One with links on demand also has ``dial(peer)``, found by name: it tries once to open the link
    and tells the sink how that went. It never blocks or calls back.
    """

    def start(self) -> None:
        """Begin to accept or dial."""
        ...

    def send(self, peer: str, message: Any) -> None:
        """Queue ``message``; dropped when there is no link. Never blocks or calls back."""
        ...

    def disconnect(self, peer: str, why: str) -> None:
        """Give the link up, without telling the sink. Never blocks or calls back."""
        ...

    def close(self) -> None:
        """Send what is queued if that goes quickly, then end every link."""
        ...


class Publishing(Protocol):
    """What a worker offers instead of ``run`` when its lanes share state.

    Found by name: a worker without these gets ``run(job)`` in every lane. One with a ``tuning``
    attribute finds the control file's setting in it when a job is queued.
    """

    def compute(self, job: Any) -> Any:
        """Carry out a job of lane ``main``, unseen by the other lanes as yet."""
        ...

    def publish(self) -> None:
        """Let the other lanes see the state after the job that just ended. Called under the
        driver's lock, right before the node hears of that job."""
        ...

    def bind(self, job: Any) -> Callable[[], Any]:
        """A job of another lane as a call on the state published last, however late it is run.
        Called under the driver's lock when the job is queued."""
        ...


@dataclass(frozen=True)
class Unit:
    """What a unit knows about itself before it is built."""

    config: UnitConfig
    incarnation: int
    tuning: Callable[[], Tuning]
    """The control file's present setting; cheap enough to ask at every step."""
    stopping: threading.Event
    """Set once the unit ends; whoever sleeps in a worker should watch it."""
    note: Callable[[str, str], None]
    """Puts a ``UnitNote`` (kind, sentence) into the journal."""


@dataclass(frozen=True)
class Parts:
    """What a unit is made of, as built by the target's own module."""

    node: Node
    worker: Worker
    transport: Callable[[Driver], Transport]
    """Makes the transport for its sink, without starting it."""
    import_ns: int = 0
    compile_ns: int = 0


Build = Callable[[Unit], Parts]


class Driver:
    """Feeds one node and carries out its effects, until it stops or fails."""

    def __init__(
        self,
        unit: Unit,
        parts: Parts,
        emit: Callable[[Event], None],
        state: StateDir,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.code: int | None = None
        """Exit code once the unit has ended."""
        self._unit = unit
        self._node = parts.node
        self._worker = parts.worker
        self._emit = emit
        self._state = state
        self._now = now
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._sleeping_until_ns = 0
        self._later: list[Note | Send] = []
        """What was put off, see :meth:`_work`; nothing else is told before it."""
        self._deferring = False
        self._lanes: dict[str, queue.SimpleQueue[Any]] = {}
        self._transport = parts.transport(self)

    # --- life -------------------------------------------------------------------------------

    def run(self, saved: dict[str, Any]) -> int:
        """Start, and return the exit code once the unit has ended."""
        for key, why in self._state.damaged.items():
            self._unit.note("state-damaged", f"{key}: {why}; the value before is used")
        self.feed(Started(self._unit.incarnation, saved, dict(self._state.damaged)))
        self._thread("ticker", self._tick)
        self._transport.start()
        self._unit.stopping.wait()
        self._transport.close()
        assert self.code is not None
        return self.code

    def ask_to_stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM: the node may end by itself within ``grace_s``; then it is ended."""
        self.feed(StopAsked(round(grace_s * 1e9)))
        if not self._unit.stopping.wait(grace_s):
            self.end("asked to stop; the grace time was over", 0)

    def end(self, why: str, code: int) -> None:
        """End the unit for a reason that the node does not know, and say so."""
        with self._lock:
            self._end(why, code)

    def fail(self, where: str, error: BaseException) -> None:
        """A mistake of our own or a fatal condition: the traceback goes to the log."""
        traceback.print_exception(error)
        self.end(f"fatal, {where}: {type(error).__name__}: {error}", FATAL)

    def _end(self, why: str, code: int) -> None:
        if self.code is None:
            self._stop(code)
            name = self._unit.config.unit
            ended = UnitEnded(
                t_ns=self._now(), unit=name, incarnation=self._unit.incarnation, why=why
            )
            self._emit(ended)

    def _stop(self, code: int) -> None:
        if self.code is None:
            self._catch_up()
            self.code = code
            self._unit.stopping.set()
            self._wake.notify_all()
            for lane in self._lanes.values():
                lane.put(None)

    # --- inputs -----------------------------------------------------------------------------

    def connected(self, peer: str) -> None:
        """See ``Sink``."""
        self.feed(Connected(peer))

    def disconnected(self, peer: str, why: str) -> None:
        """See ``Sink``."""
        self.feed(Disconnected(peer, why))

    def received(self, peer: str, message: Any) -> None:
        """See ``Sink``."""
        self.feed(Received(peer, message))

    def arriving(self, peer: str) -> None:
        """See ``Sink``; nodes that want to know have a method of the name."""
        told: Callable[[str, int], None] | None = getattr(self._node, "arriving", None)
        if told is not None:
            with self._lock:
                told(peer, self._now())

    def noted(self, what: str, detail: str) -> None:
        """See ``Sink``."""
        if self.code is None:
            self._unit.note(what, detail)

    def feed(self, event: Input) -> None:
        """One input to the node, its effects carried out before this returns."""
        try:
            with self._lock:
                self._handle(event)
        except Exception as error:
            self.fail(f"handling {type(event).__name__}", error)

    def _handle(self, event: Input) -> None:
        if self.code is not None:
            return
        for effect in self._node.handle(event, self._now()):
            self._carry_out(effect)
        deadline_ns = self._node.deadline_ns()
        if deadline_ns is not None and deadline_ns < self._sleeping_until_ns:
            self._wake.notify_all()

    # --- effects ----------------------------------------------------------------------------

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Work(job, lane):
                self._lane(lane).put((job, self._bound(job, lane)))
                return
            case Note() | Send() if self._deferring:
                self._later.append(effect)
                return
        self._catch_up()
        match effect:
            case Note() | Send():
                self._tell(effect)
            case Save(key, value):
                self._save(key, value)
            case Disconnect(peer, why):
                self._transport.disconnect(peer, why)
            case Dial(peer):
                transport: Any = self._transport
                transport.dial(peer)
            case Stop(_, code):
                self._stop(code)
            case _:
                raise TypeError(f"{effect!r} is no effect")

    def _tell(self, effect: Note | Send) -> None:
        if isinstance(effect, Send):
            self._transport.send(effect.peer, effect.message)
        else:
            self._emit(effect.event)

    def _catch_up(self) -> None:
        later, self._later = self._later, []
        for effect in later:
            self._tell(effect)

    def _save(self, key: str, value: Any) -> None:
        """Not before it is durable does anything else happen: tried until there is space.

        The node waits meanwhile, as on a disk that hangs; its peers find it silent, and a stop
        takes the last resort of :func:`main`.
        """
        told = False
        while True:
            try:
                if self._unit.tuning().disk_full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._state.save(key, value)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                if not told:
                    self._unit.note("disk-full", f"{key} cannot be saved: {error}")
                    told = True
            time.sleep(SPACE_POLL_S)

    def _bound(self, job: Any, lane: str) -> Callable[[], Any]:
        worker: Any = self._worker
        if hasattr(worker, "tuning"):
            worker.tuning = self._unit.tuning()
        if not hasattr(worker, "bind"):
            return partial(worker.run, job)
        if lane == "main":
            return partial(worker.compute, job)
        try:
            call: Callable[[], Any] = worker.bind(job)
        except Exception as error:
            return partial(_failed, error)  # fails in its lane, as a job that cannot be done
        return call

    def _lane(self, name: str) -> queue.SimpleQueue[Any]:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = queue.SimpleQueue()
            self._thread(f"lane-{name}", lambda: self._work(name, lane))
        return lane

    def _work(self, name: str, lane: queue.SimpleQueue[Any]) -> None:
        """Job after job. What the node tells when one of lane ``main`` is done and others follow
        goes out, in order, when the last of them begins, and from another thread: to wake up who
        hears it takes a while, and who was woken wants the interpreter. Both is for free while a
        step computes."""
        main = name == "main"
        publish = getattr(self._worker, "publish", None) if main else None
        while (item := lane.get()) is not None and self.code is None:
            job, call = item
            if main and self._later and lane.empty():
                with self._lock:
                    self._wake.notify()
            event: Input
            try:
                event = WorkDone(job, call())
            except Exception as error:
                traceback.print_exception(error)
                event = WorkFailed(job, f"{type(error).__name__}: {error}")
            with self._lock:
                if publish is not None:
                    publish()
                self._deferring = main
                try:
                    self._handle(event)
                finally:
                    self._deferring = False
                if lane.empty():
                    self._catch_up()

    def _tick(self) -> None:
        while self.code is None:
            self._unit.tuning()
            with self._wake:
                self._catch_up()
                now_ns = self._now()
                deadline_ns = self._node.deadline_ns()
                if deadline_ns is not None and deadline_ns <= now_ns:
                    self._handle(Tick())
                    deadline_ns = self._node.deadline_ns()
                limit_ns = now_ns + round(CONTROL_POLL_S * 1e9)
                until_ns = limit_ns if deadline_ns is None else min(limit_ns, deadline_ns)
                # A node that wants its next tick at once gets it, but not in a busy loop.
                until_ns = max(until_ns, now_ns + TICK_MIN_NS)
                self._sleeping_until_ns = until_ns
                self._wake.wait((until_ns - now_ns) / 1e9)
                self._sleeping_until_ns = 0

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        def guarded() -> None:
            _name_thread(name)
            try:
                body()
            except Exception as error:
                self.fail(f"in {name}", error)

        threading.Thread(target=guarded, name=name, daemon=True).start()


def _failed(error: Exception) -> NoReturn:
    raise error


def _name_thread(name: str) -> None:
    """Let the system's tools show the calling thread under ``name``, too; Linux only."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:15])


# --- the process --------------------------------------------------------------------------------


def main(argv: list[str], build: Build) -> NoReturn:
    """Entry point of a real unit. Never returns: the process ends with the unit's exit code.

    The first line printed is ``UnitStarted``; imports and compilation come after it, inside
    ``build``. Threads of gRPC or JAX that are still busy do not delay the end.
    """
    if len(argv) != 2:
        sys.stderr.write(f"usage: {argv[0]} CONFIG.json\n")
        os._exit(2)
    # Before any thread exists: all of them inherit the mask, one of them waits for the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    code = FATAL
    try:
        config = read_unit_config(Path(argv[1]))
        code = _live(config, EventLines.take_stdout(), build)
    except BrokenPipeError:
        sys.stderr.write("nobody reads the events any more: the unit ends\n")
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _live(config: UnitConfig, lines: EventLines, build: Build) -> int:
    state = StateDir(Path(config.state_dir))
    state.take_lease()
    incarnation = state.next_incarnation()
    stopping = threading.Event()
    control = ControlFile(Path(config.control_file))

    def emit(event: Event) -> None:
        try:
            lines(event)
        except BrokenPipeError:
            # Without a reader the unit would train on for nobody, as an orphan.
            os._exit(FATAL)

    def note(what: str, detail: str) -> None:
        now_ns = time.monotonic_ns()
        emit(
            UnitNote(
                t_ns=now_ns,
                unit=config.unit,
                incarnation=incarnation,
                what=what,
                detail=detail,
            )
        )

    def ended(why: str) -> None:
        now_ns = time.monotonic_ns()
        emit(UnitEnded(t_ns=now_ns, unit=config.unit, incarnation=incarnation, why=why))

    emit(
        UnitStarted(
            t_ns=time.monotonic_ns(),
            unit=config.unit,
            incarnation=incarnation,
            role=config.role,
            pid=os.getpid(),
        )
    )
    holder: list[Driver] = []

    def wait_for_signals() -> None:
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        # Also when a full pipe or a slow disk holds the driver's lock.
        last_resort = threading.Timer(STOP_GRACE_S + 0.5, os._exit, (0,))
        last_resort.daemon = True
        last_resort.start()
        if holder:
            holder[0].ask_to_stop()
        else:
            ended("asked to stop while starting")
            os._exit(0)

    threading.Thread(target=wait_for_signals, name="signals", daemon=True).start()
    try:
        unit = Unit(config, incarnation, _reporting(control, note), stopping, note)
        parts = build(unit)
        driver = Driver(unit, parts, emit, state)
        saved = state.load()
    except Exception as error:
        traceback.print_exc()
        ended(f"fatal, while starting: {type(error).__name__}: {error}")
        return FATAL
    emit(
        UnitReady(
            t_ns=time.monotonic_ns(),
            unit=config.unit,
            incarnation=incarnation,
            import_ns=parts.import_ns,
            compile_ns=parts.compile_ns,
        )
    )
    holder.append(driver)
    return driver.run(saved)


def _reporting(control: ControlFile, note: Callable[[str, str], None]) -> Callable[[], Tuning]:
    """The control file's tuning, at most ``TUNING_NS`` old; a file that cannot be understood is
    noted once per problem."""
    told = [""]
    last = [(0, Tuning())]

    def tuning() -> Tuning:
        now_ns = time.monotonic_ns()
        looked_ns, found = last[0]
        if now_ns - looked_ns < TUNING_NS:
            return found
        found = control.tuning()
        last[0] = (now_ns, found)
        if control.problem != told[0]:
            told[0] = control.problem
            if control.problem:
                note("control-file", control.problem)
        return found

    return tuning
