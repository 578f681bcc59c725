"""Claims about checkpoints: each complete one is a consistent cut, and a resumed run continues it.

A cut is consistent when no unit's part shows anything of another one's future: whatever the syncer
had merged or committed from a learner happened before that learner's own cut, and whatever a
learner had adopted was committed before the syncer's.
"""

from __future__ import annotations

from harness.events import Checkpointed, Resumed, SnapshotComplete
from reports.checks.base import Evidence, Finding, broken, holds, not_asked, unknown, verdict_of
from reports.history import History
from reports.lives import Seen

Violations = list[tuple[str, tuple[int, ...]]]

Marked = Seen[Checkpointed] | Seen[Resumed]


def cuts_consistent(e: Evidence) -> Finding:
    """Every complete checkpoint, and what a resumed run goes on from."""
    history = e.history
    syncers = [c for c in history.checkpointed if c.event.unit in history.syncers]
    if not history.checkpointed and not history.resumed:
        return not_asked("no checkpoint was begun")
    found = _begin_where_told(history)
    for complete in history.snapshots:
        found += _cut(history, complete)
    if len(syncers) > 1 and not history.snapshots:
        lines = [c.line for c in syncers]
        return broken(f"{len(syncers)} checkpoints were begun and none was completed", *lines)
    says = []
    lines = [s.line for s in history.snapshots[-1:]]
    if history.snapshots:
        says.append(f"{len(history.snapshots)} complete checkpoints, each a consistent cut")
    if history.seam is not None:
        lines.append(history.seam.line)
        parts = len(history.resumed) - 1
        says.append(f"went on from step {history.seam.event.marker} with {parts} learners' parts")
    if not says and not found:
        return unknown("one checkpoint was begun, and the run ended before it was complete")
    return verdict_of(found, holds("; ".join(says), *lines))


def _cut(history: History, complete: Seen[SnapshotComplete]) -> Violations:
    marker, line = complete.event.marker, complete.line
    own = _part(history, complete.event.unit, complete.event.incarnation, complete)
    if own is None:
        return _unless_cut(history, f"checkpoint {marker} has no part of the syncer", line)
    found: Violations = []
    for name, incarnation in complete.event.members.items():
        part = _part(history, name, incarnation, complete)
        if part is None:
            text = f"checkpoint {marker} is complete without the part of {name}"
            found += _unless_cut(history, text, line)
            continue
        through = own.event.merged_through.get(name, ())
        if own.event.lives.get(name) != incarnation:
            through = ()  # of another life
        found += _pair(f"checkpoint {marker}", own, part, through)
    return found


def _part(
    history: History, unit: str, incarnation: int, complete: Seen[SnapshotComplete]
) -> Seen[Checkpointed] | None:
    """The part of that life in the snapshot that ``complete`` tells of.

    A syncer that lost all that it had counts its steps anew and passes the same markers again:
    its part is of its own life, and a learner's the newest one by then.
    """
    parts = [
        c
        for c in history.checkpointed
        if (c.event.unit, c.event.incarnation) == (unit, incarnation)
        and c.event.marker == complete.event.marker
    ]
    by_then = [c for c in parts if c.event.t_ns <= complete.event.t_ns]
    found = by_then or parts
    return found[-1] if found else None


def _pair(what: str, syncer: Marked, learner: Marked, through: tuple[int, ...]) -> Violations:
    """What is inconsistent between the syncer's part and one learner's."""
    name, lines = learner.event.unit, (syncer.line, learner.line)
    found: Violations = []
    for p, step in enumerate(through):
        if step > learner.event.step:
            text = f"{what}: the syncer has merged step {step} of {name} into fragment {p}"
            found.append((f"{text}, whose part ends at step {learner.event.step}", lines))
    pairs = zip(learner.event.versions, syncer.event.versions, strict=False)
    for p, (held, committed) in enumerate(pairs):
        if held > committed:
            text = f"{what}: {name} holds version {held} of fragment {p}"
            found.append((f"{text}, the syncer had committed {committed}", lines))
    return found


def _begin_where_told(history: History) -> Violations:
    """A resumed run's units go on from one checkpoint, and from exactly there."""
    seam = history.seam
    found: Violations = []
    for seen in history.resumed:
        event = seen.event
        if seam is None:
            found.append(
                (f"{event.unit} went on from a checkpoint without the syncer", (seen.line,))
            )
            continue
        if seen is seam:
            continue
        if (event.run, event.marker) != (seam.event.run, seam.event.marker):
            text = f"{event.unit} went on from step {event.marker} of run {event.run}, the syncer "
            text += f"from step {seam.event.marker} of run {seam.event.run}"
            found.append((text, (seam.line, seen.line)))
            continue
        through = seam.event.merged_through.get(event.unit, ())
        found += _pair("the checkpoint that was resumed from", seam, seen, through)
        found += _next_step(history, seen)
    if seam is not None:
        first = next((m for m in history.merges if m.event.clock <= seam.event.marker), None)
        if first is not None:
            text = f"global step {first.event.clock} was merged again after the checkpoint of step"
            found.append((f"{text} {seam.event.marker}", (seam.line, first.line)))
    return found


def _next_step(history: History, seen: Seen[Resumed]) -> Violations:
    life = history.life(seen.event.unit, seen.event.incarnation)
    first = life.first_step if life is not None else None
    if first is None or first.event.step == seen.event.step + 1:
        return []
    text = f"{seen.event.unit} went on with step {first.event.step} after step {seen.event.step}"
    return [(text, (seen.line, first.line))]


def _unless_cut(history: History, text: str, line: int) -> Violations:
    """A journal that was cut may lack the line that would say otherwise."""
    return [] if history.cut else [(text, (line,))]
