"""One child process's place, how often it may die, and how it is known to stand still."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from harness.errors import ControlError
from harness.runtimes.cgroups import CpuGroup
from harness.runtimes.lines import UnitLines

QUICK_LIFE_NS = 5_000_000_000
"""A shorter life counts as another failure in a row."""
BACKOFF_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pause before the restart after so many quick lives; the last holds for all that follow."""
QUICK_LIVES_MAX = 15
"""After so many quick lives in a row a unit is given up."""
STOPPED_S = 1.0
"""How long a process may take to stand still after SIGSTOP."""


@dataclass
class Child:
    """A unit's place: what is started there, and what lives there now."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: BinaryIO
    group: CpuGroup | None = None
    frozen: bool = False
    absent: bool = False
    process: subprocess.Popen[bytes] | None = None
    spawning: bool = False
    """A process is being started there, and not yet known."""
    generation: int = 0
    quick_lives: int = 0
    began_ns: int = 0
    owed: bool = False
    """A restart is due and waits for the place to be thawed."""
    given_up: bool = False
    asked: bool = False
    """This life is ended by a fault or by its own wish to be started anew (``os.EX_TEMPFAIL``), so
    its death says nothing against the unit."""
    kept: list[Callable[[], None]] | None = None
    """Set while something is done between two lives: no process is started, and what would start
    one waits here."""
    ended_by_kernel: Callable[[], bool] | None = None
    """Asked at a death: whether the OOM killer was behind it."""
    pidfd: int = field(default=-1, repr=False)
    lines: UnitLines | None = field(default=None, repr=False)


def wait_stopped(name: str, pid: int) -> None:
    """Return once every thread of the process stands still: SIGSTOP is a request, not an answer.

    Raises :class:`ControlError` after :data:`STOPPED_S`.
    """
    deadline = time.monotonic() + STOPPED_S
    while True:
        tasks = Path(f"/proc/{pid}/task")
        with contextlib.suppress(OSError):
            states = [
                (task / "stat").read_text().rpartition(") ")[2][0] for task in tasks.iterdir()
            ]
            if all(state in "TtZX" for state in states):
                return
        if not tasks.exists():  # ended and reaped meanwhile
            return
        if time.monotonic() >= deadline:
            raise ControlError(f"{name} (process {pid}) does not stand still after SIGSTOP")
        time.sleep(0.0002)
