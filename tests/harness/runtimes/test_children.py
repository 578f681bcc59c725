"""Children that are kept alive: whose deaths count against them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from harness.clock import WallClock
from harness.events import AnyEvent, HarnessFailed, UnitExited, UnitNote, UnitSpawned
from harness.runtimes import children
from harness.runtimes.child import Child, wait_stopped
from harness.runtimes.children import Children


@pytest.fixture
def running() -> Iterator[Children]:
    made = Children(WallClock(), lambda name, pid: None)
    yield made
    made.close(1.0)


def start(running: Children, code: int) -> Child:
    command = [sys.executable, "-S", "-c", f"raise SystemExit({code})"]
    with open(os.devnull, "ab", buffering=0) as null:
        log = os.fdopen(os.dup(null.fileno()), "ab", buffering=0)
    child = Child("u", command, {"PATH": os.environ["PATH"]}, log)
    running.start(child)
    return child


def events_until(running: Children, exits: int) -> list[AnyEvent]:
    """Everything until so many exits were seen, or the unit was given up."""
    clock = WallClock()
    limit = clock.now_ns() + 30_000_000_000
    seen: list[AnyEvent] = []
    while sum(isinstance(e, UnitExited) for e in seen) < exits:
        assert clock.now_ns() < limit, f"no {exits} exits within 30 s: {seen}"
        seen += running.poll(running._clock.now_ns() + 100_000_000)
        if any(isinstance(e, UnitNote) for e in seen):
            break
    return seen


def test_a_unit_that_wants_to_be_started_anew_does_not_crash(
    running: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "QUICK_LIVES_MAX", 3)
    monkeypatch.setattr(children, "BACKOFF_S", (0.0, 60.0))
    child = start(running, os.EX_TEMPFAIL)
    seen = events_until(running, 6)
    assert not [e for e in seen if isinstance(e, UnitNote)]
    assert child.quick_lives == 0


def test_a_unit_that_crashes_does(running: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "QUICK_LIVES_MAX", 3)
    monkeypatch.setattr(children, "BACKOFF_S", (0.0,))
    start(running, 1)
    (note,) = [e for e in events_until(running, 6) if isinstance(e, UnitNote)]
    assert note.what == "given-up"


@pytest.mark.parametrize(
    ("statement", "waits"),
    [("import os; os.kill(os.getpid(), 9)", True), ("raise SystemExit(75)", False)],
)
def test_only_a_killed_unit_waits_for_another_host(statement: str, waits: bool) -> None:
    made = Children(WallClock(), lambda name, pid: None, reschedule_s=1.5)
    try:
        with open(os.devnull, "ab", buffering=0) as null:
            log = os.fdopen(os.dup(null.fileno()), "ab", buffering=0)
        command = [sys.executable, "-S", "-c", statement]
        made.start(Child("u", command, {"PATH": os.environ["PATH"]}, log))
        seen = events_until(made, 2)
    finally:
        made.close(1.0)
    ended = next(e.t_ns for e in seen if isinstance(e, UnitExited))
    again = next(e.t_ns for e in seen if isinstance(e, UnitSpawned) and e.by == "supervisor")
    assert (again - ended >= 1_500_000_000) == waits


class Gate:
    """Stands before every process start: says that one has come, and lets it pass when told to."""

    def __init__(self, running: Children, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        popen = running._popen

        def held(child: Child) -> subprocess.Popen[bytes]:
            self.reached.set()
            assert self.open.wait(30), "nobody opened the gate within 30 s"
            return popen(child)

        monkeypatch.setattr(running, "_popen", held)

    def wait(self) -> None:
        """Return once a process is being started."""
        assert self.reached.wait(30), "nothing was started within 30 s"


def sleeper(running: Children, name: str) -> int:
    """Start a unit that lives until it is ended; its process id."""
    with open(os.devnull, "ab", buffering=0) as null:
        log = os.fdopen(os.dup(null.fileno()), "ab", buffering=0)
    command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    child = Child(name, command, {"PATH": os.environ["PATH"]}, log)
    running.start(child)
    assert child.process is not None
    return child.process.pid


def in_thread(act: Callable[[], object]) -> Future[object]:
    """``act`` done by another thread."""
    done: Future[object] = Future()

    def body() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return done


def spawned_again(running: Children, name: str) -> int:
    """The process id of the next start by the supervisor."""
    clock, limit = running._clock, running._clock.now_ns() + 30_000_000_000
    while clock.now_ns() < limit:
        for event in running.poll(clock.now_ns() + 100_000_000):
            if isinstance(event, UnitSpawned) and event.unit == name and event.by == "supervisor":
                return event.pid
    raise AssertionError(f"{name} was not started again within 30 s")


def test_nobody_else_waits_while_a_unit_is_being_started(
    running: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper(running, "u")
    other = sleeper(running, "v")
    gate = Gate(running, monkeypatch)
    running.kill("u")
    gate.wait()
    try:
        assert in_thread(lambda: running.freeze("v", True)).result(30)
        assert in_thread(lambda: running.freeze("v", False)).result(30)
        killed = in_thread(lambda: running.kill("v")).result(30)
    finally:
        gate.open.set()
    assert killed == f"SIGKILL to process {other}"


@pytest.mark.parametrize("act", ["kill", "freeze", "absent", "terminate", "between"])
def test_what_is_done_to_a_unit_that_is_being_started_hits_the_new_process(
    running: Children, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    old = sleeper(running, "u")
    gate = Gate(running, monkeypatch)
    running.kill("u")
    gate.wait()
    ended: list[int] = []

    def end(pid: int) -> None:
        ended.append(pid)
        os.kill(pid, signal.SIGKILL)

    acts: dict[str, Callable[[], object]] = {
        "kill": lambda: running.kill("u"),
        "freeze": lambda: running.freeze("u", True),
        "absent": lambda: running.absent("u", 10**9),
        "terminate": lambda: running.terminate("u", 10**9),
        "between": lambda: running.between("u", lambda: f"process {ended}", end, 30.0),
    }
    done = in_thread(acts[act])
    assert not done.done()
    gate.open.set()
    said = str(done.result(30))
    new = spawned_again(running, "u")
    assert str(new) in said
    assert str(old) not in said


def test_a_unit_that_is_being_started_when_all_is_closed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids: list[int | None] = []
    running = Children(WallClock(), lambda name, pid: pids.append(pid))
    sleeper(running, "u")
    gate = Gate(running, monkeypatch)
    running.kill("u")
    gate.wait()
    closed = in_thread(lambda: running.close(30.0))
    limit = time.monotonic() + 30
    while not running._closing:
        assert time.monotonic() < limit, "close did not begin within 30 s"
    gate.open.set()
    closed.result(30)
    new = pids[-1]
    assert new is not None
    assert len([pid for pid in pids if pid is not None]) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(new, 0)


def test_a_process_that_cannot_be_recorded_is_no_orphan() -> None:
    pids: list[int] = []

    def announce(name: str, pid: int | None) -> None:
        if pid is not None:
            pids.append(pid)
            if len(pids) == 2:
                raise OSError(28, "no space for the manifest")

    running = Children(WallClock(), announce)
    try:
        sleeper(running, "u")
        running.kill("u")
        limit = time.monotonic() + 30
        failed: list[HarnessFailed] = []
        while not failed:
            assert time.monotonic() < limit, "the failure was not told within 30 s"
            now_ns = running._clock.now_ns()
            failed = [e for e in running.poll(now_ns + 10**8) if isinstance(e, HarnessFailed)]
    finally:
        running.close(1.0)
    assert "no space for the manifest" in failed[0].why
    with pytest.raises(ProcessLookupError):
        os.kill(pids[1], 0)


class Slow:
    """Something that takes until the test lets it end."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> str:
        self.begun.set()
        assert self.open.wait(30), "nobody let it end within 30 s"
        return "done"


def others_are_free(running: Children, other: int) -> None:
    """Another unit can be paused, continued, killed, and started again meanwhile."""
    assert in_thread(lambda: running.freeze("v", True)).result(30)
    assert in_thread(lambda: running.freeze("v", False)).result(30)
    killed = in_thread(lambda: running.kill("v")).result(30)
    assert killed == f"SIGKILL to process {other}"


def test_nobody_else_waits_until_a_process_stands_still(
    running: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper(running, "u")
    other = sleeper(running, "v")
    slow = Slow()

    def waited(name: str, pid: int) -> None:
        if name == "u":
            slow()
        wait_stopped(name, pid)

    monkeypatch.setattr(children, "wait_stopped", waited)
    done = in_thread(lambda: running.freeze("u", True))
    assert slow.begun.wait(30)
    try:
        others_are_free(running, other)
        spawned_again(running, "v")
    finally:
        slow.open.set()
    assert "SIGSTOP" in str(done.result(30))


def test_nobody_else_waits_while_files_are_damaged_and_the_unit_does(running: Children) -> None:
    old = sleeper(running, "u")
    other = sleeper(running, "v")
    slow = Slow()
    done = in_thread(
        lambda: running.between("u", slow, lambda pid: os.kill(pid, signal.SIGKILL), 30.0)
    )
    assert slow.begun.wait(30)
    try:
        others_are_free(running, other)
        spawned_again(running, "v")
        assert not running.alive("u"), "it was started while its files were being damaged"
    finally:
        slow.open.set()
    assert done.result(30) == "done"
    assert spawned_again(running, "u") != old


def test_damage_that_fails_does_not_keep_the_unit_down(running: Children) -> None:
    sleeper(running, "u")

    def fail() -> str:
        raise OSError(13, "not yours")

    with pytest.raises(OSError, match="not yours"):
        running.between("u", fail, lambda pid: os.kill(pid, signal.SIGKILL), 30.0)
    spawned_again(running, "u")


def test_nobody_waits_for_what_is_done_after_a_watched_process_ended(running: Children) -> None:
    sleeper(running, "u")
    other = sleeper(running, "v")
    slow, ended = Slow(), list[str]()
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as watched:
        running.watch(watched.pid, lambda: ended.append(slow()))
        assert slow.begun.wait(30)
        try:
            others_are_free(running, other)
        finally:
            slow.open.set()


def test_a_process_that_is_gone_stands_still() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as gone:
        pass
    wait_stopped("u", gone.pid)
