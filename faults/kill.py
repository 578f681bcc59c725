"""Sudden death of a unit: a chip, a host or a process gone at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Kill:
    """SIGKILL from inside: the unit dies without a word and its supervisor must bring it back."""

    kind = "kill"
    summary = (
        "SIGKILL from inside: the unit dies without a word and its supervisor must bring it back."
    )
    needs: frozenset[Capability] = frozenset({"kill"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(action="kill")
