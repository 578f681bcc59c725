"""Does nothing. With it an experiment must equal its own baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Noop:
    """Does nothing; the do-nothing member of the family."""

    kind = "noop"
    summary = "Does nothing; the do-nothing member of the family."
    needs: frozenset[Capability] = frozenset(())
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed()
