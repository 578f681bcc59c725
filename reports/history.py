"""Folds a journal into typed per-unit lives, fault windows, merges and links.

Everything later reads a :class:`History` and never the raw events. The fold refuses nothing: a
journal that is cut, torn or out of order gives a history whose ``problems`` say so.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter, le
from pathlib import Path
from typing import Any

from harness import events as ev
from harness.journal import JournalText, read_journal
from reports.integrity import damage
from reports.lives import FaultWindow, Life, Seen

JOURNAL = "journal.jsonl"
"""Name of the journal inside a run directory."""

REPLAY = "replay.jsonl"
"""Name of what a replay of the journal found, beside it."""

_TEARDOWN = frozenset({ev.UnitExited, ev.UnitEnded, ev.ResidueFound, ev.RunEnded, ev.ProxyChanged})
"""Kinds that teardown writes; they do not stretch the window of a run without a quiet tail."""


@dataclass(eq=False)
class History:
    """What happened in a run. Lists are in order of time."""

    run: ev.RunStarted
    units: dict[str, ev.UnitInfo]
    lives: dict[str, list[Life]]
    faults: list[FaultWindow]
    """In order of first mention: by fault id as the plan lists them, then by unit."""
    merges: list[Seen[ev.Merged]] = field(default_factory=list)
    refused: list[Seen[ev.UpdateRefused]] = field(default_factory=list)
    rolled_back: list[Seen[ev.RolledBack]] = field(default_factory=list)
    checkpointed: list[Seen[ev.Checkpointed]] = field(default_factory=list)
    snapshots: list[Seen[ev.SnapshotComplete]] = field(default_factory=list)
    resumed: list[Seen[ev.Resumed]] = field(default_factory=list)
    """Of every unit that goes on from an earlier run's checkpoint."""
    links: list[Seen[ev.LinkUp | ev.LinkDown]] = field(default_factory=list)
    heard: list[Seen[ev.Heard]] = field(default_factory=list)
    exits: list[Seen[ev.UnitExited]] = field(default_factory=list)
    worlds: list[Seen[ev.WorldFormed]] = field(default_factory=list)
    """Only of targets whose units train in lockstep."""
    worlds_ended: list[Seen[ev.WorldEnded]] = field(default_factory=list)
    evaluated: list[Seen[ev.Evaluated]] = field(default_factory=list)
    control: Seen[ev.ControlMeasured] | None = None
    notes: list[Seen[ev.Event]] = field(default_factory=list)
    """Unit notes and facts about the proxy."""
    steady: Seen[ev.SteadyState] | None = None
    baseline_unmet: Seen[ev.BaselineUnmet] | None = None
    window_ended: Seen[ev.WindowEnded] | None = None
    tail_ended: Seen[ev.TailEnded] | None = None
    failed: list[Seen[ev.HarnessFailed]] = field(default_factory=list)
    residue: Seen[ev.ResidueFound] | None = None
    ended: Seen[ev.RunEnded] | None = None
    replayed: ev.Replayed | None = None
    """What the last replay found, if there was one."""
    replayed_other: bool = False
    """It was of other bytes than this journal's."""
    last_ns: int = 0
    """The latest instant outside teardown."""
    problems: tuple[str, ...] = ()
    """All that is wrong with the journal: what is damaged, and whether it ends early."""
    damage: tuple[str, ...] = ()
    """Why the journal cannot be believed; a journal that merely ends early is not damaged."""
    events: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    """Kinds that this version does not know, with how many lines there were of each."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Values derived from this history by other modules, computed once."""
    _notices: dict[str, list[Seen[Any]]] = field(default_factory=dict, repr=False)
    _by_incarnation: dict[tuple[str, int], Life] = field(default_factory=dict, repr=False)

    @property
    def learners(self) -> list[str]:
        """Names of the learners that the spec allocates, in its order."""
        return [u.name for u in self.units.values() if u.role == "learner"]

    @property
    def syncers(self) -> list[str]:
        """Names of the syncers."""
        return [u.name for u in self.units.values() if u.role == "syncer"]

    @property
    def cut(self) -> bool:
        """Whether the journal lacks its last line: whoever wrote it was stopped hard."""
        return self.ended is None

    @property
    def start_ns(self) -> int | None:
        """Begin of the measuring window; None when steady state was never reached."""
        return self.steady.event.t_ns if self.steady else None

    @property
    def end_ns(self) -> int:
        """End of the measuring window: the quiet tail's end, or the last sign of the run."""
        if self.tail_ended:
            return self.tail_ended.event.t_ns
        return max(self.last_ns, self.start_ns or 0)

    @property
    def teardown_ns(self) -> int | None:
        """From when on the harness itself ends units; None when the journal does not say."""
        marks = [self.tail_ended, self.baseline_unmet, *self.failed]
        return min((m.event.t_ns for m in marks if m is not None), default=None)

    def life(self, unit: str, incarnation: int) -> Life | None:
        """The life of ``unit`` with that incarnation."""
        return self._by_incarnation.get((unit, incarnation))

    def life_at(self, unit: str, t_ns: int) -> Life | None:
        """The life of ``unit`` that was going on at ``t_ns``."""
        for life in reversed(self.lives.get(unit, [])):
            if life.begin_ns <= t_ns:
                return None if life.ended_by(t_ns) else life
        return None

    def steps(self, unit: str) -> Sequence[Seen[ev.Step]]:
        """Every inner step of ``unit``, life after life."""
        found: list[Seen[ev.Step]] | None = self.memo.get(("steps", unit))
        if found is None:
            found = [s for life in self.lives.get(unit, ()) for s in life.steps]
            self.memo["steps", unit] = found
        return found

    def steps_between(self, unit: str, since_ns: int, until_ns: int) -> Sequence[Seen[ev.Step]]:
        """At least those steps of ``unit`` that end at or after ``since_ns`` and begin before
        ``until_ns``; where a journal is out of order, all of them."""
        steps = self.steps(unit)
        times = self.memo.get(("times", unit))
        if times is None:
            begins = [s.event.began_at_ns for s in steps]
            ends = [s.event.t_ns for s in steps]
            ordered = all(map(le, begins, begins[1:])) and all(map(le, ends, ends[1:]))
            times = self.memo["times", unit] = (begins, ends) if ordered else ()
        if not times:
            return steps
        return steps[bisect_left(times[1], since_ns) : bisect_left(times[0], until_ns)]

    def noticed(self, unit: str, after_ns: int) -> Seen[ev.Event] | None:
        """The first event at or after ``after_ns`` in which another unit acted on ``unit``'s
        absence: it gave the link up, or merged without it because of the link."""
        found = self._notices.get(unit, [])
        at = bisect_right(found, after_ns - 1, key=lambda s: s.event.t_ns)
        return found[at] if at < len(found) else None

    @property
    def seam(self) -> Seen[ev.Resumed] | None:
        """What the syncer goes on from; None for a run that began anew."""
        return next((s for s in self.resumed if s.event.unit in self.syncers), None)

    @property
    def mergers(self) -> set[str]:
        """Units that committed merges."""
        found: set[str] | None = self.memo.get("mergers")
        if found is None:
            found = self.memo["mergers"] = {m.event.unit for m in self.merges}
        return found

    def index_notices(self) -> None:
        """Build the index behind :meth:`noticed`; called once by the fold."""
        index: dict[str, list[Seen[Any]]] = {}
        for link in self.links:
            if isinstance(link.event, ev.LinkDown):
                index.setdefault(link.event.peer, []).append(link)
        for merge in self.merges:
            for unit, why in merge.event.excluded.items():
                if "connect" in why or "link" in why or "gone" in why:
                    index.setdefault(unit, []).append(merge)
        for found in index.values():
            found.sort(key=lambda s: (s.event.t_ns, s.line))
        self._notices.clear()
        self._notices.update(index)


def read_history(run_dir: Path) -> History:
    """The history of the run in ``run_dir`` (a run directory or a journal file).

    Raises ``harness.errors.JournalError`` when there is no journal or it holds no event.
    """
    path = run_dir / JOURNAL if run_dir.is_dir() else run_dir
    history = fold(read_journal(path))
    _read_replay(history, path)
    return history


def _read_replay(history: History, journal: Path) -> None:
    """Take in what a replay left beside the journal."""
    path = journal.with_name(REPLAY)
    if path.is_file():
        found = [e for e in read_journal(path).events if isinstance(e, ev.Replayed)]
        if found:
            history.replayed = found[-1]
            digest = hashlib.sha256(journal.read_bytes()).hexdigest()
            history.replayed_other = digest != found[-1].journal


def fold(journal: JournalText) -> History:
    """Fold events, in any order that the journal has them, into a history."""
    lines = journal.lines or tuple(range(1, len(journal.events) + 1))
    known: list[Seen[ev.Event]] = []
    unknown: dict[str, int] = {}
    for line, event in zip(lines, journal.events, strict=True):
        if isinstance(event, ev.Unknown):
            unknown[event.kind] = unknown.get(event.kind, 0) + 1
        else:
            known.append(Seen(line, event))
    known = _with_lost_merges(known)
    known.sort(key=attrgetter("event.t_ns", "line"))
    run = next((s.event for s in known if isinstance(s.event, ev.RunStarted)), None)
    found = damage(journal)
    if run is None:
        run = _assumed(known)
    history = History(
        run=run,
        units={u.name: u for u in run.units},
        lives={u.name: [] for u in run.units},
        faults=[],
        events=len(journal.events),
        unknown=unknown,
        damage=tuple(found),
    )
    folding = _Fold(history)
    for item in known:
        folding.take(item)
    folding.finish()
    if history.cut:
        found.insert(
            0,
            f"the journal ends after line {lines[-1]} without its last line: the run was cut short",
        )
    history.problems = tuple(found)
    return history


def _with_lost_merges(known: list[Seen[ev.Event]]) -> list[Seen[ev.Event]]:
    """The merge that a restarted syncer repeats stands in for its lost line, and only for that."""
    if ev.LastMerged not in {type(seen.event) for seen in known}:
        return known
    told = {(s.event.fragment, s.event.version) for s in known if isinstance(s.event, ev.Merged)}
    out: list[Seen[ev.Event]] = []
    for seen in known:
        event = seen.event
        if not isinstance(event, ev.LastMerged):
            out.append(seen)
        elif (event.fragment, event.version) not in told and event.t_ns >= event.ago_ns:
            told.add((event.fragment, event.version))
            out.append(Seen(seen.line, event.merged()))
    return out


def _assumed(known: list[Seen[ev.Event]]) -> ev.RunStarted:
    """A stand-in first line, from what the other lines mention."""
    names: dict[str, str] = {}
    for item in known:
        if isinstance(item.event, ev.UnitStarted):
            names[item.event.unit] = item.event.role
    units = tuple(ev.UnitInfo(name=n, role=r) for n, r in sorted(names.items()))
    return ev.RunStarted(
        t_ns=0,
        schema=1,
        run="unknown",
        experiment="unknown",
        seed=0,
        runtime="unknown",
        target="unknown",
        proxy="unknown",
        units=units,
        spec={},
        params={},
    )


class _Fold:
    """Takes events in order of time. One small method per kind, one table."""

    def __init__(self, history: History) -> None:
        self.h = history
        self.windows: dict[tuple[str, str], FaultWindow] = {}
        self.by_incarnation: dict[tuple[str, int], Life] = {}
        self.table: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.SteadyState: self._steady,
            ev.BaselineUnmet: lambda s: setattr(self.h, "baseline_unmet", s),
            ev.WindowEnded: lambda s: setattr(self.h, "window_ended", s),
            ev.TailEnded: lambda s: setattr(self.h, "tail_ended", s),
            ev.ResidueFound: lambda s: setattr(self.h, "residue", s),
            ev.RunEnded: lambda s: setattr(self.h, "ended", s),
            ev.HarnessFailed: self.h.failed.append,
            ev.FaultPlanned: self._planned,
            ev.FaultAsked: self._asked,
            ev.FaultExecuted: self._executed,
            ev.FaultSkipped: self._skipped,
            ev.FaultEnded: self._fault_ended,
            ev.UnitSpawned: self._spawned,
            ev.UnitStarted: self._started,
            ev.UnitExited: self._exited,
            ev.UnitReady: self._ready,
            ev.UnitEnded: self._unit_ended,
            ev.Joined: self._joined,
            ev.Step: lambda s: self._of(s).steps.append(s),
            ev.Waited: lambda s: self._of(s).waited.append(s),
            ev.Adopted: lambda s: self._of(s).adopted.append(s),
            ev.Merged: self._merged,
            ev.RolledBack: self._rolled_back,
            ev.Checkpointed: self._checkpointed,
            ev.SnapshotComplete: self._snapshot_complete,
            ev.Resumed: self._resumed,
            ev.Evaluated: self._evaluated,
            ev.ControlMeasured: lambda s: setattr(self.h, "control", s),
            ev.UpdateRefused: self._refused,
            ev.WorldFormed: self._world_formed,
            ev.WorldEnded: self._world_ended,
            ev.LinkUp: self._link,
            ev.LinkDown: self._link,
            ev.Heard: self._heard,
            ev.UnitNote: self._noted,
            ev.ProxyChanged: self.h.notes.append,
        }

    def take(self, seen: Seen[ev.Event]) -> None:
        event = seen.event
        kind = type(event)
        handler = self.table.get(kind)
        if handler is not None:
            handler(seen)
        if event.t_ns > self.h.last_ns and kind not in _TEARDOWN:
            self.h.last_ns = event.t_ns

    def finish(self) -> None:
        if self.h.ended is None:
            # A cut journal has no teardown: its last line is the last sign of the run.
            tails = [lf.last_ns for lives in self.h.lives.values() for lf in lives]
            self.h.last_ns = max([self.h.last_ns, *tails])
        for lives in self.h.lives.values():
            for life, later in zip_longest(lives, lives[1:]):
                life.steps.sort(key=lambda s: (s.event.step, s.line))
                if life.exit is not None:
                    life.ended_ns = life.exit.event.t_ns
                elif later is not None:
                    life.ended_ns = min(life.last_ns, later.begin_ns)
                if life.incarnation is not None:
                    self.h._by_incarnation.setdefault((life.unit, life.incarnation), life)
        self.h.index_notices()

    # --- the run and its faults ---

    def _steady(self, s: Seen[ev.SteadyState]) -> None:
        if self.h.steady is None:
            self.h.steady = s

    def _window(self, s: Seen[Any]) -> FaultWindow:
        key = (s.event.fault, s.event.unit)
        window = self.windows.get(key)
        if window is None:
            window = FaultWindow(fault=s.event.fault, kind=s.event.kind, unit=s.event.unit)
            self.windows[key] = window
            self.h.faults.append(window)
        window.lines.append(s.line)
        return window

    def _planned(self, s: Seen[ev.FaultPlanned]) -> None:
        window = self._window(s)
        window.planned_ns = s.event.planned_at_ns
        window.for_ns = s.event.for_ns
        window.params = dict(s.event.params)

    def _asked(self, s: Seen[ev.FaultAsked]) -> None:
        window = self._window(s)
        if window.asked_ns is None:
            window.asked_ns = s.event.t_ns
        held = {*window.resources, *(hold.resource for hold in s.event.holds)}
        window.resources = tuple(sorted(held))

    def _executed(self, s: Seen[ev.FaultExecuted]) -> None:
        window = self._window(s)
        if window.executed_ns is None:
            window.executed_ns = s.event.t_ns
        window.last_executed_ns = s.event.t_ns

    def _skipped(self, s: Seen[ev.FaultSkipped]) -> None:
        self._window(s).skipped = s.event.why or "no reason given"

    def _fault_ended(self, s: Seen[ev.FaultEnded]) -> None:
        self._window(s).ended_ns = s.event.t_ns

    # --- lives ---

    def _new(self, unit: str, s: Seen[Any]) -> Life:
        life = Life(unit=unit, begin_ns=s.event.t_ns, begin_line=s.line, last_ns=s.event.t_ns)
        self.h.lives.setdefault(unit, []).append(life)
        return life

    def _open(self, unit: str) -> Life | None:
        lives = self.h.lives.get(unit)
        return lives[-1] if lives and lives[-1].exit is None else None

    def _of(self, s: Seen[Any]) -> Life:
        """The life that wrote this line; a new one when the journal never saw it begin."""
        event = s.event
        key = (event.unit, event.incarnation)
        life = self.by_incarnation.get(key)
        if life is None:
            life = self._open(event.unit)
            if life is None or life.incarnation is not None:
                life = self._new(event.unit, s)
            life.incarnation = event.incarnation
            self.by_incarnation[key] = life
        if event.t_ns > life.last_ns:
            life.last_ns = event.t_ns
        return life

    def _spawned(self, s: Seen[ev.UnitSpawned]) -> None:
        life = self._open(s.event.unit)
        # An engine may tell of a start after the unit's own first line has arrived.
        if life is None or life.spawned_ns is not None or life.steps:
            life = self._new(s.event.unit, s)
        life.spawned_ns = min(s.event.t_ns, life.begin_ns)
        life.by = s.event.by
        life.pid = s.event.pid

    def _started(self, s: Seen[ev.UnitStarted]) -> None:
        life = self._of(s)
        life.pid = life.pid or s.event.pid

    def _exited(self, s: Seen[ev.UnitExited]) -> None:
        self.h.exits.append(s)
        lives = self.h.lives.get(s.event.unit, [])
        candidates = [lf for lf in lives if lf.exit is None]
        same = [lf for lf in candidates if s.event.pid and lf.pid == s.event.pid]
        chosen = same or candidates[-1:]
        if chosen:
            chosen[-1].exit = s
            chosen[-1].last_ns = max(chosen[-1].last_ns, s.event.t_ns)

    def _ready(self, s: Seen[ev.UnitReady]) -> None:
        life = self._of(s)
        life.ready_ns = s.event.t_ns
        life.import_ns, life.compile_ns = s.event.import_ns, s.event.compile_ns

    def _unit_ended(self, s: Seen[ev.UnitEnded]) -> None:
        self._of(s).asked_to_end = s.event.why

    def _joined(self, s: Seen[ev.Joined]) -> None:
        life = self._of(s)
        if life.joined is None:
            life.joined = s

    # --- protocol ---

    def _merged(self, s: Seen[ev.Merged]) -> None:
        self._of(s)
        self.h.merges.append(s)

    def _rolled_back(self, s: Seen[ev.RolledBack]) -> None:
        self._of(s)
        self.h.rolled_back.append(s)

    def _evaluated(self, s: Seen[ev.Evaluated]) -> None:
        self._of(s)
        self.h.evaluated.append(s)

    def _checkpointed(self, s: Seen[ev.Checkpointed]) -> None:
        self._of(s)
        self.h.checkpointed.append(s)

    def _snapshot_complete(self, s: Seen[ev.SnapshotComplete]) -> None:
        self._of(s)
        self.h.snapshots.append(s)

    def _resumed(self, s: Seen[ev.Resumed]) -> None:
        self._of(s).resumed = s
        self.h.resumed.append(s)

    def _refused(self, s: Seen[ev.UpdateRefused]) -> None:
        self._of(s)
        self.h.refused.append(s)

    def _world_formed(self, s: Seen[ev.WorldFormed]) -> None:
        self._of(s)
        self.h.worlds.append(s)

    def _world_ended(self, s: Seen[ev.WorldEnded]) -> None:
        self._of(s)
        self.h.worlds_ended.append(s)

    def _link(self, s: Seen[ev.LinkUp | ev.LinkDown]) -> None:
        self._of(s)
        self.h.links.append(s)

    def _heard(self, s: Seen[ev.Heard]) -> None:
        self._of(s)
        self.h.heard.append(s)

    def _noted(self, s: Seen[ev.UnitNote]) -> None:
        self._of(s)
        self.h.notes.append(s)
