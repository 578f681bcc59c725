"""Checkpoints of one worker: whole or not there, checked by digest, the newest few kept.

Every worker keeps its own copy of the replicated state, so no shared disk is needed. A file is a
header line of JSON (step, number of values, digest) and the float32 values, little-endian.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

Flat = NDArray[np.float32]
"""float32 [values]: parameters, first moments, second moments, one after the other."""

KEPT = 2
"""One more than is needed, for the case that the newest turns out damaged."""


class CheckpointError(RuntimeError):
    """A file that is not what was written; the message says which and how."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    values: int
    digest: str


class Checkpoints:
    """The checkpoint files below ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Steps of all files, whole or not, ascending."""
        found = (re.fullmatch(r"step-(\d+)\.ckpt", p.name) for p in self._path.iterdir())
        return sorted(int(m[1]) for m in found if m is not None)

    def save(self, step: int, flat: Flat) -> None:
        """Durable before this returns; older files than the newest :data:`KEPT` are removed."""
        data = np.ascontiguousarray(flat, "<f4").tobytes()
        header = _Header(step=step, values=flat.size, digest=_digest(data))
        temporary = self._path / f"step-{step}.tmp"
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(header) + b"\n")
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._file(step))
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        # Also what a later world than ours rolled back: steps beyond this one are not ours.
        steps = self.steps()
        keep = {s for s in steps if s <= step}
        for old in sorted(keep)[:-KEPT] + [s for s in steps if s > step]:
            self._file(old).unlink(missing_ok=True)

    def load(self, step: int, values: int) -> Flat:
        """The state after ``step``. Raises :class:`CheckpointError`."""
        path = self._file(step)
        try:
            head, _, data = path.read_bytes().partition(b"\n")
            header = msgspec.json.decode(head, type=_Header)
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"{path.name} cannot be read: {error}") from error
        if header.step != step or header.values != values:
            raise CheckpointError(
                f"{path.name} holds {header.values} values of step {header.step}, "
                f"not {values} of step {step}"
            )
        if len(data) != 4 * values or header.digest != _digest(data):
            raise CheckpointError(f"{path.name} is damaged: {len(data)} bytes, wrong digest")
        return np.frombuffer(data, "<f4").astype(np.float32)

    def _file(self, step: int) -> Path:
        return self._path / f"step-{step}.ckpt"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
