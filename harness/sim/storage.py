"""What units wrote to their disks, and what of it a crash leaves.

A write is durable once synced; until then a crash leaves the old value or the new one, whole, by
a draw: files are replaced by renaming, so half a value is never read. ``lying`` disks report a
sync that did not happen and lose the last moments in a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from faults.base import Damage

_PLAIN = frozenset({int, str, bool, float, bytes, type(None)})
"""Most of what is saved; a look here is cheaper than a call."""


def frozen_copy(value: Any) -> Any:
    """``value`` with its dicts, lists and tuples copied, so that later changes cannot reach it.

    Other objects are shared: messages and arrays are never changed in place.
    """
    kind = type(value)
    if kind is dict:
        return {k: v if type(v) in _PLAIN else frozen_copy(v) for k, v in value.items()}
    if kind is list:
        return [v if type(v) in _PLAIN else frozen_copy(v) for v in value]
    if kind is tuple:
        return tuple([v if type(v) in _PLAIN else frozen_copy(v) for v in value])
    return value


class Disk:
    """One unit's durable state; it outlives every life of the unit."""

    __slots__ = (
        "_before",
        "_history",
        "_order",
        "_pending",
        "_unsynced_ns",
        "_values",
        "damaged",
        "incarnation",
    )

    def __init__(self, unsynced_ns: int = 0) -> None:
        self.incarnation = 0
        """The counter file; raised atomically at the start of every life."""
        self.damaged: dict[str, str] = {}
        """Keys whose last value is damaged, with the reason; ``saved`` has the one before."""
        self._values: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._order: list[str] = []
        """Keys, the one written last at the end."""
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
        self._write(key, value)

    def _write(self, key: str, value: Any) -> None:
        # What is damaged is not kept as the value before; see targets.unit_files.StateDir.
        if key in self.damaged or key not in self._values:
            self._before[key] = value
            self.damaged.pop(key, None)
        else:
            self._before[key] = self._values[key]
        self._values[key] = value
        self._order = [k for k in self._order if k != key] + [key]

    def crash(self, now_ns: int, rng: Random) -> str:
        """The process or its machine dies; returns what became of an unfinished write."""
        note = ""
        if self._pending is not None:
            key, value = self._pending
            self._pending = None
            if rng.random() < 0.5:
                self._write(key, value)
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

    def damage(self, how: Damage) -> str:
        """Nobody lives here now, and what was written is lost or damaged; says what of it."""
        if how == "lose":
            count = len(self._values)
            self._values, self._before, self._order, self.damaged = {}, {}, [], {}
            return f"{count} values lost"
        if not self._order:
            return "nothing was written that could be damaged"
        key = self._order[-1]
        if key not in self.damaged:
            self.damaged[key] = "cut short" if how == "tear" else "wrong digest"
            self._values[key] = self._before[key]
        return f"{key}: {self.damaged[key]}"

    def saved(self) -> Mapping[str, Any]:
        """What a new life finds: the last durable value of each key, or the one before."""
        return {key: frozen_copy(self._values[key]) for key in sorted(self._values)}
