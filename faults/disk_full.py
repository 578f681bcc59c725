"""A disk without space: nothing new becomes durable for a while, and what is there stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param, Tuning


class DiskFull:
    """Durable writes of the unit fail with ENOSPC until the fault ends.

    An emulation in every runtime: the unit reads in its control file that its disk is full, and
    its own writing raises the error that the kernel would. No file system is filled, so nothing
    else on the host suffers; and the counter of lives can still be written, so the unit may die
    and come back meanwhile.
    """

    kind = "disk_full"
    summary = "Durable writes of the unit fail with ENOSPC (emulated) until the fault ends."
    needs: frozenset[Capability] = frozenset({"tune"})
    lasting = True
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(holds={"tuning": Tuning(disk_full=True)})
