"""Out of memory: the kernel ends the unit because it may not have what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class Oom:
    """The unit's memory limit falls below its use, and the kernel's killer ends it.

    Real where a memory limit can be set: by a control group or by the engine. Where none can, the
    fault is refused; a SIGKILL of ours would be ``kill`` under another name.
    """

    kind = "oom"
    summary = "The unit's memory limit falls below what it uses: the kernel's OOM killer ends it."
    needs: frozenset[Capability] = frozenset({"memory"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(action="oom")
