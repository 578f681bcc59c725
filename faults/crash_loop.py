"""A unit that dies, comes back and dies again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class CrashLoop:
    """Kill the unit again and again, as a bad deploy would."""

    kind = "crash_loop"
    summary = "Kill the unit again and again, as a bad deploy would."
    needs: frozenset[Capability] = frozenset({"kill"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {
        "times": Param(int, 3, "number of kills", lowest=2, highest=100),
        "every_s": Param(float, 3.0, "seconds between two kills", lowest=0.05),
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        every_ns = round(params["every_s"] * 1e9)
        return Deed(action="kill", repeats=tuple(i * every_ns for i in range(params["times"])))
