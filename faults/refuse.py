"""Connection refused: a service that is down, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Refuse:
    """Open connections end and new ones are refused."""

    kind = "refuse"
    summary = "Open connections end and new ones are refused."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"link": LinkState(refused=True)})
