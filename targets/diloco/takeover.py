"""The syncer's side of the seam: what a run takes over from an earlier run's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.events import Resumed
from targets.base import Save, Started
from targets.diloco.committed import Committed
from targets.diloco.messages import Push, Report
from targets.diloco.roster import Peer, Roster
from targets.diloco.snapshots import SEAM, Seam
from targets.node import Desk


class Takeover:
    """``seam`` is None in a run that began by itself. Only a first life goes on from it: later
    ones have saved what they need, under :data:`SEAM` until there is a checkpoint of their own."""

    def __init__(self, desk: Desk, roster: Roster, committed: Committed, seam: Seam | None) -> None:
        self._desk = desk
        self._roster = roster
        self._committed = committed
        self.seam = seam
        """What the run went on from; this life did if it is the first."""
        self.lives_before: Mapping[str, int] = {}
        """Learner to its lives in earlier runs."""
        self._in_flight: dict[str, tuple[Report | Push, ...]] = {}
        """Recorded at the earlier run's cut, of learners that have not come back yet."""

    def begin(self, event: Started) -> tuple[Seam | None, dict[str, Any] | None]:
        """The seam if this is the life that goes on from it, and what there is of earlier runs."""
        first = self.seam if event.incarnation == 1 else None
        earlier = _kept(first) if first is not None else event.saved.get(SEAM)
        if earlier is not None:
            self.lives_before = earlier["lives"]
        return first, earlier

    def tell(self, seam: Seam, step: int) -> None:
        """Make it durable and say that the run goes on after global step ``step``."""
        self._in_flight = dict(seam.in_flight)
        for name, position in seam.positions.items():
            if name in self._roster.by_name:
                self._roster.by_name[name].position = position
        self._desk.out.append(Save(SEAM, _kept(seam)))
        self._desk.note(
            Resumed,
            run=seam.run,
            marker=seam.marker,
            step=step,
            digests=seam.digests,
            versions=tuple(self._committed.versions),
            merged_through=seam.merged_through,
            in_flight={name: len(messages) for name, messages in seam.in_flight.items()},
        )

    def in_flight(self, peer: Peer) -> tuple[Report | Push, ...]:
        """Messages of a learner that is back, which were on their way at the cut: once, and
        before any new one."""
        return self._in_flight.pop(peer.name, ()) if peer.incarnation == 1 else ()


def _kept(seam: Seam) -> dict[str, Any]:
    """What later lives need of an earlier run's checkpoint, until they have their own of it."""
    return {"fragments": list(seam.fragments), "lives": seam.lives}
