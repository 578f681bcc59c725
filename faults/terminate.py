"""Preemption: the unit is told to go and has some time to do so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Terminate:
    """SIGTERM, and SIGKILL after a grace period: preemption."""

    kind = "terminate"
    summary = "SIGTERM, and SIGKILL after a grace period: preemption."
    needs: frozenset[Capability] = frozenset({"terminate"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {
        "grace_s": Param(float, 10.0, "seconds between SIGTERM and SIGKILL", lowest=0.0)
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(action="terminate", grace_ns=round(params["grace_s"] * 1e9))
