"""What a tuned learner does to the updates it pushes: the payload faults, on encoded fragments.

``nan``, ``inf`` and ``scale`` are a learner that computes nonsense: the payload is well formed
and its digest is right. ``bitflip`` and ``truncate`` are damage on the way: the digest is that of
the sound payload. ``stale`` and ``duplicate`` are the protocol's affair and change no payload.
"""

from __future__ import annotations

import msgspec
import numpy as np

from targets.diloco import codec, wiretypes
from targets.diloco.arrays import Flat
from targets.diloco.messages import Payload

SCALE = np.float32(1000.0)

UNSPOILT = ("", "stale", "duplicate")
"""Updates that leave the payload as it is."""


def poisoned(payload: Payload, update: str, anchor: Flat | None = None) -> Payload:
    """``payload`` as a unit with that ``Tuning.update`` sends it. Element or byte in the middle.

    A payload that is a change has its change since ``anchor`` tampered with.
    Raises ``ValueError`` for an update of no known name.
    """
    if update in UNSPOILT:
        return payload
    if update in ("nan", "inf", "scale"):
        flat = codec.decode(payload.data, payload.dtype, _elements(payload, anchor)).copy()
        if update == "scale":
            flat *= SCALE
        else:
            flat[flat.size // 2] = np.float32(update)
        if payload.relative and anchor is not None:
            return codec.pack_change(anchor + flat, anchor)[0]
        return codec.pack([flat], payload.dtype)
    data = bytearray(payload.data)
    if update == "bitflip":
        data[len(data) // 2] ^= 0x10
        return msgspec.structs.replace(payload, data=bytes(data))
    if update == "truncate":
        half = bytes(data[: len(data) // 2])
        return msgspec.structs.replace(payload, data=half, nbytes=len(half))
    raise ValueError(f"update {update!r} is none that a learner could make")


def _elements(payload: Payload, anchor: Flat | None) -> int:
    if not payload.relative:
        return payload.nbytes // wiretypes.WHOLE[payload.dtype]
    if anchor is None:
        raise ValueError("a change cannot be tampered with unless its anchor is known")
    return anchor.size
