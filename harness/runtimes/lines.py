"""What a unit prints: event lines become events on the run's clock, the rest goes to its log.

Used by every runtime that hosts real processes. A unit that is killed in the middle of a line
leaves a torn one; it ends up in the log, and no event is made up from it.
"""

from __future__ import annotations

from typing import BinaryIO

from harness import events
from harness.events import AnyEvent, Unknown

LINE_BYTES_MAX = 4 * 1024 * 1024
"""A longer line is no event of ours; it is passed on to the log in pieces."""

UNIT_KINDS: tuple[type[events.Event], ...] = tuple(
    kind for kind in events.KINDS.values() if {"unit", "incarnation"} <= set(kind.__struct_fields__)
)
"""The kinds that a unit may write. Everything else is the runner's or the runtime's to say."""


class UnitLines:
    """Splits one life's standard output into events and log text.

    ``epoch_ns`` is the run's epoch on the host's monotonic clock; the events that come out are
    rebased to it. ``log`` is opened for binary appending and not closed here.
    """

    def __init__(self, unit: str, epoch_ns: int, log: BinaryIO) -> None:
        self.unit = unit
        self._epoch_ns = epoch_ns
        self._log = log
        self._rest = b""

    def feed(self, chunk: bytes) -> list[AnyEvent]:
        """The events that ``chunk`` completes, in the order in which they were printed."""
        found: list[AnyEvent] = []
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        for line in whole:
            event = self._read(line)
            if event is not None:
                found.append(event)
        if len(self._rest) > LINE_BYTES_MAX:
            self._log.write(self._rest)
            self._rest = b""
        return found

    def end(self) -> None:
        """The output ended. A torn last line goes to the log, marked as such."""
        if self._rest:
            self._log.write(b"[torn line] " + self._rest + b"\n")
            self._rest = b""
        self._log.flush()

    def _read(self, line: bytes) -> AnyEvent | None:
        if not line.startswith(b'{"event"'):
            self._put(line)
            return None
        try:
            event = events.decode(line)
        except ValueError as error:
            self._put(b"[unreadable event: " + str(error).encode() + b"] " + line)
            return None
        if not self._own(event):
            self._put(b"[not this unit's to say] " + line)
            return None
        return events.rebase(event, self._epoch_ns)

    def _own(self, event: AnyEvent) -> bool:
        if isinstance(event, Unknown):
            return event.fields.get("unit") == self.unit
        return isinstance(event, UNIT_KINDS) and getattr(event, "unit", "") == self.unit

    def _put(self, line: bytes) -> None:
        self._log.write(line + b"\n")
        self._log.flush()
