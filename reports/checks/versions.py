"""Claims about fragment versions: they rise by one, never fall, and never have two authors."""

from __future__ import annotations

from itertools import pairwise

from harness.events import Merged, RolledBack
from reports.checks.base import Evidence, Finding, holds, not_asked, verdict_of
from reports.history import History
from reports.lives import FaultWindow, Life, Seen
from reports.rollbacks import undone
from reports.shadows import STATE_KINDS

Violations = list[tuple[str, tuple[int, ...]]]

Commit = Seen[Merged] | Seen[RolledBack]
"""Both give a fragment a version that nobody may have seen before."""


def rise_by_one(e: Evidence) -> Finding:
    """Check 3: versions rise by one at the syncer and never fall at any learner."""
    history = e.history
    if not history.merges:
        return not_asked("nothing was merged")
    found: Violations = []
    notes: list[str] = []
    for fragment, merges in _by_fragment(history).items():
        found += _across_seam(history, fragment, merges[0])
        for before, after in pairwise(merges):
            step = after.event.version - before.event.version
            if step == 1 or _replaced(history, before, after):
                continue
            where = f"fragment {fragment} went from version {before.event.version} to "
            lives = after.event.incarnation - before.event.incarnation
            if 2 <= step <= 1 + lives and before.event.unit == after.event.unit:
                # Each life that is killed may lose the line of its very last merge, which it had
                # made durable and sent: the version exists though the journal lacks it.
                notes.append(f"{where}{after.event.version} across a restart of the syncer")
                continue
            found.append((f"{where}{after.event.version}", (before.line, after.line)))
    found += _learners(history)
    last = history.merges[-1].line
    good = f"{len(history.merges)} versions at the syncer, each one above the last"
    note = f"; {'; '.join(notes)} (last line of a killed syncer)" if notes else ""
    return verdict_of(found, holds(good + note, last))


def _across_seam(history: History, fragment: int, first: Seen[Merged]) -> Violations:
    """The first version after an earlier run's checkpoint is one above the one in it."""
    if history.seam is None:
        return []
    before, version = history.seam.event.versions[fragment], first.event.version
    lives = first.event.incarnation - history.seam.event.incarnation
    replaced = any(
        b.event.fragment == fragment and b.event.version < version for b in history.rolled_back
    )
    if before < version <= before + 1 + lives or (replaced and version > before):
        return []
    text = f"fragment {fragment} went from version {before} of the checkpoint to {version}"
    return [(text, (history.seam.line, first.line))]


def _replaced(history: History, before: Seen[Merged], after: Seen[Merged]) -> bool:
    """Whether a damaged disk made the syncer go on from an older state between the two."""
    return any(
        back.event.fragment == before.event.fragment
        and before.event.version < back.event.version == after.event.version - 1
        for back in history.rolled_back
    )


def _learners(history: History) -> Violations:
    found: Violations = []
    seam = history.seam.event.versions if history.seam is not None else ()
    newest = dict(enumerate(seam))
    newest |= {f: m[-1].event.version for f, m in _by_fragment(history).items()}
    for seen_back in history.rolled_back:
        back = seen_back.event
        newest[back.fragment] = max(newest.get(back.fragment, 0), back.version)
    # One version may be ahead: see above on the last line of a killed syncer.
    slack = 1 if _syncer_died(history) or history.cut else 0
    for unit in history.learners:
        held: dict[int, tuple[int, int]] = {}
        for life in history.lives.get(unit, ()):
            if life.resumed is not None:
                rows = enumerate(life.resumed.event.versions)
                held = {p: (version, life.resumed.line) for p, version in rows}
            for seen in life.adopted:
                event = seen.event
                version, line = held.get(event.fragment, (-1, 0))
                if event.version < version:
                    text = f"fragment {event.fragment} at {unit} fell from version {version}"
                    found.append((f"{text} to {event.version}", (line, seen.line)))
                if event.version - newest.get(event.fragment, 0) > slack:
                    text = f"{unit} holds version {event.version} of fragment {event.fragment}"
                    found.append((f"{text}, which no syncer committed", (seen.line,)))
                held[event.fragment] = (event.version, seen.line)
    return found


def one_author(e: Evidence) -> Finding:
    """Check 8: no two syncers commit the same version."""
    history = e.history
    if not history.merges:
        return not_asked("nothing was merged")
    found: Violations = []
    first: dict[tuple[int, int], Commit] = {}
    commits: list[Commit] = [*history.merges, *history.rolled_back]
    for commit in sorted(commits, key=lambda c: c.line):
        event = commit.event
        other = first.setdefault((event.fragment, event.version), commit)
        if other is not commit:
            text = f"version {event.version} of fragment {event.fragment} was committed by "
            who = f"{_name(other)} and again by {_name(commit)}"
            found.append((text + who, (other.line, commit.line)))
    newest: dict[str, tuple[int, int]] = {}
    for merge in history.merges:
        event = merge.event
        incarnation, line = newest.get(event.unit, (event.incarnation, merge.line))
        if event.incarnation < incarnation:
            text = f"{_name(merge)} committed after incarnation {incarnation} had"
            found.append((text, (line, merge.line)))
        else:
            newest[event.unit] = (event.incarnation, merge.line)
    authors = sorted({_name(m) for m in history.merges})
    good = f"{len(history.merges)} commits by {', '.join(authors)}"
    return verdict_of(found, holds(good, history.merges[-1].line))


def survives_syncer(e: Evidence) -> Finding:
    """Check 4: nothing broadcast is lost when the syncer dies."""
    history = e.history
    end = history.teardown_ns or history.end_ns
    deaths = [
        life
        for unit in history.syncers
        for life in history.lives.get(unit, ())
        if life.ended_ns is not None and life.ended_ns < end
    ]
    if not deaths:
        return not_asked("no syncer died")
    found: Violations = []
    for death in deaths:
        found += _reused(history, death)
    lost, excused = _taken_back(history)
    found += lost
    lines = [d.exit.line for d in deaths if d.exit]
    good = f"{len(deaths)} syncer deaths; no version that was sent came again"
    if excused:
        good += f"; lost with the disk, as was asked for: {', '.join(excused)}"
    return verdict_of(found, holds(good, *lines))


def _taken_back(history: History) -> tuple[Violations, list[str]]:
    """Versions that were sent and that a damaged disk could not give back.

    Those that a state fault may cost are told apart: one of each damage, and whatever nobody that
    is there holds where the whole disk was lost.
    """
    found: Violations = []
    excused: list[str] = []
    for back, gone in undone(history):
        event = back.event
        fault = _damaged_by(history, back)
        if fault is not None and (fault.kind == "lose_checkpoint" or len(gone) <= 1):
            excused += [
                f"version {m.event.version} of fragment {event.fragment} ({fault.fault})"
                for m in gone
            ]
            continue
        for merge in gone:
            text = (
                f"version {merge.event.version} of fragment {event.fragment} was sent and is lost"
            )
            found.append((f"{text}: {event.why}", (merge.line, back.line)))
    return found, excused


def _damaged_by(history: History, back: Seen[RolledBack]) -> FaultWindow | None:
    """The state fault behind a rollback: nothing was merged between the two.

    Of several it is the newest that lost everything: what came after it found an empty disk.
    """
    event = back.event
    merged = [m.event.t_ns for m in history.merges if m.event.unit == event.unit]
    since = max((t for t in merged if t < event.t_ns), default=0)
    before = [
        w
        for w in history.faults
        if w.kind in STATE_KINDS
        and w.unit == event.unit
        and w.executed_ns is not None
        and w.executed_ns >= since
        and (w.asked_ns or w.executed_ns) <= event.t_ns
    ]
    lost = [w for w in before if w.kind == "lose_checkpoint"]
    return max(lost or before, key=lambda w: w.executed_ns or 0, default=None)


def _reused(history: History, death: Life) -> Violations:
    """Versions that learners or merges show before the death must not be committed after it."""
    died = death.ended_ns or 0
    sent: dict[int, tuple[int, int]] = {}
    for merge in history.merges:
        if merge.event.t_ns <= died:
            _keep(sent, merge.event.fragment, merge.event.version, merge.line)
    for unit in history.learners:
        for life in history.lives.get(unit, ()):
            for seen in life.adopted:
                if seen.event.t_ns <= died:
                    _keep(sent, seen.event.fragment, seen.event.version, seen.line)
    found: Violations = []
    for merge in history.merges:
        event = merge.event
        if event.t_ns <= died:
            continue
        version, line = sent.get(event.fragment, (-1, 0))
        if event.version <= version:
            text = f"version {event.version} of fragment {event.fragment} was committed again"
            found.append((f"{text} after the syncer died", (line, merge.line)))
    return found


def _keep(sent: dict[int, tuple[int, int]], fragment: int, version: int, line: int) -> None:
    if version > sent.get(fragment, (-1, 0))[0]:
        sent[fragment] = (version, line)


def _by_fragment(history: History) -> dict[int, list[Seen[Merged]]]:
    grouped: dict[int, list[Seen[Merged]]] = {}
    for merge in history.merges:
        grouped.setdefault(merge.event.fragment, []).append(merge)
    return dict(sorted(grouped.items()))


def _syncer_died(history: History) -> bool:
    return any(
        life.ended_ns is not None
        for unit in history.syncers
        for life in history.lives.get(unit, ())
    )


def _name(commit: Commit) -> str:
    return f"{commit.event.unit} (incarnation {commit.event.incarnation})"
