"""What units wrote to their disks, and what of it a crash leaves.

A write is durable once synced; until then a crash leaves the old value or the new one, whole, by
a draw: files are replaced by renaming, so half a value is never read. ``lying`` disks report a
sync that did not happen and lose the last moments in a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any


def frozen_copy(value: Any) -> Any:
    """``value`` with its dicts, lists and tuples copied, so that later changes cannot reach it.

    Other objects are shared: messages and arrays are never changed in place.
    """
    kind = type(value)
    if kind is dict:
        return {k: frozen_copy(v) for k, v in value.items()}
    if kind is list:
        return [frozen_copy(v) for v in value]
    if kind is tuple:
        return tuple(frozen_copy(v) for v in value)
    return value


class Disk:
    """One unit's durable state; it outlives every life of the unit."""

    __slots__ = ("_history", "_pending", "_unsynced_ns", "_values", "incarnation")

    def __init__(self, unsynced_ns: int = 0) -> None:
        self.incarnation = 0
        """The counter file; raised atomically at the start of every life."""
        self._values: dict[str, Any] = {}
        self._pending: tuple[str, Any] | None = None
        self._unsynced_ns = unsynced_ns
        self._history: list[tuple[int, str, Any]] = []
        """(instant, key, value that it replaced), as far back as a lying disk forgets."""

    def begin(self, key: str, value: Any) -> None:
        """Start to write ``value``."""
        self._pending = (key, frozen_copy(value))

    def synced(self, now_ns: int) -> None:
        """The write that was begun is on the disk, or so the disk says."""
        if self._pending is None:
            return
        key, value = self._pending
        self._pending = None
        if self._unsynced_ns:
            self._history.append((now_ns, key, self._values.get(key)))
            horizon = now_ns - self._unsynced_ns
            self._history = [entry for entry in self._history if entry[0] > horizon]
        self._values[key] = value

    def crash(self, now_ns: int, rng: Random) -> str:
        """The process or its machine dies; returns what became of an unfinished write."""
        note = ""
        if self._pending is not None:
            key, value = self._pending
            self._pending = None
            if rng.random() < 0.5:
                self._values[key] = value
                note = f"write of {key} in progress: the new value survived"
            else:
                note = f"write of {key} in progress: the old value survived"
        horizon = now_ns - self._unsynced_ns
        lost = [entry for entry in self._history if entry[0] > horizon]
        for _, key, old in reversed(lost):
            if old is None:
                self._values.pop(key, None)
            else:
                self._values[key] = old
        if lost:
            note = f"the disk lost {len(lost)} writes that it had reported done"
        self._history = []
        return note

    def saved(self) -> Mapping[str, Any]:
        """What a new life finds: the last durable value of each key."""
        return {key: frozen_copy(self._values[key]) for key in sorted(self._values)}
