"""A whole region gone at once: power supply, chassis, rack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class KillGroup:
    """SIGKILL every unit of a group (a region) at once."""

    kind = "kill_group"
    summary = "SIGKILL every unit of a group (a region) at once."
    needs: frozenset[Capability] = frozenset({"kill"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(action="kill")
