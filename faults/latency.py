"""A longer way to the syncer. No jitter: the proxy's random numbers are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Latency:
    """Add delay to the unit's link, each way."""

    kind = "latency"
    summary = "Add delay to the unit's link, each way."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "latency_ms": Param(
            float, None, "milliseconds added in each direction", lowest=0.1, highest=60000.0
        )
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(latency_ms=params["latency_ms"])})
