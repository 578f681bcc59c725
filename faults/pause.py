"""A frozen process: alive to its kernel, dead to its peers, and back without any error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Pause:
    """Freeze the unit; on thawing it goes on as if nothing had happened."""

    kind = "pause"
    summary = "Freeze the unit; on thawing it goes on as if nothing had happened."
    needs: frozenset[Capability] = frozenset({"freeze"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"frozen": True})
