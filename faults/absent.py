"""Planned absence: capacity that comes and goes by the clock (scavenged, preempted, not there yet).

Unlike a death it is not restarted until it ends, and time in which a learner is meant to be away
is not allocated to it, so goodput does not count it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Absent:
    """The unit is told to go, and nothing brings it back until the fault ends."""

    kind = "absent"
    summary = "The unit is told to go, and nothing brings it back until the fault ends."
    needs: frozenset[Capability] = frozenset({"absence"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "grace_s": Param(float, 2.0, "seconds between SIGTERM and SIGKILL", lowest=0.0),
        "from_start": Param(
            bool, False, "away from the beginning, before steady state; it joins when this ends"
        ),
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(
            holds={"absent": round(params["grace_s"] * 1e9)}, from_start=params["from_start"]
        )
