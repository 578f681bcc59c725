"""A step that never ends: the failure that liveness probes do not see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param, Tuning


class Hang:
    """Training stands still while heartbeats go on."""

    kind = "hang"
    summary = "Training stands still while heartbeats go on."
    needs: frozenset[Capability] = frozenset({"tune"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"tuning": Tuning(hang=True)})
