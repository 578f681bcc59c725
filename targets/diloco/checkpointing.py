"""A learner's side of checkpoints (paper E.2), without I/O: when to cut, and what to say of it.

The first message whose clock has the syncer at or past a multiple of T_c is the marker, whoever
sent it: a learner that hears of the syncer's step from a peer first would otherwise send messages
that look as if it had made its cut. The cut is made before that message is acted on. Between two
jobs of the main lane or in the middle of a step, it is of the state after the last completed job,
like the answer to a pull; training goes on while the part is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from harness.events import Checkpointed, Joined, Resumed, UnitNote
from targets.base import Effect, Work
from targets.diloco.messages import (
    Clock,
    KeepPart,
    LoadState,
    PartKept,
    PartSaved,
    Payload,
    PruneParts,
    SnapshotsKept,
)
from targets.diloco.snapshots import LANE, Noting

if TYPE_CHECKING:
    from targets.diloco.checkpoints import Part

SOURCE = "checkpoint"
"""``Joined.source`` of a learner that goes on from its part."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What a learner's part holds beside the arrays: all that its later pushes will say."""

    step: int
    versions: tuple[int, ...]
    committed: tuple[int, ...]
    since: tuple[int, ...]
    """Local step at which each fragment was adopted."""
    tokens: tuple[int, ...]
    """Tokens of each fragment since then."""
    life: int
    """Of the data: which order the learner reads its shard in."""


class Checkpointing:
    """``every`` is T_c in global steps, 0 for never; ``syncer`` its entry in clocks."""

    def __init__(self, syncer: str, every: int, note: Noting, marker: int = 0) -> None:
        self.every = every
        self._syncer = syncer
        self._note = note
        self._marker = marker
        """The newest one that was passed."""
        self._began: dict[int, int] = {}
        """Marker of a part that is being written to the instant of its cut."""

    def passed(self, clock: Clock) -> int:
        """The marker that this message brings; 0 for none."""
        step = clock.get(self._syncer, 0)
        marker = step - step % self.every if self.every else 0
        if marker <= self._marker:
            return 0
        self._marker = marker
        return marker

    def cut(self, marker: int, incarnation: int, counters: Counters, now: int) -> list[Effect]:
        """Pin and write the part; ``counters`` belong to the state pinned in this very call."""
        self._began[marker] = now
        state: dict[str, Any] = msgspec.to_builtins(counters)
        return [Work(KeepPart(marker, incarnation, state), LANE)]

    def kept(self, job: KeepPart, result: PartKept, now: int, clock: Clock) -> PartSaved:
        """The part is durable: what to tell the syncer."""
        counters = msgspec.convert(job.state, Counters)
        self._note(
            Checkpointed,
            marker=job.marker,
            step=counters.step,
            nbytes=result.nbytes,
            took_ns=now - self._began.pop(job.marker, now),
            digests=result.digests,
            versions=counters.versions,
            since=counters.since,
        )
        return PartSaved(job.marker, counters.step, result.nbytes, result.digest, "", clock)

    def failed(self, marker: int, why: str, clock: Clock) -> PartSaved:
        """There is no part: what to tell the syncer."""
        self._began.pop(marker, None)
        self._note(UnitNote, what="checkpoint-failed", detail=f"step {marker}: {why}")
        return PartSaved(marker, 0, 0, "", why, clock)

    def prune(self, told: SnapshotsKept) -> list[Effect]:
        """The syncer said which snapshots are complete."""
        return [Work(PruneParts(told.markers, told.upto), LANE)]


class Resuming:
    """Going on from ``part``, which has its arrays."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.counters = msgspec.convert(part.state, Counters)

    def job(self) -> LoadState:
        """What brings the worker to the part's state."""
        payloads: tuple[Payload, ...] = tuple(p for f in self.part.payloads for p in f)
        return LoadState(payloads, self.part.trained, self.part.moments)

    def say(self, note: Noting, digests: dict[str, str]) -> None:
        """Journal what the learner goes on from; ``digests`` are of what it holds now."""
        part, counters = self.part, self.counters
        note(
            Joined,
            source=SOURCE,
            clock=max(counters.committed),
            step=counters.step,
            inner=SOURCE,
            digests=digests,
            donor_digests=part.digests,
            nbytes=part.nbytes,
            versions=counters.versions,
            donor_step=counters.step,
        )
        note(
            Resumed,
            run=part.run,
            marker=part.marker,
            step=counters.step,
            digests=digests,
            versions=counters.versions,
            since=counters.since,
        )
