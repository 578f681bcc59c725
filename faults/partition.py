"""A network partition as the peers see it: silence. Healing it breaks the open connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Partition:
    """Silence on the unit's link both ways; nobody is told."""

    kind = "partition"
    summary = "Silence on the unit's link both ways; nobody is told."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(silent_up=True, silent_down=True)})
