"""The ledger: every instant of every learner under exactly one label, in integer nanoseconds.

Labels (the window runs from steady state to the end of the quiet tail):

* ``useful``: in an inner step that counts, up to the step's nominal time.
* ``slowed``: a step's time beyond its nominal time; a gap between steps under a lasting fault.
* ``waiting``: blocked on a barrier or a merge.
* ``lost``: steps that a life still held when it died, with no fragment of them merged, and the step
  that was running; steps that were only in merges which a syncer with a damaged disk took back;
  for a target without fragments, steps that a later life computed again or that
  a new world went back behind. Steps that were overwritten unmerged are useful here, in a life that
  goes on as in one that dies later: those show in merged goodput.
* ``down_detect``: dead, and no other unit has acted on it yet; ``down_restart``: dead until the
  process runs again. Where no other unit noticed before the restart, all of it is down_restart:
  the supervisor acted on its own.
* ``down_init``: the process runs, imports and compiles; ``down_recover``: until its first step.
* ``other``: alive and none of the above. At most 2 % is expected.

Time in which a learner is meant to be away (an ``absent`` fault, from its execution to its end) is
not allocated: it has no label of these and enters no sum. Coming back is: a learner that joins is
allocated from the instant at which it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from harness.events import Step
from reports.coverage import Coverage, coverage, fragment_weights, undone_coverage
from reports.history import History
from reports.lives import FaultWindow, Life, Seen

LABELS = (
    "useful",
    "lost",
    "waiting",
    "slowed",
    "down_detect",
    "down_restart",
    "down_init",
    "down_recover",
    "other",
)
"""All labels, in the order in which reports show them."""

ABSENT = "absent"
"""What segments of time that is not allocated are called."""

OTHER_MAX = 0.02
"""Share of unattributed time above which a report says so."""

_SETTLE_NS = 1_000_000_000
"""How long after a fault's end a gap between steps is still put down to it."""

_BRIDGE_NS = 50_000_000
"""A pause between two steps up to this (or one nominal step) is no stall."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One learner, one label, from ``start_ns`` to ``end_ns``."""

    start_ns: int
    end_ns: int
    label: str


@dataclass(eq=False)
class LearnerLedger:
    """One learner's time in the window. ``segments`` are in order and leave no gap."""

    unit: str
    segments: list[Segment] = field(default_factory=list)
    useful: list[tuple[Life, list[int]]] = field(default_factory=list)
    """Useful nanoseconds in the window of each step of each life, parallel to its steps."""
    stepping: list[tuple[int, int]] = field(default_factory=list)
    """Spans in which this learner was stepping, for uptime."""

    def totals(self) -> dict[str, int]:
        """Nanoseconds by label, every label present."""
        sums = dict.fromkeys((*LABELS, ABSENT), 0)
        for segment in self.segments:
            sums[segment.label] += segment.end_ns - segment.start_ns
        del sums[ABSENT]
        return sums

    @property
    def absent_ns(self) -> int:
        """Time in the window that is not allocated."""
        return sum(s.end_ns - s.start_ns for s in self.segments if s.label == ABSENT)


@dataclass(eq=False)
class Ledger:
    """All learners' time."""

    start_ns: int
    end_ns: int
    learners: list[LearnerLedger]
    overruns: int
    paced_steps: int

    @property
    def allocated_ns(self) -> int:
        """A: sum over the learners of the time that the spec allocates them, dead or alive."""
        absent = sum(learner.absent_ns for learner in self.learners)
        return (self.end_ns - self.start_ns) * len(self.learners) - absent

    def totals(self) -> dict[str, int]:
        """Nanoseconds by label over all learners."""
        sums = dict.fromkeys(LABELS, 0)
        for learner in self.learners:
            for label, ns in learner.totals().items():
                sums[label] += ns
        return sums

    def uptime(self) -> tuple[int, int]:
        """(ns with at least one learner stepping, longest ns with none)."""
        up = longest = 0
        cursor = self.start_ns
        for start, end in sorted(s for one in self.learners for s in one.stepping):
            if start > cursor:
                longest = max(longest, start - cursor)
            if end > cursor:
                up += end - max(start, cursor)
                cursor = end
        return up, max(longest, self.end_ns - cursor)


def build_ledger(history: History) -> Ledger:
    """The ledger of a run. Without steady state the window is empty and so is the ledger."""
    start = history.start_ns
    end = history.end_ns if start is not None else 0
    start = end if start is None else start
    every_merge = coverage(history)
    learners = [_learner(history, unit, start, end, every_merge) for unit in history.learners]
    paced = overruns = 0
    for unit in history.learners:
        for seen in history.steps(unit):
            step = seen.event
            if start < step.t_ns <= end and step.nominal_ns > 0:
                paced += 1
                overruns += step.compute_ns > step.nominal_ns
    return Ledger(start, end, learners, overruns, paced)


class _Painter:
    """Appends segments from left to right; whatever is painted first keeps its label."""

    def __init__(
        self, out: LearnerLedger, start_ns: int, end_ns: int, away: list[tuple[int, int]]
    ) -> None:
        self.out = out
        self.cursor = start_ns
        self.end = end_ns
        self.away = away
        """Spans that are not allocated, in order and apart."""

    def put(self, until_ns: int, label: str) -> int:
        """Label everything up to ``until_ns`` but what is not allocated; returns how many
        nanoseconds got the label."""
        if until_ns > self.end:
            until_ns = self.end
        if not self.away:
            return self._paint(until_ns, label)
        painted = 0
        for start, end in self.away:
            if start < until_ns and end > self.cursor:
                painted += self._paint(start, label)
                self._paint(min(end, until_ns), ABSENT)
        return painted + self._paint(until_ns, label)

    def _paint(self, until_ns: int, label: str) -> int:
        if until_ns <= self.cursor:
            return 0
        cursor, self.cursor = self.cursor, until_ns
        segments = self.out.segments
        if segments and segments[-1].label == label:
            segments[-1] = Segment(segments[-1].start_ns, until_ns, label)
        else:
            segments.append(Segment(cursor, until_ns, label))
        return until_ns - cursor


def _learner(
    history: History, unit: str, start_ns: int, end_ns: int, merged: Coverage
) -> LearnerLedger:
    out = LearnerLedger(unit)
    paint = _Painter(out, start_ns, end_ns, _away(history, unit, end_ns))
    holds = [w for w in history.faults if w.unit == unit and w.lasting and w.executed_ns]
    lives = history.lives.get(unit, [])
    died_ns: int | None = None
    for number, life in enumerate(lives):
        _dead(history, unit, paint, died_ns, life.begin_ns)
        thrown = _thrown(history, lives, number, merged, end_ns)
        _alive(paint, life, thrown, holds)
        died_ns = life.ended_ns
    if not lives or died_ns is not None:
        _dead(history, unit, paint, died_ns, end_ns)
    paint.put(end_ns, "other")
    out.stepping = list(_stepping(out, history, start_ns, end_ns))
    return out


def _away(history: History, unit: str, end_ns: int) -> list[tuple[int, int]]:
    """When the unit was meant to be away, as spans in order that do not touch."""
    spans: list[tuple[int, int]] = []
    found = [
        w for w in history.faults if w.unit == unit and w.absence and w.executed_ns is not None
    ]
    for window in sorted(found, key=lambda w: w.executed_ns or 0):
        start, end = window.executed_ns or 0, window.until_ns(end_ns)
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _dead(history: History, unit: str, paint: _Painter, died_ns: int | None, until_ns: int) -> None:
    if died_ns is not None:
        notice = history.noticed(unit, died_ns)
        if notice is not None and notice.event.t_ns < until_ns:
            paint.put(notice.event.t_ns, "down_detect")
    paint.put(until_ns, "down_restart")


def _thrown(
    history: History, lives: list[Life], number: int, merged: Coverage, end_ns: int
) -> list[bool]:
    """For each step of the life, whether its work was thrown away."""
    life = lives[number]
    if history.worlds:
        return _rolled_back(history, life)
    if not life.ended_by(end_ns):
        return _taken_back(history, life, merged)
    if history.merges or history.run.fragments:
        held = _held_after(history, life)
        touched, back = merged.touched(life), _taken_back(history, life, merged)
        steps = zip(life.numbers, touched, back, strict=True)
        return [gone or (n > held and not t) for n, t, gone in steps]
    # Without fragments, work is lost when a later life computes the same step again.
    again = min((n for later in lives[number + 1 :] for n in later.numbers), default=None)
    return [again is not None and n >= again for n in life.numbers]


def _taken_back(history: History, life: Life, merged: Coverage) -> list[bool]:
    """For each step, whether every merge that it was in was taken back by the syncer."""
    if not history.rolled_back:
        return [False] * len(life.steps)
    pairs = zip(undone_coverage(history).touched(life), merged.touched(life), strict=True)
    return [undone and not stands for undone, stands in pairs]


def _rolled_back(history: History, life: Life) -> list[bool]:
    """For each step, whether a world formed after it went on from an earlier one."""
    return [
        any(w.event.t_ns >= s.event.t_ns and w.event.step < s.event.step for w in history.worlds)
        for s in life.steps
    ]


def _held_after(history: History, life: Life) -> int:
    """The local step after which some fragment of the life was never overwritten again."""
    last = dict.fromkeys(range(len(fragment_weights(history))), -1)
    for seen in life.adopted:
        last[seen.event.fragment] = max(last.get(seen.event.fragment, -1), seen.event.step)
    return min(last.values(), default=-1)


def _alive(paint: _Painter, life: Life, thrown: list[bool], holds: list[FaultWindow]) -> None:
    end = paint.end if life.ended_ns is None else life.ended_ns
    first = life.first_step
    first_ns = min(end, first.event.began_at_ns if first else end)
    joined_ns = life.joined.event.t_ns if life.joined else first_ns
    ready_ns = life.ready_ns if life.ready_ns is not None else joined_ns
    paint.put(min(ready_ns, first_ns), "down_init")
    paint.put(first_ns, "down_recover")
    useful = [0] * len(life.steps)
    waits = iter(sorted((w.event.began_at_ns, w.event.t_ns) for w in life.waited))
    wait = next(waits, None)
    for at, seen in enumerate(life.steps):
        step = seen.event
        while wait is not None and wait[0] < step.began_at_ns:
            _gap(paint, wait[0], holds)
            paint.put(wait[1], "waiting")
            wait = next(waits, None)
        _gap(paint, step.began_at_ns, holds)
        if thrown[at]:
            paint.put(min(step.t_ns, end), "lost")
        else:
            useful[at] = paint.put(min(step.t_ns, step.began_at_ns + _nominal(step)), "useful")
            paint.put(step.t_ns, "slowed")
    while wait is not None:
        _gap(paint, wait[0], holds)
        paint.put(wait[1], "waiting")
        wait = next(waits, None)
    # A life that ends at the very instant the window closes was ended by our own teardown.
    if life.ended_ns is not None and life.ended_ns < paint.end:
        paint.put(end, "lost")
    elif life.steps:
        # The step that is running as the window closes counts up to its nominal time.
        paint.put(paint.cursor + life.steps[-1].event.nominal_ns, "useful")
        _gap(paint, paint.end, holds)
    paint.out.useful.append((life, useful))


def _nominal(step: Step) -> int:
    return step.nominal_ns or step.t_ns - step.began_at_ns


def _gap(paint: _Painter, until_ns: int, holds: list[FaultWindow]) -> None:
    """Time between steps: slowed where a lasting fault explains it, else unattributed."""
    until_ns = min(until_ns, paint.end)
    for hold in holds:
        if until_ns <= paint.cursor:
            return
        begin = hold.asked_ns or hold.executed_ns or 0
        over = hold.until_ns(paint.end) + _SETTLE_NS
        if begin < until_ns and over > paint.cursor:
            paint.put(begin, "other")
            paint.put(min(until_ns, over), "slowed")
    paint.put(until_ns, "other")


def _stepping(
    out: LearnerLedger, history: History, start_ns: int, end_ns: int
) -> Iterator[tuple[int, int]]:
    """Spans in which the learner was stepping. A step counts for at most ten times its nominal
    time: a frozen learner is formally in a step but does not step."""
    for life, _ in out.useful:
        reach: int | None = None
        start = 0
        for begin, end, bridge in _spans(life.steps):
            begin, end = max(begin, start_ns), min(end, end_ns)
            if end <= begin:
                continue
            if reach is not None and begin - reach <= bridge:
                reach = max(reach, end)
                continue
            if reach is not None:
                yield start, reach
            start, reach = begin, end
        if reach is not None:
            last = life.steps[-1].event
            running = max(last.nominal_ns, _BRIDGE_NS) if not life.ended_by(end_ns) else 0
            yield start, min(end_ns, reach + running)


def _spans(steps: list[Seen[Step]]) -> Iterator[tuple[int, int, int]]:
    for seen in steps:
        step = seen.event
        length = step.t_ns - step.began_at_ns
        if step.nominal_ns and length > 10 * step.nominal_ns:
            # The end is known to be real progress; the stall lies before it.
            yield step.began_at_ns, step.began_at_ns + step.nominal_ns, step.nominal_ns
            continue
        yield step.began_at_ns, step.t_ns, max(step.nominal_ns, _BRIDGE_NS)
