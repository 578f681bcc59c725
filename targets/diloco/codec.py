"""One fragment's arrays to bytes and back: raw little-endian elements, never pickle.

A payload's bytes are the fragment's tensors one after the other in the layout's order, without
any header: both ends know the layout, so a size that does not fit is an error and nothing else.

* ``f32``: IEEE binary32, 4 bytes an element.
* ``bf16``: the upper half of binary32, rounded to nearest even, 2 bytes an element.
* ``int4``: not the elements but their change since an *anchor*, a version of the fragment that
  both ends hold bit for bit (``targets.diloco.int4``), a little over half a byte an element.

``Payload.digest`` is the digest of the float32 values that the *receiver* ends up with, so it
can be checked after decoding, whatever the elements travelled as. For a change it is the digest
of anchor plus change: two ends whose anchors differ in one bit find out at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targets.diloco import int4, wiretypes
from targets.diloco.messages import Payload

Array = NDArray[np.float32]
Shapes = Sequence[tuple[int, ...]]

_WIRE: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "bf16": np.dtype("<u2")}


class PayloadError(ValueError):
    """A payload that must not be used. ``kind`` is truncated, checksum, layout or, for a change
    whose anchor is not at hand any more, stale."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {detail}")


def digest(arrays: Sequence[Array]) -> str:
    """BLAKE2b-128 of the float32 bytes of ``arrays``, in order, as 32 hex digits.

    Shapes do not count: a fragment and its flat concatenation have the same digest.
    """
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        flat: Any = np.ascontiguousarray(array, dtype="<f4").reshape(-1)
        state.update(memoryview(flat).cast("B"))
    return state.hexdigest()


def nbytes(dtype: str, elements: int) -> int:
    """Bytes of ``elements`` elements of wire type ``dtype``; :class:`PayloadError` if unknown."""
    _known(dtype)
    return wiretypes.nbytes(dtype, elements)


def encode(arrays: Sequence[Array], dtype: str) -> bytes:
    """The elements of ``arrays`` (float32, any shapes) in wire type ``dtype``."""
    _known(dtype)
    if dtype == "int4":
        return int4.quantize(_joined(arrays))
    if dtype == "bf16":
        return b"".join(_to_bf16(array).tobytes() for array in arrays)
    return b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in arrays)


def decode(data: bytes | bytearray | memoryview, dtype: str, elements: int) -> Array:
    """All elements as one flat float32 array; read-only and without a copy for ``f32``.

    For ``int4`` these are the changes. Raises :class:`PayloadError` when ``data`` does not hold
    exactly ``elements`` of ``dtype``.
    """
    size, due = memoryview(data).nbytes, nbytes(dtype, elements)
    if size != due:
        raise PayloadError(
            "truncated" if size < due else "layout",
            f"{size} bytes where {elements} elements of {dtype} take {due}",
        )
    if dtype == "int4":
        return int4.dequantize(data, elements)
    raw = np.frombuffer(data, dtype=_WIRE[dtype])
    if dtype == "bf16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    flat: Array = raw.view(np.float32)
    return flat


def split(flat: Array, shapes: Shapes) -> list[Array]:
    """A flat fragment as its tensors (views, no copies)."""
    ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


def pack(arrays: Sequence[Array], dtype: str) -> Payload:
    """``arrays`` as a payload that carries its own digest; ``dtype`` is f32 or bf16."""
    data = encode(arrays, dtype)
    elements = sum(array.size for array in arrays)
    received = [decode(data, dtype, elements)]
    return Payload(dtype=dtype, nbytes=len(data), digest=digest(received), data=data)


def pack_change(flat: Array, anchor: Array) -> tuple[Payload, Array]:
    """``flat`` as an ``int4`` change since ``anchor``, and what the receiver will make of it.

    Both arrays are flat float32 of the same size; so is the result, which is new memory.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # nonsense travels, and is refused there
        data = int4.quantize(flat - anchor)
    received = anchor + int4.dequantize(data, anchor.size)
    return Payload("int4", len(data), digest([received]), data), received


def unpack(payload: Payload, elements: int, anchor: Array | None = None) -> Array:
    """The payload's elements as one flat float32 array.

    ``anchor`` is what a change is since. Raises :class:`PayloadError` for an unknown wire type, a
    wrong size or a wrong digest, and for a change without an anchor.
    """
    if payload.data is None:
        raise PayloadError("truncated", "the payload has no data")
    flat = decode(payload.data, payload.dtype, elements)
    if payload.relative:
        if anchor is None:
            raise PayloadError("stale", "the version that this is a change of is not at hand")
        flat = anchor + flat
    found = digest([flat])
    if found != payload.digest:
        raise PayloadError("checksum", f"digest is {found} where {payload.digest} was promised")
    return flat


def _known(dtype: str) -> None:
    if dtype not in wiretypes.DTYPES:
        known = ", ".join(wiretypes.DTYPES)
        raise PayloadError("layout", f"wire type {dtype!r} is none of {known}")


def _to_bf16(array: Array) -> NDArray[np.uint16]:
    """Round to nearest, ties to even. A NaN stays a NaN (rounding up would turn it into -0)."""
    flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
    bits = flat.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    # 0x7fff + odd may carry into the exponent, which is right: the largest f32 becomes infinity.
    half = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    nan = np.isnan(flat)
    if np.any(nan):
        half = np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), half)
    return half.astype("<u2")


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.asarray(a, dtype=np.float32).reshape(-1) for a in arrays])
