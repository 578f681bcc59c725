"""What a run's checkpoints cost and came to, in figures."""

from __future__ import annotations

from statistics import median

from reports.history import History
from reports.schema import Checkpoints


def checkpoints(history: History) -> Checkpoints | None:
    """The figures; None for a run that neither made checkpoints nor went on from one."""
    begun = [c for c in history.checkpointed if c.event.unit in history.syncers]
    if not begun and not history.resumed:
        return None
    complete = history.snapshots
    parts = history.checkpointed
    newest = complete[-1].event.marker if complete else None
    seam = history.seam
    return Checkpoints(
        begun=len(begun),
        complete=len(complete),
        bytes=sum(c.event.nbytes for c in parts if c.event.marker == newest) if complete else None,
        part_p50_s=median(c.event.took_ns for c in parts) / 1e9 if parts else None,
        complete_p50_s=median(s.event.took_ns for s in complete) / 1e9 if complete else None,
        in_flight_max=max((n for s in complete for n in s.event.in_flight.values()), default=0),
        resumed_run=seam.event.run if seam is not None else "",
        resumed_step=seam.event.marker if seam is not None else None,
        resumed_parts=sum(r is not seam for r in history.resumed),
    )
