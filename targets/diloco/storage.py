"""The syncer's outer state on disk: one file per fragment and committed version.

A file is written under a temporary name, synced, and renamed, so a version is either whole or
not there. Three of each fragment are kept: if the process dies after the file but before the
node's own ``Save``, the node restarts one version back and still finds it; if that ``Save`` is
found damaged as well, the node goes by the one before it and finds that too.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

Flat = NDArray[np.float32]

KEPT = 3
"""Versions of each fragment that stay on disk."""

_NAME = re.compile(r"fragment-(\d+)-v(\d+)\.safetensors")


class StateError(RuntimeError):
    """Durable state that is missing, damaged or of another layout; says which file."""


class StateDamaged(StateError):
    """The file is there and torn, cut short or changed; the version before it may be good."""


def no_space() -> OSError:
    """What the kernel says when a disk is full."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Store(Protocol):
    """Where a syncer keeps (theta, momentum) of each fragment's newest versions."""

    def save(
        self, fragment: int, version: int, theta: Flat, buf: Flat, sent: Flat | None = None
    ) -> None:
        """Make the version durable; versions beyond the newest ``KEPT`` go.

        ``sent`` is what receivers hold of it, where that is not ``theta`` (int4 down).
        """
        ...

    def sent(self, fragment: int, version: int, elements: int) -> Flat:
        """``sent`` of that version, or its theta. Raises :class:`StateError`."""
        ...

    def load(self, fragment: int, version: int, elements: int) -> tuple[Flat, Flat]:
        """Arrays of that version, the caller's to write to. Raises :class:`StateError`."""
        ...

    def versions(self, fragment: int) -> list[int]:
        """Versions of the fragment that are kept, oldest first."""
        ...


class MemoryStore:
    """Outlives a simulated syncer's lives, as its disk would; honest and without delay."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, tuple[Flat, Flat, Flat]]] = {}
        self._newest: tuple[int, int] | None = None
        self._damaged: set[tuple[int, int]] = set()

    def clear(self) -> None:
        """The disk is lost."""
        self._kept, self._newest = {}, None
        self._damaged.clear()

    def flip(self) -> str:
        """Damage what was saved last; says what, or nothing where there is nothing."""
        if self._newest is None:
            return ""
        self._damaged.add(self._newest)
        return "version {1} of fragment {0} damaged".format(*self._newest)

    def save(
        self, fragment: int, version: int, theta: Flat, buf: Flat, sent: Flat | None = None
    ) -> None:
        """Keep copies."""
        kept = self._kept.setdefault(fragment, {})
        theta = theta.copy()
        self._newest = (fragment, version)
        self._damaged.discard(self._newest)
        kept[version] = (theta, buf.copy(), theta if sent is None else sent.copy())
        for old in sorted(kept)[:-KEPT]:
            del kept[old]

    def load(self, fragment: int, version: int, elements: int) -> tuple[Flat, Flat]:
        """Copies of that version. Raises :class:`StateError` when it is not kept."""
        theta, buf, _ = self._find(fragment, version)
        return theta.copy(), buf.copy()

    def sent(self, fragment: int, version: int, elements: int) -> Flat:
        """A copy of what was sent. Raises :class:`StateError` when the version is not kept."""
        return self._find(fragment, version)[2].copy()

    def _find(self, fragment: int, version: int) -> tuple[Flat, Flat, Flat]:
        if (fragment, version) in self._damaged:
            raise StateDamaged(f"version {version} of fragment {fragment} is damaged")
        try:
            return self._kept[fragment][version]
        except KeyError:
            raise StateError(f"version {version} of fragment {fragment} is not kept") from None

    def versions(self, fragment: int) -> list[int]:
        """Versions of the fragment that are kept, oldest first."""
        return sorted(self._kept.get(fragment, {}))


def _checksum(array: Flat) -> int:
    flat: Any = np.ascontiguousarray(array)
    return zlib.crc32(memoryview(flat).cast("B"))


class FragmentStore:
    """Files ``fragment-PPP-vVVVVVVVV.safetensors`` in ``directory``, holding theta and momentum."""

    def __init__(self, directory: Path, layout: str) -> None:
        self.directory = directory
        self.layout = layout
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, fragment: int, version: int) -> Path:
        """Where that version of that fragment is, or would be."""
        return self.directory / f"fragment-{fragment:03d}-v{version:08d}.safetensors"

    def save(
        self, fragment: int, version: int, theta: Flat, buf: Flat, sent: Flat | None = None
    ) -> None:
        """Write, sync, rename; older versions beyond ``KEPT`` are removed. Raises ``OSError``."""
        arrays = {"theta": theta, "momentum": buf}
        if sent is not None:
            arrays["sent"] = sent
        sums = {f"crc32-{name}": str(_checksum(array)) for name, array in arrays.items()}
        data = save(arrays, {"layout": self.layout, **sums})
        target = self.path(fragment, version)
        temporary = target.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)
        self._sync_directory()
        for old in self.versions(fragment)[:-KEPT]:
            self.path(fragment, old).unlink(missing_ok=True)

    def load(self, fragment: int, version: int, elements: int) -> tuple[Flat, Flat]:
        """(theta, momentum) of that version. Raises :class:`StateError`."""
        theta, buf = self._read(fragment, version, elements, ("theta", "momentum"))
        return theta, buf

    def sent(self, fragment: int, version: int, elements: int) -> Flat:
        """What was sent of that version. Raises :class:`StateError`."""
        return self._read(fragment, version, elements, ("sent|theta",))[0]

    def _read(
        self, fragment: int, version: int, elements: int, names: tuple[str, ...]
    ) -> list[Flat]:
        path = self.path(fragment, version)
        try:
            with safe_open(path, framework="numpy") as file:
                told = file.metadata() or {}
                there = set(file.keys())
                # "a|b" is a, or b where there is no a.
                chosen = [next((n for n in name.split("|") if n in there), name) for name in names]
                found = [file.get_tensor(name) for name in chosen]
        except FileNotFoundError as error:
            raise StateError(f"{path}: is not there") from error
        except (OSError, SafetensorError) as error:
            raise StateDamaged(f"{path}: cannot be read: {error}") from error
        for name, array in zip(chosen, found, strict=True):
            if told.get(f"crc32-{name}") != str(_checksum(array)):
                raise StateDamaged(f"{path}: {name} is damaged: wrong checksum")
        layout = told.get("layout")
        if layout != self.layout or any(array.shape != (elements,) for array in found):
            raise StateError(f"{path}: belongs to another parameter layout or seed")
        return found

    def versions(self, fragment: int) -> list[int]:
        """Versions of the fragment that are on disk, oldest first."""
        found = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(m[2]) for m in found if m and int(m[1]) == fragment)

    def _sync_directory(self) -> None:
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
