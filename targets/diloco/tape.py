"""The event tape of a run: what every learner and the syncer did, in the order that decides.

A journal holds all of it. Of one life of a learner: with what state it began, its steps, what it
adopted between which of them, after which step each merged fragment was read, and when its state
was copied for another. Of the syncer: which learners' fragments went into each version with which
weight, and where a life ended. Quorum, grace window, links and clocks decided these things once;
whoever follows the tape (``targets.diloco.replay``) needs none of them (paper section E.1).

A read is placed by what its contribution says: after local step ``step``, before the fragment is
adopted again. That is one place, since adopting a fragment restarts its counters.

Where the journal contradicts itself or lacks a line, the tape ends for the unit or fragment
concerned: ``Tape.problems`` says what is missing, and what builds on it cannot be followed.
A journal that ends early lacks lines at its end, where one unit's lines may have come before
those of another that they build on; anything else that it lacks is a hole all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.events import (
    Adopted,
    AnyEvent,
    Contribution,
    Joined,
    LastMerged,
    Merged,
    Resumed,
    RolledBack,
    RunEnded,
    RunStarted,
    StateCopied,
    Step,
    Tampered,
    UnitNote,
    UnitReady,
)

CUT_NS = 5_000_000_000
"""How long before a cut journal's last event its units may have been behind with their lines."""

# --- what units did -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """A learner began with the syncer's fragments and fresh inner state."""

    line: int
    versions: tuple[int, ...]
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Take:
    """A learner began with the state that a donor pinned at its :class:`Copy` ``copy``."""

    line: int
    copy: int
    donor: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Train:
    """One inner step."""

    line: int
    step: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class Adopt:
    """A learner took a version of a fragment from the syncer."""

    line: int
    fragment: int
    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A learner's fragment as it was merged; ``part`` numbers it among all of the tape's.

    ``update`` is the fault that spoilt it, which the syncer did not refuse; else empty.
    """

    line: int
    part: int
    fragment: int
    update: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A learner's whole state was pinned, for a newcomer or the syncer; ``copy`` numbers it."""

    line: int
    copy: int


@dataclass(frozen=True, slots=True)
class Part:
    """One learner's share in a merge."""

    number: int
    unit: str
    life: int
    step: int
    weight: float
    base_version: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The syncer merged ``parts`` into ``version``."""

    line: int
    clock: int
    fragment: int
    version: int
    digest: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Rollback:
    """A damaged disk: the fragment as it was in version ``content`` became ``version``.

    ``copy`` is the :class:`Copy` of a learner whose parameters it takes instead; else 0.
    """

    line: int
    fragment: int
    version: int
    content: int
    digest: str
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Reopen:
    """A life of the syncer begins: what it knows of usual updates is learnt anew."""

    line: int
    life: int
    content: Mapping[int, int]
    """Fragments that are found in an older version than their newest."""


LearnerOp = Load | Take | Train | Adopt | Answer | Copy
SyncerOp = Commit | Rollback | Reopen
Op = LearnerOp | SyncerOp


@dataclass(frozen=True)
class LearnerLife:
    """One life of one learner; ``data`` is the number that chose its share of the data."""

    unit: str
    life: int
    data: int
    ops: Sequence[LearnerOp]


@dataclass(frozen=True)
class Tape:
    """Everything that a replay follows."""

    run: RunStarted
    learners: Sequence[LearnerLife]
    syncer: Sequence[SyncerOp]
    problems: Sequence[str]
    """What the journal lacks, as sentences; what builds on it is not followed."""
    cut: bool
    """The journal ends early."""
    holes: bool = False
    """Some of ``problems`` are not what a journal lacks that merely ends early."""

    @property
    def merges(self) -> int:
        """Versions that the syncer committed."""
        return sum(isinstance(op, Commit) for op in self.syncer)

    @property
    def steps(self) -> int:
        """Inner steps of all lives."""
        return sum(isinstance(op, Train) for life in self.learners for op in life.ops)


class NoTapeError(ValueError):
    """The lines are of no run that can be replayed; says why."""


def refused(params: Mapping[str, Any], resumed: str = "") -> str:
    """Why no run with these settings can ever be replayed; empty when that does not keep it from
    it. ``resumed`` names the earlier run whose checkpoint it goes on from, if any."""
    if resumed:
        return (
            f"the run goes on from a checkpoint of {resumed}, whose arrays are in no journal; a "
            "run is replayed from its beginning"
        )
    if params.get("error_feedback"):
        return (
            "with error_feedback every push depends on all earlier ones, those that got lost "
            "included, and they are in no journal; run it without error_feedback to replay it"
        )
    return ""


def build(lines: Iterable[tuple[int, AnyEvent]]) -> Tape:
    """The tape in a journal's (line number, event) pairs.

    Raises :class:`NoTapeError` when they do not begin with a run of this target, or when its
    settings make what was sent depend on what is in no journal.
    """
    reading = _Reading()
    for line, event in lines:
        reading.take(line, event)
    run = reading.run
    if run is None:
        raise NoTapeError("the journal lacks its first line: what was run is not known")
    if run.target != "diloco":
        raise NoTapeError(f"target {run.target!r} writes no tape; only diloco does")
    why = refused(run.params, reading.resumed and f"run {reading.resumed}")
    if why:
        raise NoTapeError(why)
    return reading.tape(run)


# --- reading ------------------------------------------------------------------------------------

_Life = tuple[str, int]


@dataclass
class _Lines:
    """What one life of a learner wrote, in its own order."""

    data: int
    events: list[tuple[int, Joined | Step | Adopted | StateCopied | UnitNote]] = field(
        default_factory=list
    )
    answers: dict[int, list[tuple[Answer, Contribution]]] = field(default_factory=dict)
    """By local step."""


class _Reading:
    """One pass over the journal; then everything is put in its place."""

    def __init__(self) -> None:
        self.run: RunStarted | None = None
        self.problems: list[str] = []
        self._holes = False
        self._times_ns: dict[int, int] = {}
        self.resumed = ""
        """The earlier run from whose checkpoint this one goes on."""
        self._ended = False
        self._ready: dict[str, int] = {}
        self._lives: dict[_Life, _Lines] = {}
        self._merges: list[tuple[int, Merged]] = []
        self._told: set[tuple[int, int]] = set()
        self._repeated: list[tuple[int, LastMerged]] = []
        self._rollbacks: list[tuple[int, RolledBack]] = []
        self._spoilt: dict[tuple[str, int, int, int], list[Tampered]] = {}
        self._parts = 0

    def take(self, line: int, event: AnyEvent) -> None:
        self._times_ns[line] = event.t_ns
        match event:
            case RunStarted():
                self.run = self.run or event
            case UnitReady(unit=unit):
                self._ready[unit] = self._ready.get(unit, 0) + 1
            case Joined() | Step() | Adopted() | StateCopied():
                self._of(event.unit, event.incarnation).events.append((line, event))
            case Merged():
                self._told.add((event.fragment, event.version))
                self._merges.append((line, event))
            case LastMerged():
                self._repeated.append((line, event))
            case RolledBack():
                self._rollbacks.append((line, event))
            case Tampered():
                key = (event.unit, event.incarnation, event.fragment, event.step)
                self._spoilt.setdefault(key, []).append(event)
            case UnitNote(what="rescue"):  # a learner hands its fragments over
                self._of(event.unit, event.incarnation).events.append((line, event))
            case Resumed(run=earlier):
                self.resumed = earlier
            case RunEnded():
                self._ended = True

    def _of(self, unit: str, life: int) -> _Lines:
        found = self._lives.get((unit, life))
        if found is None:
            # A simulated life counts once it has a worker, which one killed before has not.
            simulated = self.run is not None and self.run.runtime == "simulated"
            data = self._ready.get(unit, life) if simulated else life
            found = self._lives[unit, life] = _Lines(data)
        return found

    def tape(self, run: RunStarted) -> Tape:
        for line, again in self._repeated:
            if (again.fragment, again.version) not in self._told:
                self._told.add((again.fragment, again.version))
                self._merges.append((line, again.merged()))
        self._merges.sort(key=lambda m: m[0])
        syncer = self._syncer()
        copies = self._copies()
        given = {*copies.values(), *(op.copy for op in syncer if isinstance(op, Rollback))}
        known = {(op.fragment, op.version) for op in syncer if not isinstance(op, Reopen)}
        learners = [
            LearnerLife(
                unit, life, lines.data, self._learner(unit, life, lines, copies, given, known)
            )
            for (unit, life), lines in self._lives.items()
            if unit in self._learners(run)
        ]
        problems = tuple(self.problems)
        return Tape(run, learners, syncer, problems, not self._ended, self._holes)

    def _problem(self, line: int, text: str, *, hole: bool) -> None:
        """``hole``: what lacks cannot be what was still to come when the journal was cut."""
        self.problems.append(text)
        last_ns = max(self._times_ns.values())
        self._holes |= hole or self._times_ns[line] < last_ns - CUT_NS

    # --- the syncer -------------------------------------------------------------------------

    def _syncer(self) -> list[SyncerOp]:
        events: list[tuple[int, Merged | RolledBack]] = [*self._merges, *self._rollbacks]
        # A repeated merge stands in a later life's lines; it belongs to the end of its own.
        events.sort(key=lambda e: (e[1].incarnation, e[0]))
        out: list[SyncerOp] = []
        newest: dict[int, int] = {}
        lost: set[int] = set()
        life = events[0][1].incarnation if events else 0
        for line, event in events:
            if event.incarnation != life:
                life = event.incarnation
                out.append(Reopen(line, life, self._found_older(life)))
            p = event.fragment
            if p in lost:
                continue
            if not 0 <= p < self._fragments:
                lost.add(p)
                self._problem(line, f"line {line} speaks of fragment {p}: {self._has()}", hole=True)
                continue
            if isinstance(event, RolledBack):
                copy = self._handed(event)
                if event.donor and not copy:
                    lost.add(p)
                    self._problem(
                        line,
                        f"line {line} takes fragment {p} from {event.donor}, which does not say "
                        "when it handed it over",
                        hole=False,
                    )
                    continue
                content = _content(event)
                out.append(Rollback(line, p, event.version, content, event.digest, copy))
            elif event.version != newest.get(p, 0) + 1:
                lost.add(p)
                told = _leap(line, p, newest.get(p, 0), event.version)
                self._problem(line, told, hole=True)
                continue
            else:
                out.append(self._commit(line, event))
            newest[p] = event.version
        return out

    def _handed(self, back: RolledBack) -> int:
        """Line of the copy that a learner handed to the syncer; 0 where there is none."""
        found = [
            (event.t_ns, line)
            for (unit, _), lines in self._lives.items()
            if unit == back.donor
            for line, event in lines.events
            if isinstance(event, UnitNote) and event.t_ns <= back.t_ns
        ]
        return max(found)[1] if found else 0

    @property
    def _fragments(self) -> int:
        assert self.run is not None
        return len(self.run.fragments)

    def _has(self) -> str:
        return f"the run has {self._fragments}"

    @staticmethod
    def _learners(run: RunStarted) -> set[str]:
        return {unit.name for unit in run.units if unit.role == "learner"}

    def _found_older(self, life: int) -> dict[int, int]:
        return {
            back.fragment: _content(back) for _, back in self._rollbacks if back.incarnation == life
        }

    def _commit(self, line: int, merged: Merged) -> Commit:
        parts = []
        for c in merged.contributions:
            number, self._parts = self._parts, self._parts + 1
            parts.append(Part(number, c.unit, c.incarnation, c.step, c.weight, c.base_version))
            update = self._update(merged, c)
            lines = self._lives.get((c.unit, c.incarnation))
            if lines is None:
                self._problem(
                    line,
                    f"line {line} merges a fragment of {c.unit}, life {c.incarnation}, of which "
                    "there is no other line",
                    hole=False,
                )
                continue
            answer = Answer(line, number, merged.fragment, update)
            lines.answers.setdefault(c.step, []).append((answer, c))
        return Commit(
            line, merged.clock, merged.fragment, merged.version, merged.digest, tuple(parts)
        )

    def _update(self, merged: Merged, c: Contribution) -> str:
        told = self._spoilt.get((c.unit, c.incarnation, merged.fragment, c.step), [])
        return next((t.update for t in reversed(told) if t.t_ns <= merged.t_ns), "")

    # --- learners ---------------------------------------------------------------------------

    def _copies(self) -> dict[int, int]:
        """Line of a newcomer's Joined to the line of the donor's copy that it was given."""
        asked: dict[tuple[str, str, int], list[tuple[int, StateCopied]]] = {}
        for lines in self._lives.values():
            for line, event in lines.events:
                if isinstance(event, StateCopied):
                    key = (event.unit, event.peer, event.peer_incarnation)
                    asked.setdefault(key, []).append((line, event))
        found = {}
        for (unit, life), lines in self._lives.items():
            for line, event in lines.events:
                if isinstance(event, Joined) and event.inner != "fresh":
                    given = asked.get((event.inner, unit, life), [])
                    before = [at for at, copy in given if copy.t_ns <= event.t_ns]
                    if before:
                        found[line] = before[-1]
        return found

    def _learner(
        self,
        unit: str,
        life: int,
        lines: _Lines,
        copies: Mapping[int, int],
        given: set[int],
        known: set[tuple[int, int]],
    ) -> list[LearnerOp]:
        assert self.run is not None
        following = _Following(f"{unit} (life {life})", lines, copies, known, self._fragments)
        for line, event in lines.events:
            if isinstance(event, StateCopied | UnitNote) and line not in given:
                continue
            following.take(line, event)
            if following.problem:
                break
        else:
            following.leftover()
        if following.problem:
            self._problem(following.line, following.problem, hole=following.hole)
        return following.ops


def _leap(line: int, fragment: int, before: int, after: int) -> str:
    if after <= before:
        return f"line {line} commits version {after} of fragment {fragment} after version {before}"
    return (
        f"fragment {fragment} goes from version {before} to {after} in line {line}: what came "
        "between them was not told"
    )


def _content(back: RolledBack) -> int:
    """The version whose arrays a rolled back fragment holds (see ``Mending.restored``)."""
    if back.donor:
        return 0  # any that is always at hand
    return back.before - 1 if back.version == back.before + 1 else back.before


class _Following:
    """Walks one life's lines and checks each against what came before it."""

    def __init__(
        self,
        who: str,
        lines: _Lines,
        copies: Mapping[int, int],
        known: set[tuple[int, int]],
        fragments: int,
    ) -> None:
        self.ops: list[LearnerOp] = []
        self.problem = ""
        """Why the life cannot be followed any further."""
        self.line = 0
        """Where that shows."""
        self.hole = False
        """It is not because the journal ends."""
        self._who = who
        self._answers = dict(lines.answers)
        self._copies = copies
        self._known = known
        self._fragments = fragments
        self._joined = False
        self._step = 0
        self._versions: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._from = 0
        """The local step at which the life joined."""

    def take(self, line: int, event: Joined | Step | Adopted | StateCopied | UnitNote) -> None:
        if isinstance(event, Joined):
            self._join(line, event)
        elif not self._joined:
            self._stop(line, "no line says with what state it began")
        elif isinstance(event, Step):
            self._train(line, event)
        elif isinstance(event, UnitNote):
            self.ops.append(Copy(line, line))
        elif event.step != self._step:
            self._stop(line, f"it speaks of local step {event.step} after step {self._step}")
        elif isinstance(event, StateCopied):
            self.ops.append(Copy(line, line))
        else:
            self._adopt(line, event)

    def _stop(self, line: int, why: str, *, hole: bool = True) -> None:
        self.line, self.hole = line, hole
        self.problem = f"{self._who} cannot be followed beyond line {line}: {why}"

    def _join(self, line: int, event: Joined) -> None:
        versions = event.versions
        if not versions and event.source == "initial":
            versions = (0,) * self._fragments
        if not versions:
            self._stop(line, "the journal does not say which versions its state holds")
        elif len(versions) != self._fragments:
            self._stop(line, f"its state holds {len(versions)} fragments of {self._fragments}")
            return
        elif event.inner == "fresh":
            if lacking := [pv for pv in enumerate(versions) if pv[1] and pv not in self._known]:
                self._unknown(line, *lacking[0])
                return
            self.ops.append(Load(line, versions, event.digests))
        elif line not in self._copies:
            why = f"{event.inner}, whose state it has, does not say when it was copied"
            self._stop(line, why, hole=False)
        else:
            self.ops.append(Take(line, self._copies[line], event.inner, event.digests))
        self._joined = True
        self._step = self._from = event.step
        self._versions = dict(enumerate(versions))
        self._since = {}

    def _train(self, line: int, event: Step) -> None:
        if event.step != self._step + 1:
            self._stop(line, f"step {event.step} comes after step {self._step}")
            return
        self._step = event.step
        self.ops.append(Train(line, event.step, event.loss))
        for answer, c in self._answers.pop(event.step, ()):
            version = self._versions.get(answer.fragment, 0)
            since = self._since.get(answer.fragment, self._from)
            if (c.base_version, c.since_step) != (version, since):
                self._stop(
                    answer.line,
                    f"the merge took steps {c.since_step} to {c.step} upon version "
                    f"{c.base_version} of fragment {answer.fragment}, but its own lines say "
                    f"version {version} since step {since}",
                )
                return
            self.ops.append(answer)

    def _adopt(self, line: int, event: Adopted) -> None:
        if (event.fragment, event.version) not in self._known:
            self._unknown(line, event.fragment, event.version)
            return
        self._versions[event.fragment] = event.version
        self._since[event.fragment] = event.step
        self.ops.append(Adopt(line, event.fragment, event.version, event.step))

    def _unknown(self, line: int, fragment: int, version: int) -> None:
        why = f"no line tells of version {version} of fragment {fragment}, which it has"
        self._stop(line, why, hole=False)

    def leftover(self) -> None:
        """Merges of steps that the life never told of."""
        for step, answers in sorted(self._answers.items()):
            line = min(answer.line for answer, _ in answers)
            self._stop(line, f"its step {step}, which was merged, is in no line", hole=False)
            return
