"""A vector clock that is handed out without copying (paper section 3.3 and E.1).

Every message carries one. The dict given to a message is never changed afterwards: the next
change copies it first, so many messages sent between two changes share one dict.
"""

from __future__ import annotations

from targets.diloco.messages import Clock


class VectorClock:
    """Unit name to counter; counters only rise, also across the lives of a unit."""

    __slots__ = ("_entries", "_seen", "_shared")

    def __init__(self) -> None:
        self._entries: Clock = {}
        self._shared = False
        self._seen: Clock | None = None

    def read(self) -> Clock:
        """The clock as it is now, for a message; the receiver must not change it."""
        self._shared = True
        return self._entries

    def of(self, unit: str) -> int:
        """The unit's counter, 0 when nothing is known of it."""
        return self._entries.get(unit, 0)

    def advance(self, unit: str, value: int) -> None:
        """Raise the unit's counter to ``value``; a lower value changes nothing."""
        if value > self._entries.get(unit, -1):
            if self._shared:
                self._entries = self._entries.copy()
                self._shared = False
            self._entries[unit] = value

    def merge(self, other: Clock) -> None:
        """Take over every counter that is higher in ``other``."""
        if other is self._seen:  # the sender shares one dict between messages, in one process
            return
        self._seen = other
        entries = self._entries
        known = entries.get
        for unit, value in other.items():
            if value > known(unit, -1):
                if self._shared:
                    self._entries = entries = entries.copy()
                    self._shared = False
                    known = entries.get
                entries[unit] = value
