"""Control groups of our own: version 1, and version 2 where the files are writable. CPU quota.

A quota of a tenth of a core is 1 ms in every 10 ms: short periods make a slow machine, where the
kernel's usual 100 ms would make one that runs, sleeps and runs again (measured: step times of 5
and 90 ms instead of 55).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ControlError
from harness.leftovers import CGROUP_PREFIX, remove_cgroup

PERIOD_US = 10_000
_QUOTA_US_MIN = 1_000
_PERIOD_US_MAX = 1_000_000


_MOUNTS, _OWN = Path("/proc/self/mountinfo"), Path("/proc/self/cgroup")
_CPU_FILES = {1: ("cpu.cfs_quota_us",), 2: ("cpu.max",)}


@dataclass(frozen=True)
class Controller:
    """A directory in which groups can be made, and which of the two interfaces it has."""

    root: Path
    version: int


CpuController = Controller


def find_controller(mounts: Path = _MOUNTS, own: Path = _OWN) -> Controller | None:
    """Where this process can make CPU groups; None when nowhere. Tries it out, leaves nothing."""
    return find("cpu", _CPU_FILES, mounts, own)


def find(
    name: str,
    files: Mapping[int, Sequence[str]],
    mounts: Path = _MOUNTS,
    own: Path = _OWN,
) -> Controller | None:
    """As :func:`find_controller`, for the controller ``name``; of its ``files`` (by version of the
    interface) the first must be there to be written to."""
    try:
        candidates = list(_candidates(mounts.read_text(), own.read_text(), name))
    except OSError:
        return None
    for candidate in candidates:
        if _works(candidate, files[candidate.version][0]):
            return candidate
    return None


def _candidates(mounts: str, own: str, name: str = "cpu") -> Iterable[Controller]:
    paths = {tuple(c.split(",")): p for _, c, p in (row.split(":", 2) for row in own.splitlines())}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mounted_root, mount_point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        for controllers, path in paths.items():
            # A container sees its own group as the root of the mount.
            inside = "" if mounted_root == path else path
            here = Path(mount_point + inside.rstrip("/"))
            if kind == "cgroup" and name in controllers and name in options.split(","):
                yield Controller(here, 1)
            elif kind == "cgroup2" and controllers == ("",):
                yield Controller(here, 2)
                # Processes may not live beside groups with controllers: a sibling is as good.
                yield Controller(here.parent, 2)


def _works(controller: Controller, file: str) -> bool:
    probe = controller.root / f"{CGROUP_PREFIX}probe.{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        # Version 2 may refuse to take processes although the directory could be made.
        names = ["cgroup.procs", file]
        return all(os.access(probe / name, os.W_OK) for name in names) and os.access(
            controller.root / "cgroup.procs", os.W_OK
        )
    finally:
        probe.rmdir()


class ControlGroup:
    """A group of ours. Its name begins with the prefix and the run, so any command finds it."""

    def __init__(self, controller: Controller, name: str) -> None:
        self.path = controller.root / name
        self._version = controller.version
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise ControlError(f"cannot make cgroup {self.path}: {error}") from error

    def add(self, pid: int) -> None:
        """Move a process, all its threads, into the group; one that is gone is left out."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return
        except OSError as error:
            raise ControlError(f"cannot move process {pid} into {self.path}: {error}") from error

    def remove(self, within_s: float = 2.0) -> None:
        """Remove the group once its processes are gone; safe to call twice."""
        try:
            remove_cgroup(self.path, time.monotonic() + within_s)
        except OSError as error:
            raise ControlError(f"cannot remove cgroup {self.path}: {error}") from error

    def _write(self, name: str, value: str) -> None:
        try:
            (self.path / name).write_text(value)
        except OSError as error:
            raise ControlError(f"cannot write {value} to {self.path / name}: {error}") from error


class CpuGroup(ControlGroup):
    """One unit's group. Made on first need; a unit that nothing slows lives in no group of ours."""

    def __init__(self, controller: Controller, run: str, unit: str) -> None:
        super().__init__(controller, f"{CGROUP_PREFIX}{run}.{unit}")

    def share(self, share: float | None) -> None:
        """Allow ``share`` of one core (0.2 is a fifth, 2 is two cores); None lifts the limit."""
        period, quota = (PERIOD_US, None) if share is None else _quota(share)
        try:
            if self._version == 2:
                (self.path / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}")
            else:
                # Lifted first: a new period may be refused while the old quota stands.
                (self.path / "cpu.cfs_quota_us").write_text("-1")
                (self.path / "cpu.cfs_period_us").write_text(str(period))
                if quota is not None:
                    (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            raise ControlError(f"cannot set the quota of {self.path}: {error}") from error


def _quota(share: float) -> tuple[int, int]:
    """(period, quota) in microseconds; raises ``ValueError`` for a share that cannot be."""
    if not _QUOTA_US_MIN / _PERIOD_US_MAX <= share <= 1024:
        raise ValueError(f"cpu share is {share}; it lies between 0.001 and 1024 cores")
    period = PERIOD_US
    if share * period < _QUOTA_US_MIN:
        period = min(_PERIOD_US_MAX, round(_QUOTA_US_MIN / share))
    return period, max(_QUOTA_US_MIN, round(share * period))
