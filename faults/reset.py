"""TCP resets, as from a middlebox that forgot the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Reset:
    """Connections are reset as soon as a byte passes."""

    kind = "reset"
    summary = "Connections are reset as soon as a byte passes."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(reset=True)})
