"""A flapping port or cable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, LinkState, Param


class Flap:
    """The link is refused and restored in turn."""

    kind = "flap"
    summary = "The link is refused and restored in turn."
    needs: frozenset[Capability] = frozenset({"link"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {
        "down_s": Param(float, 1.0, "seconds down", lowest=0.05),
        "up_s": Param(float, 1.0, "seconds up", lowest=0.05),
    }

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(
            holds={"link": LinkState(refused=True)},
            pulses=(round(params["down_s"] * 1e9), round(params["up_s"] * 1e9)),
        )
