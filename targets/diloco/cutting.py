"""A learner's cuts for checkpoints, carried out: see ``checkpointing`` for when and what."""

from __future__ import annotations

from typing import Any

from targets.diloco.checkpointing import Checkpointing
from targets.diloco.holding import Holding
from targets.diloco.messages import KeepPart, PartKept, SnapshotsKept
from targets.diloco.uplink import Uplink
from targets.diloco.vector import VectorClock
from targets.node import Desk


class Cutting:
    """``every`` is T_c in global steps, 0 for never; ``marker`` the one that an earlier run was
    gone on from; ``lives_before`` how often the learner lived in earlier runs."""

    def __init__(
        self,
        desk: Desk,
        every: int,
        clock: VectorClock,
        uplink: Uplink,
        holding: Holding,
        marker: int = 0,
        lives_before: int = 0,
    ) -> None:
        self.every = every
        self._desk = desk
        self._clock = clock
        self._uplink = uplink
        self._holding = holding
        self._lives_before = lives_before
        self._checkpoints = Checkpointing(uplink.syncer, every, desk.note, marker)

    def look(self, message: Any, loading: bool) -> None:
        """Cut before ``message`` is acted on, if it is the first one past a multiple of T_c;
        ``loading`` while a state is here that is not loaded yet."""
        marker = self._checkpoints.passed(message.clock)
        if not marker:
            return
        if not self._holding.joined:
            if loading:  # the syncer was told of it and may wait
                self.failed(marker, "its state was not loaded yet")
            return
        desk = self._desk
        counters = self._holding.counters(self._lives_before + desk.incarnation)
        desk.out += self._checkpoints.cut(marker, desk.incarnation, counters, desk.now)

    def kept(self, job: KeepPart, result: PartKept) -> None:
        """The part is durable."""
        saved = self._checkpoints.kept(job, result, self._desk.now, self._clock.read())
        if self._uplink.welcomed:
            self._uplink.send(saved)

    def failed(self, marker: int, why: str) -> None:
        """There is no part of this learner in the checkpoint."""
        none = self._checkpoints.failed(marker, why, self._clock.read())
        if self._uplink.welcomed:
            self._uplink.send(none)

    def prune(self, told: SnapshotsKept) -> None:
        """The syncer said which checkpoints are complete."""
        self._desk.out += self._checkpoints.prune(told)
