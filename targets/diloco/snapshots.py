"""Snapshots of the whole cluster, the syncer's side (Chandy and Lamport; paper E.2), without I/O.

    step t closed, t mod T_c = 0:  the syncer's state is pinned and written; t is the marker
    every message of the syncer carries its clock, so the first one at or past t is the marker
    a learner's message whose clock is not yet past t: sent before its own cut, recorded
    the first whose clock is:      it returned the marker; nothing later belongs to the cut
    PartSaved of every member, own part durable: the manifest is written, the snapshot complete

Rules of this file:

* The marker becomes durable before anybody is told of it, so that a syncer that comes back never
  passes the same one twice: the parts of its learners would be of another cut than its own.
* Members are the learners that train when the cut is made. One whose link is lost, or that begins
  another life, is omitted with the reason, and goes through recovery on resume.
* The cut lies between a merge and its broadcast: what was merged at step t is in the syncer's
  part, and no learner adopts it before its own cut. A broadcast that a learner lacks on resume is
  found missing in its Hello, like one that a broken link lost.
* A snapshot that is still open when the next one is due is given up.
* Only reports and pushes are recorded: nothing else that a learner sends changes the syncer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.events import Checkpointed, SnapshotComplete, UnitNote
from targets.base import Effect, Save, Work
from targets.diloco.messages import (
    KeepPart,
    PartKept,
    PartSaved,
    Push,
    Report,
    SealSnapshot,
)

LANE = "checkpoint"

KEY = "snapshot"
"""Under which the newest marker is durable."""

SEAM = "seam"
"""Under which what the first life took over from an earlier run is durable."""

Noting = Callable[..., None]
"""``note(kind, **fields)`` puts an event of this unit into the journal."""


@dataclass(frozen=True, slots=True)
class Seam:
    """Where the present run goes on from an earlier one's checkpoint, as the syncer needs it."""

    run: str
    """The earlier run."""
    marker: int
    fragments: tuple[dict[str, Any], ...]
    """What an earlier life would have saved of each fragment, learners' lives counted anew: the
    first life here of each one that has a part goes on from it."""
    merged_through: dict[str, tuple[int, ...]]
    """Learner that has a part to the last local step merged into each fragment."""
    positions: dict[str, int]
    """Learner that has a part to the last local step that it had reported: no news when it comes
    again."""
    in_flight: dict[str, tuple[Report | Push, ...]]
    """Learner to the messages recorded of it, of its first life here."""
    lives: dict[str, int]
    """Learner to the number of lives that it had before, as its data counts them."""
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    """The snapshot that is being made."""

    marker: int
    began_ns: int
    lives: dict[str, int]
    """Member to its incarnation."""
    unreturned: set[str]
    """Members that have not returned the marker."""
    unsaved: set[str]
    """Members whose part is not known to be durable."""
    omitted: dict[str, str]
    state: dict[str, Any]
    own: PartKept | None = None
    parts: dict[str, str] = field(default_factory=dict)
    in_flight: list[tuple[str, Report | Push]] = field(default_factory=list)
    sealing: bool = False


class Snapshots:
    """``every`` is T_c in global steps, 0 for never; ``me`` is the syncer's entry in clocks."""

    def __init__(self, me: str, every: int, note: Noting) -> None:
        self.every = every
        self.newest = 0
        """The newest marker, in this life or an earlier one."""
        self._me = me
        self._note = note
        self._open: _Open | None = None

    @property
    def listening(self) -> bool:
        """Whether :meth:`heard` has anything to look for."""
        return self._open is not None

    def restarted(self, saved: Mapping[str, Any], seam: Seam | None) -> int:
        """Go on after an earlier life or run; returns the newest marker that it told."""
        before = seam.marker if seam is not None else 0
        self.newest = max(before, saved.get(KEY, {}).get("marker", 0))
        return self.newest

    def due(self, step: int) -> bool:
        """Whether closing ``step`` begins a snapshot."""
        return self.every > 0 and step > self.newest and step % self.every == 0

    # --- the cut --------------------------------------------------------------------------------

    def begin(
        self,
        step: int,
        incarnation: int,
        state: dict[str, Any],
        members: Mapping[str, int],
        omitted: Mapping[str, str],
        now: int,
    ) -> list[Effect]:
        """Step ``step`` is closed: cut here. ``state`` is what the syncer knows (JSON values),
        ``members`` maps learners that train to their incarnations."""
        out = self._give_up(f"the one of step {step} is due")
        self.newest = step
        self._open = _Open(
            marker=step,
            began_ns=now,
            lives=dict(members),
            unreturned=set(members),
            unsaved=set(members),
            omitted=dict(omitted),
            state=state,
        )
        out.append(Work(KeepPart(step, incarnation, state), LANE))
        out.append(Save(KEY, {"marker": step}))
        return out

    def heard(self, name: str, message: Any) -> list[Effect]:
        """A message of ``name`` came, on the link that it had at the cut."""
        cut = self._open
        if cut is None or name not in cut.unreturned:
            return []
        if message.clock.get(self._me, 0) >= cut.marker:
            cut.unreturned.discard(name)
            return self._look()
        if isinstance(message, Report | Push):
            cut.in_flight.append((name, message))
        return []

    def lost(self, name: str, why: str) -> list[Effect]:
        """Its link is gone, or it began another life: without its part, unless that is durable."""
        cut = self._open
        if cut is None or name not in cut.unreturned | cut.unsaved:
            return []
        self._omit(cut, name, why)
        return self._look()

    def saved(self, name: str, message: PartSaved) -> list[Effect]:
        """A learner's part is durable, or there is none."""
        cut = self._open
        if cut is None or message.marker != cut.marker or name not in cut.unsaved:
            return []
        if message.why:
            self._omit(cut, name, message.why)
        else:
            cut.unsaved.discard(name)
            cut.parts[name] = message.digest
        return self._look()

    def kept(self, job: KeepPart, result: PartKept, now: int) -> list[Effect]:
        """The syncer's own part is durable."""
        cut = self._open
        if cut is None or job.marker != cut.marker:
            return []
        cut.own = result
        merged = job.state["merged"]
        self._note(
            Checkpointed,
            marker=job.marker,
            step=job.marker,
            nbytes=result.nbytes,
            took_ns=now - cut.began_ns,
            digests=result.digests,
            versions=tuple(job.state["versions"]),
            merged_through={name: tuple(row["through"]) for name, row in merged.items()},
            lives={name: row["incarnation"] for name, row in merged.items()},
        )
        return self._look()

    def failed(self, marker: int, why: str) -> list[Effect]:
        """The syncer's part or the manifest could not be written."""
        self._note(UnitNote, what="checkpoint-failed", detail=f"step {marker}: {why}")
        cut = self._open
        return self._give_up(why) if cut is not None and cut.marker == marker else []

    def sealed(self, job: SealSnapshot, now: int) -> None:
        """The manifest is durable (or what was given up is gone)."""
        cut = self._open
        if job.members is None or cut is None or job.marker != cut.marker:
            return
        self._open = None
        counts = dict.fromkeys(cut.parts, 0)
        for name, _ in cut.in_flight:
            counts[name] = counts.get(name, 0) + 1
        self._note(
            SnapshotComplete,
            marker=job.marker,
            members={name: cut.lives[name] for name in sorted(cut.parts)},
            omitted=dict(sorted(cut.omitted.items())),
            in_flight={name: counts[name] for name in sorted(counts) if name in cut.parts},
            took_ns=now - cut.began_ns,
        )

    # --- steps ----------------------------------------------------------------------------------

    def _omit(self, cut: _Open, name: str, why: str) -> None:
        cut.unreturned.discard(name)
        cut.unsaved.discard(name)
        cut.parts.pop(name, None)
        cut.omitted[name] = why

    def _look(self) -> list[Effect]:
        cut = self._open
        if cut is None or cut.sealing or cut.own is None or cut.unreturned or cut.unsaved:
            return []
        if not cut.parts:
            return self._give_up("no learner has a part in it")
        cut.sealing = True
        members = {**dict(sorted(cut.parts.items())), self._me: cut.own.digest}
        recorded = tuple(m for m in cut.in_flight if m[0] in cut.parts)
        omitted = dict(sorted(cut.omitted.items()))
        return [Work(SealSnapshot(cut.marker, members, omitted, recorded), LANE)]

    def _give_up(self, why: str) -> list[Effect]:
        cut, self._open = self._open, None
        if cut is None:
            return []
        waiting = ", ".join(sorted(cut.unreturned | cut.unsaved)) or "nobody"
        detail = f"step {cut.marker}: {why}; it waited for {waiting}"
        self._note(UnitNote, what="snapshot-given-up", detail=detail)
        return [Work(SealSnapshot(cut.marker, None), LANE)]
