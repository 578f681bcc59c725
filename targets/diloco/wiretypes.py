"""How fragments may travel, as plain numbers: for whoever decides without looking into arrays."""

from __future__ import annotations

BLOCK = 64
"""Elements with a common scale in ``int4``."""

WHOLE = {"f32": 4, "bf16": 2}
"""Bytes per element of the types that hold a fragment's elements."""

CHANGES = frozenset({"int4"})
"""Types that hold the change since an *anchor*: a version that both ends hold bit for bit.

A push is a change of the version it builds upon (``Push.base_version``), a broadcast one of the
version before its own.
"""

DTYPES = (*WHOLE, *sorted(CHANGES))
"""Every wire type."""


def nbytes(dtype: str, elements: int) -> int:
    """Bytes that ``elements`` elements take; raises ``KeyError`` for an unknown type."""
    if dtype == "int4":
        # A bfloat16 scale for each block, and half a byte for each element.
        return 2 * -(-elements // BLOCK) + (elements + 1) // 2
    return elements * WHOLE[dtype]
