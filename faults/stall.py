"""A lossless standstill; once lifted, whatever still has a connection arrives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Stall:
    """The link stands still without losing anything."""

    kind = "stall"
    summary = "The link stands still without losing anything."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(stalled=True)})
