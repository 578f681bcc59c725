"""CPU quota: a thermal throttle or a noisy neighbour on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Throttle:
    """Cap the unit's CPU time."""

    kind = "throttle"
    summary = "Cap the unit's CPU time."
    needs: frozenset[Capability] = frozenset({"cpu_quota"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "cpu_share": Param(
            float, None, "share of one core, 0.2 is a fifth", lowest=0.01, highest=64.0
        )
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"cpu_share": params["cpu_share"]})
