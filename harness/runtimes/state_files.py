"""Damage to what a dead unit left durable, as files below its state directory.

Knows files and nothing of what they mean, with two exceptions: the counter of lives and its locks
belong to the place and are spared, and arrays (:data:`ARRAYS`) are what "checkpoint" means where
a unit keeps both arrays and small records.
"""

from __future__ import annotations

import os
from pathlib import Path

from faults.base import Damage
from harness.errors import ControlError

SPARED = frozenset({"incarnation", "lock", "lease"})
"""Of ``targets.unit_files.StateDir``: who comes back must know that it was here before."""

ARRAYS = frozenset({".safetensors", ".ckpt"})

SNAPSHOTS = "checkpoints"
"""A folder of this name in which every snapshot has a folder of its own is for later runs: a
restarted unit does not read it, so of single files there none is damaged."""

_UNDER_WAY = frozenset({".tmp", ".old"})
"""What a write leaves behind or replaces; no reader begins with it."""


def damage(directory: Path, how: Damage, nth: int = 0, snapshots: Path | None = None) -> str:
    """Damage the files below ``directory``; returns what was done to which.

    What is lost includes the unit's ``snapshots``, where they are kept elsewhere. ``nth`` counts
    the damages to one unit, so that a bit flipped twice does not become sound.
    Raises :class:`ControlError` when a file cannot be changed.
    """
    try:
        if how == "lose":
            elsewhere = snapshots is not None and snapshots.is_dir()
            also = f", {_lose(snapshots)} of its snapshots" if elsewhere and snapshots else ""
            return _lose(directory) + also
        found = _durable(directory)
        if how == "flip":
            found = _recorded(found) or found
        if not found:
            return "nothing was written that could be damaged"
        newest = max(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
        return (_flip if how == "flip" else _tear)(newest, nth)
    except OSError as error:
        raise ControlError(f"cannot damage the state in {directory}: {error}") from error


def _files(directory: Path) -> list[Path]:
    found = [p for p in sorted(directory.rglob("*")) if p.is_file()]
    return [p for p in found if not (p.parent == directory and p.name in SPARED)]


def _durable(directory: Path) -> list[Path]:
    return [
        path
        for path in _files(directory)
        if path.suffix not in _UNDER_WAY
        and SNAPSHOTS not in path.relative_to(directory).parts[:-2]
        and path.stat().st_size
    ]


def _recorded(found: list[Path]) -> list[Path]:
    """Arrays that a record was written after. A unit that died between the two never reads the
    newest array again, and damage that nobody meets is none."""
    arrays = [path for path in found if path.suffix in ARRAYS]
    records = [path.stat().st_mtime_ns for path in found if path.suffix not in ARRAYS]
    until = max(records, default=0)
    return [path for path in arrays if path.stat().st_mtime_ns <= until] or arrays


def _lose(directory: Path) -> str:
    files = _files(directory)
    for path in files:
        path.unlink()
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
    return f"{len(files)} files removed"


def _tear(path: Path, nth: int) -> str:
    stat = path.stat()
    os.truncate(path, stat.st_size // 2)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return f"{path.name} cut to {stat.st_size // 2} of {stat.st_size} bytes"


def _flip(path: Path, nth: int) -> str:
    stat = path.stat()
    at = (3 * stat.st_size // 4 + nth) % stat.st_size
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0b1000_0001]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return f"two bits of byte {at} of {path.name} flipped"
