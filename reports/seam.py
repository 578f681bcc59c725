"""Two journals read together: a run, and one that goes on from its checkpoint.

What each says of itself is judged by its own checks. Here the second one's beginning is held
against what the first one's merges say, not only against what it wrote about the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.events import Checkpointed, Resumed
from reports.history import History, read_history
from reports.schema import GateRow

NAME = "seam"
HELP = (
    "contradictions between the two journals: steps, versions and merged tokens go on, none twice"
)


def rows(out: Path, folders: Sequence[str]) -> list[GateRow]:
    """One row for each run below ``out`` that goes on from another one there, by its spec."""
    found = []
    histories = {folder: read_history(out / folder) for folder in folders}
    for second in histories.values():
        earlier = Path(str(second.run.spec.get("resume") or "")).stem
        if earlier in histories:
            found.append(_row(across(histories[earlier], second)))
    return found


def _row(problems: Sequence[str]) -> GateRow:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    why = f"{problems[0]}{more}" if problems else HELP
    return GateRow(
        name=NAME,
        value=float(len(problems)),
        bound=0.0,
        ok=not problems,
        unit="count",
        better="at most",
        why=why,
    )


def across(first: History, second: History) -> list[str]:
    """Everything in which ``second`` does not go on where a checkpoint of ``first`` ended."""
    if second.seam is None:
        return ["the second run began anew"]
    seam = second.seam.event
    complete = next((s.event for s in first.snapshots if s.event.marker == seam.marker), None)
    if complete is None:
        return [f"the first run has no complete checkpoint {seam.marker}"]
    found = []
    if seam.run != first.run.run:
        found.append(f"the second run goes on from run {seam.run}, the first is {first.run.run}")
    parts = {c.event.unit: c.event for c in first.checkpointed if c.event.marker == seam.marker}
    for seen in second.resumed:
        found += _same(parts.get(seen.event.unit), seen.event)
    found += _versions(first, second)
    found += _twice(first, second, complete.members)
    return found


def _same(written: Checkpointed | None, read: Resumed) -> list[str]:
    """What a unit took from its part is what was written."""
    if written is None:
        return [f"{read.unit} went on from a part that was never written"]
    names = ["step", "versions", "since", "digests"]
    return [
        f"{read.unit}: {name} was written as {getattr(written, name)} and read as "
        f"{getattr(read, name)}"
        for name in names
        if getattr(written, name) != getattr(read, name)
    ]


def _versions(first: History, second: History) -> list[str]:
    """The fragments' versions go on from the newest that the first run merged by the marker."""
    assert second.seam is not None
    seam = second.seam.event
    found = []
    for fragment, version in enumerate(seam.versions):
        merged = [m.event for m in first.merges if m.event.fragment == fragment]
        newest = max((m.version for m in merged if m.clock <= seam.marker), default=None)
        if newest is not None and newest != version:
            text = f"fragment {fragment} was at version {newest} at step {seam.marker}"
            found.append(f"{text}, and the second run goes on from {version}")
    early = [m.event.clock for m in second.merges if m.event.clock <= seam.marker]
    return found + [f"global step {clock} was merged in both runs" for clock in early]


def _twice(first: History, second: History, members: dict[str, int]) -> list[str]:
    """No step that the first run merged by the marker is merged again in the second."""
    assert second.seam is not None
    reach: dict[tuple[str, int], int] = {}
    for merge in first.merges:
        if merge.event.clock > second.seam.event.marker:
            continue
        for part in merge.event.contributions:
            if members.get(part.unit) == part.incarnation:
                key = (part.unit, merge.event.fragment)
                reach[key] = max(reach.get(key, 0), part.step)
    gone_on = {(s.event.unit, s.event.incarnation) for s in second.resumed}
    found = []
    for merge in second.merges:
        for part in merge.event.contributions:
            through = reach.get((part.unit, merge.event.fragment), 0)
            if (part.unit, part.incarnation) in gone_on and part.since_step < through:
                steps = f"steps {part.since_step + 1} to {min(part.step, through)} of {part.unit}"
                found.append(f"{steps} entered fragment {merge.event.fragment} in both runs")
    return found
