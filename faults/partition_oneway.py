"""An asymmetric partition; up is from the unit towards the syncer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class PartitionOneway:
    """Silence on the unit's link in one direction."""

    kind = "partition_oneway"
    summary = "Silence on the unit's link in one direction."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "direction": Param(str, "up", "which way is silent", choices=("up", "down"))
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        up = params["direction"] == "up"
        return Deed(holds={"link": LinkState(silent_up=up, silent_down=not up)})
