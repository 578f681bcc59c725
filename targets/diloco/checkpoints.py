"""Where a unit keeps its parts of checkpoints (paper E.2): one folder per snapshot, whole or not
there.

    DIRECTORY/00000100/fragment-000.safetensors ...   arrays of each fragment, flat float32
                       part.json                      counters, digests of all arrays; written last
                       in-flight.bin, MANIFEST.json   the syncer's only, once the cut is complete

A part is written to a folder under a temporary name, every file synced, and the folder renamed.
``MANIFEST.json`` names every member and the digest of its part, so that a checkpoint of which a
part is missing, torn or of another snapshot is never taken for a complete one. Both JSON files
begin with a line that is the digest of the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from targets.diloco.codec import digest as digest_of
from targets.diloco.messages import Payload, Push, Report

KEPT = 2
"""Complete checkpoints that stay: one more than is needed, in case the newest turns out damaged."""

FORMAT = 1

PART, MANIFEST, IN_FLIGHT = "part.json", "MANIFEST.json", "in-flight.bin"

ARRAYS = {"learner": ("params", "first", "second"), "syncer": ("theta", "momentum", "sent")}
"""Role to the names of a fragment's arrays: parameters and moments, or outer state and, with
int4 down, what receivers hold."""

Read = Callable[[int, str], Payload | None]
"""(fragment, array name) to the array as an f32 payload; None for one that the unit lacks."""


class CheckpointError(RuntimeError):
    """A part or manifest that is missing, damaged or of another run; says which and how."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one unit recorded at the cut, arrays apart: ``payloads`` have no data on disk."""

    format: int = FORMAT
    unit: str
    role: str
    marker: int
    incarnation: int
    run: str
    layout: str
    state: dict[str, Any]
    """The node's counters (``targets.diloco.snapshots`` and ``checkpointing`` say which)."""
    trained: int = 0
    """As in ``targets.diloco.trainers.base.State``; 0 for the syncer."""
    moments: int = 0
    digests: dict[str, str] = {}
    payloads: tuple[tuple[Payload, ...], ...] = ()
    """Per fragment, in the order of :data:`ARRAYS`."""
    hollow: bool = False
    """Of a trainer without arithmetic: digests stand for the arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(p.nbytes for fragment in self.payloads for p in fragment)

    def digest(self) -> str:
        """Names the part: digest of everything but the arrays, whose digests are in it."""
        return _digest(msgspec.json.encode(_bare(self)))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint."""

    format: int = FORMAT
    marker: int
    run: str
    layout: str
    members: dict[str, str]
    """Unit, the syncer included, to the digest of its part."""
    omitted: dict[str, str]
    in_flight: str
    """Digest of the recorded messages."""


InFlight = tuple[tuple[str, Report | Push], ...]
"""(Learner, message) in the order of arrival."""


class Checkpoints(Protocol):
    """One unit's parts. Nothing here is used by two threads at a time."""

    def keep(self, part: Part, read: Read) -> Part:
        """Make the part durable, arrays included; returned with its payloads, without data."""
        ...

    def load(self, marker: int) -> Part:
        """The part with its arrays, every digest checked. Raises :class:`CheckpointError`."""
        ...

    def seal(self, manifest: Manifest, in_flight: InFlight) -> None:
        """Make the checkpoint a complete one."""
        ...

    def sealed(self, marker: int) -> tuple[Manifest, InFlight]:
        """What was sealed. Raises :class:`CheckpointError`."""
        ...

    def markers(self, *, sealed: bool = False) -> tuple[int, ...]:
        """Markers of all parts, or of the complete checkpoints, ascending."""
        ...

    def drop(self, markers: Iterable[int]) -> None:
        """Forget these."""
        ...


def prune(store: Checkpoints, keep: Sequence[int], upto: int) -> None:
    """Drop every part up to ``upto`` that is not one of ``keep``."""
    store.drop(m for m in store.markers() if m <= upto and m not in keep)


class MemoryCheckpoints:
    """As the files, without a disk: what a simulated unit's checkpoints directory holds."""

    def __init__(self, run: str = "simulated", layout: str = "") -> None:
        self.run, self.layout = run, layout
        self._parts: dict[int, Part] = {}
        self._sealed: dict[int, tuple[Manifest, InFlight]] = {}

    def keep(self, part: Part, read: Read) -> Part:
        """See :class:`Checkpoints`."""
        whole = _whole(part, [tuple(_all(part.role, f, read)) for f in _fragments(part)])
        self._parts[part.marker] = whole
        self._sealed.pop(part.marker, None)
        return _bare(whole)

    def load(self, marker: int) -> Part:
        """See :class:`Checkpoints`."""
        try:
            return self._parts[marker]
        except KeyError:
            raise CheckpointError(f"no part of snapshot {marker} is kept") from None

    def seal(self, manifest: Manifest, in_flight: InFlight) -> None:
        """See :class:`Checkpoints`."""
        self.load(manifest.marker)
        self._sealed[manifest.marker] = (manifest, in_flight)

    def sealed(self, marker: int) -> tuple[Manifest, InFlight]:
        """See :class:`Checkpoints`."""
        try:
            return self._sealed[marker]
        except KeyError:
            raise CheckpointError(f"snapshot {marker} is not complete") from None

    def markers(self, *, sealed: bool = False) -> tuple[int, ...]:
        """See :class:`Checkpoints`."""
        return tuple(sorted(self._sealed if sealed else self._parts))

    def drop(self, markers: Iterable[int]) -> None:
        """See :class:`Checkpoints`."""
        for marker in tuple(markers):
            self._parts.pop(marker, None)
            self._sealed.pop(marker, None)

    def write(self, other: Checkpoints) -> None:
        """Put everything that is here into ``other``, which writes it to a disk."""
        for marker, part in sorted(self._parts.items()):
            other.keep(part, _reader(part))
            if marker in self._sealed:
                other.seal(*self._sealed[marker])


class FileCheckpoints:
    """The files below ``directory``; see the module. Raises ``OSError`` when the disk does."""

    def __init__(self, directory: Path, run: str = "", layout: str = "") -> None:
        self.directory = directory
        self.run, self.layout = run, layout

    def keep(self, part: Part, read: Read) -> Part:
        """See :class:`Checkpoints`. One fragment's arrays are in memory at a time."""
        final = self._folder(part.marker)
        fresh = final.with_suffix(".tmp")
        for left in (fresh, final):
            shutil.rmtree(left, ignore_errors=True)
        fresh.mkdir(parents=True)
        payloads, hollow = [], False
        for fragment in _fragments(part):
            found = tuple(_all(part.role, fragment, read))
            self._arrays(fresh, part, fragment, found)
            hollow = any(p.data is None for p in found)
            payloads.append(tuple(_without_data(p) for p in found))
        whole = msgspec.structs.replace(part, payloads=tuple(payloads), hollow=hollow)
        _write(fresh / PART, _checked(msgspec.json.encode(whole)))
        _sync(fresh)
        fresh.rename(final)
        _sync(self.directory)
        return whole

    def load(self, marker: int) -> Part:
        """See :class:`Checkpoints`."""
        folder = self._folder(marker)
        part = _read(folder / PART, Part)
        if part.marker != marker:
            raise CheckpointError(f"{_short(folder / PART)} is of snapshot {part.marker}")
        if part.hollow:
            return part
        payloads = tuple(
            _opened(folder / _name(fragment), part.role, told)
            for fragment, told in enumerate(part.payloads)
        )
        return msgspec.structs.replace(part, payloads=payloads)

    def seal(self, manifest: Manifest, in_flight: InFlight) -> None:
        """See :class:`Checkpoints`."""
        folder = self._folder(manifest.marker)
        data = pack_in_flight(in_flight)
        _write(folder / IN_FLIGHT, data)
        sealed = msgspec.structs.replace(manifest, in_flight=_digest(data))
        fresh = folder / "MANIFEST.tmp"
        _write(fresh, _checked(msgspec.json.encode(sealed)))
        fresh.rename(folder / MANIFEST)
        _sync(folder)

    def sealed(self, marker: int) -> tuple[Manifest, InFlight]:
        """See :class:`Checkpoints`."""
        folder = self._folder(marker)
        manifest = _read(folder / MANIFEST, Manifest)
        try:
            data = (folder / IN_FLIGHT).read_bytes()
        except OSError as error:
            raise _unread(folder / IN_FLIGHT, error) from error
        if manifest.marker != marker or _digest(data) != manifest.in_flight:
            said = _short(folder / IN_FLIGHT)
            raise CheckpointError(f"{said} is damaged or of another snapshot")
        return manifest, unpack_in_flight(data)

    def markers(self, *, sealed: bool = False) -> tuple[int, ...]:
        """See :class:`Checkpoints`. Files are not looked into."""
        if not self.directory.is_dir():
            return ()
        names = (p.name for p in self.directory.iterdir() if re.fullmatch(r"\d{8,}", p.name))
        found = sorted(int(name) for name in names)
        needed = MANIFEST if sealed else PART
        return tuple(m for m in found if (self._folder(m) / needed).exists())

    def drop(self, markers: Iterable[int]) -> None:
        """See :class:`Checkpoints`."""
        for marker in tuple(markers):
            folder = self._folder(marker)
            # First what makes it a checkpoint: half of a dropped one is none.
            for name in (MANIFEST, PART):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, marker: int) -> Path:
        return self.directory / f"{marker:08d}"

    def _arrays(self, folder: Path, part: Part, fragment: int, found: Sequence[Payload]) -> None:
        names = ARRAYS[part.role]
        arrays = {
            name: np.frombuffer(payload.data, "<f4")
            for name, payload in zip(names, found, strict=False)
            if payload.data is not None
        }
        if arrays:  # a trainer without arithmetic has none
            told = {"layout": part.layout, "unit": part.unit, "marker": str(part.marker)}
            _write(folder / _name(fragment), save(arrays, told))


# --- messages -----------------------------------------------------------------------------------

_KINDS: dict[str, type[Report] | type[Push]] = {"report": Report, "push": Push}


def pack_in_flight(messages: InFlight) -> bytes:
    """The recorded messages as bytes."""
    names = {kind: name for name, kind in _KINDS.items()}
    return msgspec.msgpack.encode([(who, names[type(m)], m) for who, m in messages])


def unpack_in_flight(data: bytes) -> InFlight:
    """What :func:`pack_in_flight` made; raises :class:`CheckpointError` for anything else."""
    try:
        rows = msgspec.msgpack.decode(data, type=list[tuple[str, str, msgspec.Raw]])
        return tuple(
            (who, msgspec.msgpack.decode(raw, type=_KINDS[kind])) for who, kind, raw in rows
        )
    except (msgspec.MsgspecError, KeyError) as error:
        raise CheckpointError(f"recorded messages cannot be read: {error}") from error


# --- details ------------------------------------------------------------------------------------

T = TypeVar("T")


def _fragments(part: Part) -> range:
    return range(len(part.state["versions"]))


def _all(role: str, fragment: int, read: Read) -> Iterable[Payload]:
    for name in ARRAYS[role]:
        payload = read(fragment, name)
        if payload is not None:
            yield payload


def _reader(part: Part) -> Read:
    def read(fragment: int, name: str) -> Payload | None:
        which = ARRAYS[part.role].index(name)
        found = part.payloads[fragment]
        return found[which] if which < len(found) else None

    return read


def _without_data(payload: Payload) -> Payload:
    return Payload(payload.dtype, payload.nbytes, payload.digest)


def _whole(part: Part, payloads: Sequence[tuple[Payload, ...]]) -> Part:
    hollow = any(p.data is None for fragment in payloads for p in fragment)
    return msgspec.structs.replace(part, payloads=tuple(payloads), hollow=hollow)


def _bare(part: Part) -> Part:
    payloads = tuple(tuple(_without_data(p) for p in fragment) for fragment in part.payloads)
    return msgspec.structs.replace(part, payloads=payloads)


def _opened(path: Path, role: str, told: Sequence[Payload]) -> tuple[Payload, ...]:
    try:
        with safe_open(path, framework="numpy") as file:
            found = [file.get_tensor(n) for n, _ in zip(ARRAYS[role], told, strict=False)]
    except (OSError, SafetensorError) as error:
        raise _unread(path, error) from error
    out = []
    for name, array, payload in zip(ARRAYS[role], found, told, strict=False):
        if array.nbytes != payload.nbytes or digest_of([array]) != payload.digest:
            raise CheckpointError(f"{_short(path)}: {name} is not what was written")
        data = np.ascontiguousarray(array, "<f4").tobytes()
        out.append(Payload(payload.dtype, payload.nbytes, payload.digest, data))
    return tuple(out)


def _name(fragment: int) -> str:
    return f"fragment-{fragment:03d}.safetensors"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _checked(data: bytes) -> bytes:
    return _digest(data).encode() + b"\n" + data


def _read(path: Path, kind: type[T]) -> T:
    try:
        head, _, data = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise _unread(path, error) from error
    if head.decode("ascii", "replace") != _digest(data):
        raise CheckpointError(f"{_short(path)} is damaged: wrong digest")
    try:
        found = msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{_short(path)} is not of this version: {error}") from error
    return found


def _short(path: Path) -> str:
    """Unit, marker and file: where the run lies is no fact about it."""
    return "/".join(path.parts[-3:])


def _unread(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{_short(path)} is missing")
    why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return CheckpointError(f"{_short(path)} cannot be read: {why}")


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
