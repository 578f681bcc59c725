"""Child processes that are kept alive: their output as events, their deaths, their restarts.

One thread waits on every pipe and every process at once, so events, exits and restarts happen
at their time whether or not anybody polls; :meth:`Children.poll` only takes what is there.
A process id is never trusted after its process was reaped: reaping happens in one place, under
the lock that every signal is sent under.

A process is started outside that lock, by a thread of its own: it takes tens of milliseconds on a
busy machine, and what is due for another unit must not wait for it. Until the new process is known
(``Child.spawning``) only those wait who want something of the same unit, and whoever closes. For
the same reason nobody waits under the lock until a process stands still, or while files of a unit
are damaged between two of its lives (``Child.kept``).
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import queue
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from harness.clock import WallClock
from harness.errors import ControlError, FaultSkipped, LaunchError
from harness.events import AnyEvent, HarnessFailed, UnitExited, UnitNote, UnitSpawned
from harness.runtimes.cgroups import CpuGroup
from harness.runtimes.child import (
    BACKOFF_S,
    QUICK_LIFE_NS,
    QUICK_LIVES_MAX,
    Child,
    wait_stopped,
)
from harness.runtimes.lines import UnitLines
from harness.runtimes.memory import Squeeze

_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class Children:
    """Starts children, restarts those that die, and reports all of it as events.

    ``announce`` is told (name, None) before each start and (name, pid) right after it.
    """

    def __init__(
        self,
        clock: WallClock,
        announce: Callable[[str, int | None], None],
        *,
        reschedule_s: float = 0.0,
    ) -> None:
        self._reschedule_s = reschedule_s
        self._clock = clock
        self._announce = announce
        self._children: dict[str, Child] = {}
        self._events: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._exited = threading.Condition(self._lock)
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._watched: list[int] = []
        self._closing = False
        self._finished = False
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        self._thread = threading.Thread(target=self._run, name="children", daemon=True)
        self._thread.start()
        self._starts: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starter = threading.Thread(target=self._start_owed, name="starter", daemon=True)
        self._starter.start()

    # --- events -----------------------------------------------------------------------------

    def emit(self, event: AnyEvent) -> None:
        """Put an event among those that :meth:`poll` returns."""
        self._events.put(event)

    def poll(self, until_ns: int) -> list[AnyEvent]:
        """Events, oldest first; waits for the first one until ``until_ns``, not after the end."""
        found: list[AnyEvent] = []
        while not found:
            rest_ns = until_ns - self._clock.now_ns()
            with contextlib.suppress(queue.Empty):
                if rest_ns <= 0 or self._finished:
                    found.append(self._events.get_nowait())
                else:
                    found.append(self._events.get(timeout=rest_ns / 1e9))
            if not found and (self._finished or self._clock.now_ns() >= until_ns):
                return []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._events.get_nowait())
        return sorted(found, key=lambda event: event.t_ns)

    # --- life -------------------------------------------------------------------------------

    def start(self, child: Child) -> None:
        """Start a new child and keep it alive from now on. Raises :class:`LaunchError`."""
        with self._lock:
            self._children[child.name] = child
            child.spawning = True
        try:
            self._spawn(child, by="harness")
        except OSError as error:
            raise LaunchError(f"cannot start {child.name} ({child.command[0]}): {error}") from error

    def alive(self, name: str) -> bool:
        """Whether a process lives in the place."""
        with self._lock:
            return self._children[name].process is not None

    def kill(self, name: str) -> str:
        """SIGKILL. Raises :class:`FaultSkipped` when nothing lives there."""
        with self._lock:
            pid = self._pid(name)
            self._children[name].asked = True
            os.kill(pid, signal.SIGKILL)
        return f"SIGKILL to process {pid}"

    def between(
        self, name: str, act: Callable[[], str], end: Callable[[int], None], within_s: float
    ) -> str:
        """Have the unit's process ended by ``end``, which gets its id, and then do ``act`` before
        another one is started. Where nobody lives now only ``act`` is done.

        Returns what ``act`` does. Raises :class:`ControlError` when the process lives on for
        longer than ``within_s``, and what either of the two raises.
        """
        child = self._children[name]
        with self._lock:
            self._settled(name)
            child.kept = []
        try:
            self._end_life(child, end, within_s)
            return act()  # it may take a while, and nobody else waits for it
        finally:
            with self._lock:
                waiting, child.kept = child.kept or [], None
                for step in waiting:
                    step()

    def _end_life(self, child: Child, end: Callable[[int], None], within_s: float) -> None:
        with self._lock:
            if child.process is None:
                return
            pid, generation = child.process.pid, child.generation
            child.asked = True
            end(pid)
            if not self._exited.wait_for(
                lambda: child.process is None or child.generation != generation, within_s
            ):
                raise ControlError(f"{child.name} (process {pid}) still lives after {within_s:g} s")

    def oom(self, name: str, squeeze: Squeeze, within_s: float) -> str:
        """Let memory run out for the unit, until the kernel ends it.

        Raises :class:`FaultSkipped` when nothing lives there, else as :meth:`between`.
        """
        child, pressed = self._children[name], list[int]()

        def press(pid: int) -> None:
            squeeze.press(pid)
            pressed.append(pid)

        with self._lock:
            self._pid(name)
        squeeze.prepare()
        child.ended_by_kernel = lambda: squeeze.group.kills() > 0
        try:
            self.between(name, lambda: "", press, within_s)
        finally:
            child.ended_by_kernel = None
        if not pressed:
            raise FaultSkipped(f"{name} has no process now")
        return f"memory of process {pressed[0]} limited until the kernel ended it"

    def terminate(self, name: str, grace_ns: int) -> str:
        """SIGTERM now, SIGKILL after ``grace_ns`` if the same process still lives then."""
        with self._lock:
            pid = self._pid(name)
            generation = self._children[name].generation
            self._children[name].asked = True
            os.kill(pid, signal.SIGTERM)

            def overdue() -> None:
                child = self._children[name]
                if child.generation == generation and child.process is not None:
                    os.kill(child.process.pid, signal.SIGKILL)

            self._at(time.monotonic_ns() + grace_ns, overdue)
        return f"SIGTERM to process {pid}, SIGKILL in {grace_ns / 1e9:g} s"

    def freeze(self, name: str, frozen: bool) -> str:
        """Stop or continue the process group; a frozen place starts nothing until it thaws."""
        with self._lock:
            child = self._settled(name)
            child.frozen = frozen
            if child.process is None:
                if not frozen and child.owed:
                    self._restart(child)
                return "nothing lives there now"
            pid = child.process.pid
            os.killpg(pid, signal.SIGSTOP if frozen else signal.SIGCONT)
        if frozen:
            wait_stopped(name, pid)
        return f"{'SIGSTOP' if frozen else 'SIGCONT'} to process group {pid}"

    def absent(self, name: str, grace_ns: int | None) -> str:
        """Empty the place and keep it so; None lets its unit live there again, from now on."""
        with self._lock:
            child = self._settled(name)
            child.absent = grace_ns is not None
            if grace_ns is not None:
                return self.terminate(name, grace_ns) if child.process else "nothing lives there"
            if child.process is None:
                child.owed = True
                self._restart(child)
        return ""

    def join_group(self, name: str, make: Callable[[], CpuGroup]) -> CpuGroup:
        """The place's CPU group, made now if it has none; who lives there becomes a member."""
        child = self._children[name]
        if child.group is None:
            group = make()
            with self._lock:
                child.group = group
                if child.process is not None:
                    group.add(child.process.pid)
        return child.group

    def watch(self, pid: int, ended: Callable[[], None]) -> None:
        """Call ``ended`` when a process that somebody else reaps has ended, on the thread that
        starts processes: it may take a while."""
        descriptor = os.pidfd_open(pid)

        def once() -> None:
            self._selector.unregister(descriptor)
            self._watched.remove(descriptor)
            os.close(descriptor)
            if not self._closing:
                self._starts.put(ended)

        with self._lock:
            self._watched.append(descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, once)
        self._wake()

    def groups(self) -> list[CpuGroup]:
        """Every CPU group that was made."""
        return [c.group for c in self._children.values() if c.group is not None]

    def close(self, grace_s: float) -> None:
        """Thaw, SIGTERM, SIGKILL after ``grace_s``, reap. Safe to call twice.

        Raises :class:`ControlError` when a process survives even that for five seconds.
        """
        with self._lock:
            self._closing = True
            children = list(self._children.values())
            for child in children:
                child.frozen = False
                self._signal_group(child, signal.SIGCONT)
                if child.process is not None:
                    os.kill(child.process.pid, signal.SIGTERM)
            if not self._wait_gone(grace_s):
                for child in children:
                    self._signal_group(child, signal.SIGKILL)
            gone = self._wait_gone(5.0)
        self._stop_thread()
        for child in children:
            child.log.close()
        if not gone:
            left = [c.name for c in children if c.process is not None or c.spawning]
            raise ControlError(f"processes of {', '.join(left)} do not end even by SIGKILL")

    def _wait_gone(self, seconds: float) -> bool:
        children = self._children.values()
        return self._exited.wait_for(
            lambda: all(c.process is None and not c.spawning for c in children), timeout=seconds
        )

    def _stop_thread(self) -> None:
        if not self._finished:
            with self._lock:
                self._finished = True
            self._starts.put(None)
            if not any(child.spawning for child in self._children.values()):
                self._starter.join()
            self._wake()
            self._thread.join()
            self._selector.close()
            for descriptor in (self._wake_in, self._wake_out, *self._watched):
                os.close(descriptor)

    def _pid(self, name: str) -> int:
        child = self._settled(name)
        if child.process is None:
            raise FaultSkipped(f"{name} has no process now")
        return child.process.pid

    def _settled(self, name: str) -> Child:
        """The child, once nothing is being started in its place; gives the lock away meanwhile."""
        child = self._children[name]
        self._exited.wait_for(lambda: not child.spawning)
        return child

    def _signal_group(self, child: Child, number: signal.Signals) -> None:
        if child.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, number)

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._finished:
            for key, _ in self._selector.select(self._next_timer()):
                self._guarded(key.data)
            now = time.monotonic_ns()
            while True:
                with self._lock:
                    if not self._timers or self._timers[0][0] > now:
                        break
                    action = heapq.heappop(self._timers)[2]
                self._guarded(action)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            with self._lock:
                action()
        except Exception as error:  # the thread serves every unit: it must outlive one mistake
            self._failed(f"{type(error).__name__}: {error}")

    def _next_timer(self) -> float | None:
        with self._lock:
            if not self._timers:
                return None
            return max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)

    def _at(self, at_ns: int, action: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._timers, (at_ns, next(self._order), action))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of earlier calls: awake anyway
            os.write(self._wake_in, b"x")

    def _woken(self) -> None:
        os.read(self._wake_out, 4096)

    def _start_owed(self) -> None:
        """What the starting thread does until the end."""
        while (step := self._starts.get()) is not None:
            try:
                step()
            except Exception as error:  # as in _guarded: it serves every unit
                self._failed(f"{type(error).__name__}: {error}")

    def _start_again(self, child: Child) -> None:
        try:
            self._spawn(child, by="supervisor")
        except Exception as error:  # whatever kept it from starting
            self._failed(f"cannot start {child.name}: {type(error).__name__}: {error}")
            # Short of memory or processes: the place stays owed, and is tried again.
            self._at(time.monotonic_ns() + round(BACKOFF_S[-1] * 1e9), self._again(child))

    def _failed(self, why: str) -> None:
        now_ns = self._clock.now_ns()
        self.emit(HarnessFailed(t_ns=now_ns, where="process runtime", why=why))

    def _again(self, child: Child) -> Callable[[], None]:
        return lambda: self._restart(child)

    def _spawn(self, child: Child, by: str) -> None:
        """Start a process in the place, which is marked ``spawning``; called without the lock."""
        try:
            if self._closing:
                return
            self._announce(child.name, None)
            process = self._popen(child)
            try:
                self._announce(child.name, process.pid)
                self._take_in(child, process, by)
            except BaseException:
                # Nobody would ever end or reap it, or hear that it ended.
                with self._lock:
                    self._cast_out(child, process)
                raise
        finally:
            with self._lock:
                child.spawning = False
                self._exited.notify_all()

    def _take_in(self, child: Child, process: subprocess.Popen[bytes], by: str) -> None:
        with self._lock:
            if self._finished:  # the reaping thread is gone
                self._cast_out(child, process)
                return
            self._adopt(child, process, by)
            if self._closing:  # the signals of close came too early for it
                self._signal_group(child, signal.SIGKILL)

    def _cast_out(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        """End a process that could not be taken in; its place is owed one, as before."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        with contextlib.suppress(KeyError, ValueError):  # not watched yet, or nobody watches
            self._selector.unregister(process.stdout)
        process.wait()
        process.stdout.close()
        if child.process is process:
            child.process = None
        child.owed = True

    def _popen(self, child: Child) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            child.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=child.log,
            bufsize=0,
            env=child.environment,
            start_new_session=True,
        )

    def _adopt(self, child: Child, process: subprocess.Popen[bytes], by: str) -> None:
        child.process = process
        child.generation += 1
        child.began_ns = time.monotonic_ns()
        now_ns = self._clock.now_ns()
        if child.group is not None:
            child.group.add(process.pid)
        child.lines = UnitLines(child.name, self._clock.epoch_ns, child.log)
        assert process.stdout is not None
        out = process.stdout.fileno()
        os.set_blocking(out, False)
        with contextlib.suppress(OSError):  # a courtesy: a busy harness does not block a unit
            fcntl.fcntl(out, _F_SETPIPE_SZ, _PIPE_BYTES)
        child.pidfd = os.pidfd_open(process.pid)
        self._selector.register(out, selectors.EVENT_READ, lambda: self._read(child))
        generation = child.generation
        self._selector.register(
            child.pidfd, selectors.EVENT_READ, lambda: self._reap(child, generation)
        )
        child.owed = child.asked = False
        self.emit(UnitSpawned(t_ns=now_ns, unit=child.name, by=by, pid=process.pid))
        self._wake()

    def _read(self, child: Child) -> bool:
        """Take what is in the pipe; whether there may be more."""
        if child.process is None or child.lines is None:
            return False
        assert child.process.stdout is not None
        try:
            chunk = child.process.stdout.read(1 << 16)
        except OSError as error:
            raise ControlError(f"cannot read what {child.name} prints: {error}") from error
        if chunk:
            for event in child.lines.feed(chunk):
                self.emit(event)
        elif chunk is not None:  # the end of the pipe; its process may live on
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.process.stdout)
        return bool(chunk)

    def _reap(self, child: Child, generation: int) -> None:
        """The child's process ended: its last words, its group, its exit, its successor."""
        process = child.process
        if process is None or child.lines is None or child.generation != generation:
            return
        while self._read(child):
            pass
        child.lines.end()
        # Until wait() below the id belongs to nobody else, so this cannot hit a stranger.
        self._signal_group(child, signal.SIGKILL)
        assert process.stdout is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.stdout)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        code = process.wait()
        process.stdout.close()
        child.process = None
        # "Try again": a unit that ends on purpose to be started anew is no crash either.
        child.asked = child.asked or code == os.EX_TEMPFAIL
        asked = child.ended_by_kernel
        self.emit(
            UnitExited(
                t_ns=self._clock.now_ns(),
                unit=child.name,
                pid=process.pid,
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                oom=asked is not None and asked(),
            )
        )
        self._exited.notify_all()
        if child.kept is not None:
            child.kept.append(lambda: self._plan_restart(child, killed=code < 0))
        else:
            self._plan_restart(child, killed=code < 0)

    def _plan_restart(self, child: Child, *, killed: bool) -> None:
        if self._closing:
            return
        now = time.monotonic_ns()
        quick = now - child.began_ns < QUICK_LIFE_NS and not child.asked
        child.quick_lives = child.quick_lives + 1 if quick else 0
        if child.quick_lives >= QUICK_LIVES_MAX:
            child.given_up = True
            detail = f"ended {child.quick_lives} times in a row within {QUICK_LIFE_NS // 10**9} s"
            self.emit(
                UnitNote(
                    t_ns=self._clock.now_ns(),
                    unit=child.name,
                    incarnation=0,
                    what="given-up",
                    detail=detail,
                )
            )
            return
        # The first quick death costs nothing extra: a single crash must heal as fast as it can.
        pause_s = BACKOFF_S[min(max(0, child.quick_lives - 1), len(BACKOFF_S) - 1)]
        if killed:
            # Its host is gone: a scheduler finds another one. Who ended by itself keeps its host.
            pause_s = max(pause_s, self._reschedule_s)
        child.owed = True
        if pause_s == 0:
            self._restart(child)
        else:
            self._at(now + round(pause_s * 1e9), lambda: self._restart(child))

    def _restart(self, child: Child) -> None:
        if child.kept is not None:
            child.kept.append(lambda: self._restart(child))
            return
        held = child.frozen or child.absent or child.spawning
        if self._closing or child.process is not None or not child.owed or held:
            return
        child.spawning = True
        self._starts.put(lambda: self._start_again(child))
