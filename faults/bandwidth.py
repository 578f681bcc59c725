"""A thin link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Bandwidth:
    """Limit the unit's link, each way."""

    kind = "bandwidth"
    summary = "Limit the unit's link, each way."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "kb_s": Param(float, None, "kilobytes (1000 bytes) per second", lowest=0.1, highest=1e9)
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(bandwidth_kb_s=params["kb_s"])})
