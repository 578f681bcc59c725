"""Connections that end in the middle of a transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Cut:
    """Close the connection after a number of bytes, again and again."""

    kind = "cut"
    summary = "Close the connection after a number of bytes, again and again."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "after_bytes": Param(int, None, "bytes that pass before the connection ends", lowest=1)
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(cut_bytes=params["after_bytes"])})
