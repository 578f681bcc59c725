"""A real unit's few files: event lines on stdout, durable state, and the control file.

Used by :mod:`targets.live`; nothing here knows what kind of unit it serves.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from faults.base import Tuning
from harness.events import AnyEvent, encode

_DIGEST_BYTES = 16


class EventLines:
    """Writes events as lines, each with one ``write``, so a kill tears at most the last one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    @classmethod
    def take_stdout(cls) -> EventLines:
        """Keep stdout for events alone: whatever libraries print goes to stderr from now on."""
        sys.stdout.flush()
        fd = os.dup(1)
        os.dup2(2, 1)
        return cls(fd)

    def __call__(self, event: AnyEvent) -> None:
        """Write one event. Raises ``BrokenPipeError`` when nobody reads any more."""
        line = encode(event)
        with self._lock:
            # More than one write only when the pipe is nearly full and the line is long.
            while line:
                line = line[os.write(self._fd, line) :]


class DamagedState(RuntimeError):
    """A durable value that is not what was written; says which file."""


class StateDir:
    """What survives the unit: its incarnation counter and the last ``Save`` of every key.

    Files are written under a temporary name, synced and renamed: whole or not there. Each begins
    with a digest of the rest, so damage is noticed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def next_incarnation(self) -> int:
        """One more than any life before, durable before it is returned. The first is 1.

        Raises ``DamagedState`` when the counter cannot be read: guessing could repeat a number.
        """
        with self._locked():
            path = self._path / "incarnation"
            try:
                text = path.read_text()
            except FileNotFoundError:
                text = "0"
            if not re.fullmatch(r"[0-9]{1,18}\n?", text):
                raise DamagedState(f"{path} holds {text[:40]!r} instead of a number")
            incarnation = int(text) + 1
            self._replace(path, b"%d\n" % incarnation)
        return incarnation

    def save(self, key: str, value: Any) -> None:
        """Make ``value`` (JSON-like values and bytes; tuples come back as lists) durable."""
        data = msgspec.msgpack.encode(value)
        self._replace(self._file(key), _digest(data) + data)

    def load(self) -> dict[str, Any]:
        """The last saved value of every key. Raises :class:`DamagedState`."""
        found = {}
        for path in sorted(self._path.glob("saved-*.bin")):
            raw = path.read_bytes()
            digest, data = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
            if digest != _digest(data):
                raise DamagedState(f"{path} is damaged: {len(raw)} bytes, wrong digest")
            found[bytes.fromhex(path.stem.removeprefix("saved-")).decode()] = (
                msgspec.msgpack.decode(data, strict=False)
            )
        return found

    def _file(self, key: str) -> Path:
        return self._path / f"saved-{key.encode().hex()}.bin"

    def _replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Two lives may overlap for a moment (a frozen one, and the one started in its place).
        handle = os.open(self._path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


class ControlFile:
    """The unit's :class:`faults.base.Tuning`, re-read whenever the file has changed.

    A file that is not there means the default. One that cannot be understood leaves the last
    setting in force and is reported once through ``problem``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._tuning = Tuning()
        self.problem = ""

    def tuning(self) -> Tuning:
        """The setting in force now. Costs one ``stat`` unless something changed."""
        with self._lock:
            try:
                stat = os.stat(self._path)
                seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                if seen != self._seen:
                    self._seen = seen
                    self._tuning = msgspec.json.decode(self._path.read_bytes(), type=Tuning)
                    self.problem = ""
            except FileNotFoundError:
                self._seen, self._tuning = None, Tuning()
            except (OSError, msgspec.MsgspecError) as error:
                self.problem = f"{self._path}: {error}"
            return self._tuning
