"""Children that are kept alive: whose deaths count against them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from harness.clock import WallClock
from harness.events import AnyEvent, UnitExited, UnitNote, UnitSpawned
from harness.runtimes import children
from harness.runtimes.child import Child
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
