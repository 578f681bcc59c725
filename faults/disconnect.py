"""The engine takes the container off its network: packets vanish, nobody is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Disconnect:
    """Take the unit's container off its network."""

    kind = "disconnect"
    summary = "Take the unit's container off its network."
    needs: frozenset[Capability] = frozenset({"engine_network"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"network": False})
