"""Payload faults: what a unit pushes is spoilt before it leaves, so the syncer must notice.

One file for four members, since they differ in a word: the unit's own control file carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param, Tuning


class _UpdateFault:
    kind: str
    summary: str
    needs: frozenset[Capability] = frozenset({"tune"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}
    how: ClassVar[str]

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"tuning": Tuning(update=params.get("how", self.how))})


class CorruptUpdate(_UpdateFault):
    """Silent data corruption, as faulty chips produce it."""

    kind = "corrupt_update"
    summary = "Pushed updates carry NaN, infinity, a flipped bit, or are scaled."
    how = "nan"
    params: ClassVar[Mapping[str, Param]] = {
        "how": Param(str, "nan", "what is done", choices=("nan", "inf", "bitflip", "scale"))
    }


class StaleUpdate(_UpdateFault):
    """An update computed from an old version of the fragment."""

    kind = "stale_update"
    summary = "Pushed updates claim a base that is long gone."
    how = "stale"


class DuplicateUpdate(_UpdateFault):
    """A retry that the first attempt did not need."""

    kind = "duplicate_update"
    summary = "Every update is pushed twice."
    how = "duplicate"


class TruncatedUpdate(_UpdateFault):
    """A transfer that ended early."""

    kind = "truncated_update"
    summary = "Pushed updates miss their last bytes."
    how = "truncate"
