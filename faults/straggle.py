"""A straggler: 1.1 is typical of shared clusters, 2 is bad, 8 a transient spike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param, Tuning


class Straggle:
    """The emulated chip is slower by a factor, throughout or in spikes."""

    kind = "straggle"
    summary = "The emulated chip is slower by a factor, throughout or in spikes."
    needs: frozenset[Capability] = frozenset({"tune"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "factor": Param(float, None, "step time is multiplied by this", lowest=1.0, highest=1000.0),
        "spike_on_s": Param(float, 0.0, "length of a slow spike; 0 is slow throughout", lowest=0.0),
        "spike_off_s": Param(float, 1.0, "time at full speed between spikes", lowest=0.05),
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        on_ns, off_ns = round(params["spike_on_s"] * 1e9), round(params["spike_off_s"] * 1e9)
        return Deed(
            holds={"tuning": Tuning(step_factor=params["factor"])},
            pulses=(on_ns, off_ns) if on_ns else None,
        )
