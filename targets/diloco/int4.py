"""Changes of a fragment in four bits an element, with one scale for every block.

The paper compresses outer gradients to int4 and does not say how (D.3, table 10). Here: symmetric
integers from -7 to 7 in blocks of :data:`BLOCK` elements of the flat fragment (the last block may
be shorter), rounded to nearest, ties to even. A block's scale is its largest magnitude divided by
7, rounded *up* to bfloat16, so that no element is clipped. On the wire::

    one bfloat16 scale per block | elements, two a byte, the first in the low half, as value + 8

That is 4.25 bits an element. The error of every element of a block whose largest magnitude is
``m`` is at most ``ERROR_MAX * m + ERROR_FLOOR``: half a scale, plus what float32 subnormals
lose. Zero is exact. A block with a NaN, an infinity or a magnitude above :data:`LARGEST` comes
back as NaN throughout, so that nonsense is noticed and not smoothed away.

The arithmetic is elementwise float32 in a fixed order: equal inputs give equal bits anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targets.diloco.wiretypes import BLOCK

Flat = NDArray[np.float32]

LEVELS = 7
"""Largest magnitude of a quantized element."""

ERROR_MAX = (1 + 2**-7) / (2 * LEVELS)
"""Half a step: rounding a scale up to bfloat16 (8 significant bits) adds at most 2^-7 of it."""

ERROR_FLOOR = 2.0**-133
"""The smallest positive bfloat16, which is as fine as a scale can get."""

LARGEST = 3.3e38
"""Beyond this, seven scales may be more than the largest float32."""

_ZEROS = 0x88
_NAN_SCALE = np.uint16(0x7FC0)
_SIGNED = np.arange(256, dtype=np.int16)
# Both elements of every byte, so that decoding is one look-up.
_PAIRS: Flat = np.stack([(_SIGNED & 15) - 8, (_SIGNED >> 4) - 8], axis=1).astype(np.float32)


def quantize(change: Flat) -> bytes:
    """A flat float32 array in the wire form above."""
    elements = change.size
    blocks = np.zeros((_blocks(elements), BLOCK), np.float32)
    blocks.reshape(-1)[:elements] = change
    scales = _scales(blocks)
    step = _as_float(scales)[:, None]
    usable = np.isfinite(step) & (step > 0)
    levels = np.divide(blocks, step, out=np.zeros_like(blocks), where=usable)
    # A scale is never below a seventh of the largest magnitude; the clip is for its last bit.
    codes = (np.clip(np.rint(levels), -LEVELS, LEVELS) + 8).astype(np.uint8).reshape(-1)
    packed = codes[0::2] | (codes[1::2] << 4)
    return scales.astype("<u2").tobytes() + packed[: (elements + 1) // 2].tobytes()


def dequantize(data: bytes | bytearray | memoryview, elements: int) -> Flat:
    """The flat float32 array that ``data``, of exactly ``wiretypes.nbytes`` bytes, stands for."""
    blocks = _blocks(elements)
    step = _as_float(np.frombuffer(data, "<u2", blocks))
    packed = np.full(blocks * BLOCK // 2, _ZEROS, np.uint8)
    packed[: (elements + 1) // 2] = np.frombuffer(data, np.uint8, offset=2 * blocks)
    values = _PAIRS[packed].reshape(blocks, BLOCK)
    with np.errstate(invalid="ignore"):  # a NaN or infinite scale makes NaN, on purpose
        values *= step[:, None]
    return values.reshape(-1)[:elements]


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def _scales(blocks: Flat) -> NDArray[np.uint16]:
    """The upper halves of float32 scales, rounded up; NaN where a block is not finite."""
    largest = np.max(np.abs(blocks), axis=1, initial=np.float32(0))
    bits = (largest / np.float32(LEVELS)).view(np.uint32)
    up = ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)
    return np.where(largest <= np.float32(LARGEST), up, _NAN_SCALE).astype(np.uint16)


def _as_float(halves: NDArray[np.uint16]) -> Flat:
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
