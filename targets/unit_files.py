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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from faults.base import Tuning
from harness.events import AnyEvent, encode

_DIGEST_BYTES = 16

LEASE_WAIT_S = 5.0
"""How long a new process waits for the one before to be gone."""


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


class StateInUse(RuntimeError):
    """Another process of the unit lives on the same state; says for how long it was waited for."""


class StateDir:
    """What survives the unit: its incarnation counter and the last two ``Save`` of every key.

    Files are written under a temporary name, synced and renamed: whole or not there. Each begins
    with a digest of the rest, so damage is noticed; the value before is kept for that case.
    """

    def __init__(self, path: Path) -> None:
        self.damaged: dict[str, str] = {}
        """Keys of which :meth:`load` could only find the value before, with the reason."""
        self._path = path
        self._lease: int | None = None
        path.mkdir(parents=True, exist_ok=True)

    def take_lease(self, wait_s: float = LEASE_WAIT_S) -> None:
        """Be the only process that lives on this state, until the process ends.

        The kernel gives the lease back when the process is gone, however it went; a frozen one
        keeps it. Raises :class:`StateInUse` when another process holds it for longer.
        """
        handle = os.open(self._path / "lease", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        limit = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= limit:
                    os.close(handle)
                    raise StateInUse(
                        f"{self._path} is in use by another process, for more than {wait_s:g} s"
                    ) from None
                time.sleep(0.02)
            else:
                self._lease = handle
                return

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
        path, older = self._file(key), self._file(key).with_suffix(".old")
        if key in self.damaged or not path.exists():
            # What is damaged must not become the value before, and where there is none a damage
            # would leave nothing: until the next save both are the new value.
            self._replace(older, _digest(data) + data)
            self._replace(path, _digest(data) + data)
            self.damaged.pop(key, None)
        else:
            self._replace(path, _digest(data) + data, keep=older)

    def load(self) -> dict[str, Any]:
        """The last good value of every key; see :attr:`damaged` for those that are older.

        Raises :class:`DamagedState` for a key of which nothing good is left.
        """
        found = {}
        self.damaged = {}
        stems = {p.stem for suffix in ("bin", "old") for p in self._path.glob(f"saved-*.{suffix}")}
        for stem in sorted(stems):
            path = self._path / f"{stem}.bin"
            key = bytes.fromhex(stem.removeprefix("saved-")).decode()
            try:
                data = _sound(path)
            except DamagedState as error:
                # A death between the two renames of a save leaves the new value under its
                # temporary name: that save was never done, and nothing is lost.
                if path.exists() or not path.with_suffix(".tmp").exists():
                    self.damaged[key] = str(error)
                data = _sound(path.with_suffix(".old"), error)
            found[key] = msgspec.msgpack.decode(data, strict=False)
        return found

    def _file(self, key: str) -> Path:
        return self._path / f"saved-{key.encode().hex()}.bin"

    def _replace(self, path: Path, data: bytes, keep: Path | None = None) -> None:
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.rename(keep)
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


def _sound(path: Path, newer: DamagedState | None = None) -> bytes:
    """The file's value as bytes. Raises :class:`DamagedState`; ``newer`` is what was wrong with
    the file that this one would replace."""
    also = f"; {newer}" if newer is not None else ""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DamagedState(f"{path} is not there{also}") from None
    digest, data = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if digest != _digest(data):
        raise DamagedState(f"{path} is damaged: {len(raw)} bytes, wrong digest{also}")
    return data


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
