"""Out of memory by a control group's limit: the kernel's own OOM killer ends the unit.

The unit joins a group with a small limit, and beside it a *ballast* that takes memory until the
limit is reached. Memory that the unit took before it joined is not the group's, and a training
process asks for little that is new; without the ballast it could live on for long. The killer
prefers the unit by its ``oom_score_adj``. Nothing of ours sends a signal to it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.errors import ControlError
from harness.leftovers import CGROUP_PREFIX
from harness.runtimes.cgroups import ControlGroup, Controller, find

LIMIT_BYTES = 16 << 20
"""Small, so that the host does not feel it, and more than the ballast needs to start."""

_FILES = {1: ("memory.limit_in_bytes", "memory.oom_control"), 2: ("memory.max", "memory.events")}
"""Version to the files of the limit and of the count of kills."""

_NONE = {1: "-1", 2: "max"}

_BALLAST = (
    "import sys; sys.stdin.buffer.read(1); held = []\nwhile True: held.append(b'x' * (1 << 20))"
)


def find_memory() -> Controller | None:
    """Where this process can make groups with a memory limit; None when nowhere."""
    return find("memory", _FILES)


class MemoryGroup(ControlGroup):
    """One unit's group, for as long as it takes the kernel to end the unit."""

    def __init__(self, controller: Controller, run: str, unit: str) -> None:
        super().__init__(controller, f"{CGROUP_PREFIX}{run}.{unit}.memory")

    def limit(self, limit_bytes: int | None) -> None:
        """Allow so much; None lifts the limit."""
        value = _NONE[self._version] if limit_bytes is None else str(limit_bytes)
        self._write(_FILES[self._version][0], value)

    def kills(self) -> int:
        """How many processes of the group the OOM killer has ended."""
        path = self.path / _FILES[self._version][1]
        try:
            rows = dict(row.split() for row in path.read_text().splitlines())
        except OSError as error:
            raise ControlError(f"cannot read {path}: {error}") from error
        return int(rows.get("oom_kill", 0))


class Squeeze:
    """The limit, the ballast and the unit in one group. ``close`` leaves nothing of it."""

    def __init__(self, group: MemoryGroup, environment: Mapping[str, str]) -> None:
        self.group = group
        self._ballast = subprocess.Popen(
            [sys.executable, "-S", "-c", _BALLAST],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=dict(environment),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the ballast."""
        return self._ballast.pid

    def prepare(self) -> None:
        """All that can be done before the process is touched. Raises :class:`ControlError`."""
        self.group.limit(LIMIT_BYTES)
        self.group.add(self._ballast.pid)

    def press(self, pid: int) -> None:
        """Let memory run out for the process, after :meth:`prepare`. Raises
        :class:`ControlError`."""
        self.group.add(pid)
        try:
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
            assert self._ballast.stdin is not None
            self._ballast.stdin.write(b"x")
        except OSError as error:
            raise ControlError(f"cannot let process {pid} run out of memory: {error}") from error

    def close(self) -> None:
        """End the ballast, lift the limit, and remove the group once it is empty."""
        self._ballast.kill()
        self._ballast.wait()
        with contextlib.suppress(OSError):
            if self._ballast.stdin is not None:
                self._ballast.stdin.close()
        self.group.limit(None)
