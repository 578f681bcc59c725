"""The append-only event file: one writer, one JSON line per event, flushed as it happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from harness.errors import JournalError
from harness.events import AnyEvent, decode, encode

TORN = "torn last line"
"""How a problem begins that is no more than the end of a journal that was cut."""


class Journal:
    """Appends events to a file. Every line reaches the kernel before ``append`` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # "x": a run directory belongs to one run; two writers would mix two histories.
            self._file: BinaryIO = open(path, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise JournalError(f"cannot create journal {path}: {error}") from error

    def append(self, event: AnyEvent) -> None:
        """Write one event. Raises :class:`JournalError` when the disk refuses it."""
        try:
            self._file.write(encode(event))
        except OSError as error:
            raise JournalError(f"cannot append to journal {self.path}: {error}") from error

    def close(self) -> None:
        """Flush to disk and close; safe to call twice."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MemoryJournal(Journal):
    """The same bytes, kept in memory: for runs by the thousand of which nobody keeps the file."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    @property
    def data(self) -> bytes:
        """What the file would hold."""
        return b"".join(self._lines)

    def append(self, event: AnyEvent) -> None:
        """Keep one event, as it is now."""
        self._lines.append(encode(event))

    def close(self) -> None:
        """Nothing to flush."""


@dataclass(frozen=True)
class JournalText:
    """A journal as read back: its events in file order, and what was wrong with the file."""

    events: tuple[AnyEvent, ...]
    problems: tuple[str, ...]
    """Torn or unreadable lines, each with its line number; empty for a whole journal."""
    lines: tuple[int, ...] = ()
    """Line number (from 1) of each event, so that a report can point at its evidence."""


def read_journal(path: Path) -> JournalText:
    """Read a journal, also one cut short by a crash.

    Raises :class:`JournalError` when the file cannot be opened or holds no event at all.
    A line that cannot be read is skipped and named in ``problems``.
    """
    events: list[AnyEvent] = []
    problems: list[str] = []
    lines: list[int] = []
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"cannot read journal {path}: {error}") from error
    for number, line, whole in _lines(data):
        try:
            events.append(decode(line))
            lines.append(number)
        except ValueError as error:
            kind = "unreadable line" if whole else TORN
            problems.append(f"{kind} {number}: {error}")
    if not events:
        raise JournalError(f"journal {path} holds no event" + "".join(f"; {p}" for p in problems))
    return JournalText(tuple(events), tuple(problems), tuple(lines))


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    parts = data.split(b"\n")
    for number, part in enumerate(parts, start=1):
        if part:
            yield number, part, number < len(parts)
