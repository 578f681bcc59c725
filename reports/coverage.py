"""Which steps of which life are inside merged contributions, as exact sums over step ranges.

A contribution covers the local steps ``since_step`` (excluded) to ``step`` (included) of one life
in one fragment. Questions about ranges of steps are answered with prefix sums, so the cost grows
with the number of contributions and not with steps times fragments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from harness.events import Merged
from reports.history import History
from reports.lives import Life, Seen
from reports.rollbacks import undone_lines

Range = tuple[int, int]
"""(since, step]: local step numbers, the first one excluded."""


def fragment_weights(history: History) -> tuple[int, ...]:
    """Elements in each fragment. Equal weights when only the merges tell of fragments; empty for a
    target that has none."""
    if history.run.fragments:
        return history.run.fragments
    if not history.merges:
        return ()
    return (1,) * (max(m.event.fragment for m in history.merges) + 1)


def union(ranges: Sequence[Range]) -> list[Range]:
    """The same steps as ``ranges``, as sorted ranges that do not overlap."""
    merged: list[Range] = []
    for since, step in sorted(ranges):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], step))
        elif step > since:
            merged.append((since, step))
    return merged


class Sums:
    """Sums of one integer per step over ranges of step numbers."""

    def __init__(self, numbers: Sequence[int], values: Sequence[int]) -> None:
        self._numbers = numbers
        self._prefix = [0, *accumulate(values)]

    @property
    def total(self) -> int:
        """Sum over all steps."""
        return self._prefix[-1]

    def between(self, since: int, step: int) -> int:
        """Sum over the steps in (since, step]."""
        if step <= since:
            return 0
        high = bisect_right(self._numbers, step)
        return self._prefix[high] - self._prefix[bisect_right(self._numbers, since)]

    def over(self, ranges: Sequence[Range]) -> int:
        """Sum over several ranges, which must not overlap."""
        return sum(self.between(since, step) for since, step in ranges)


@dataclass
class Coverage:
    """Merged ranges per life and fragment, from merges committed until some instant."""

    ranges: dict[tuple[str, int], dict[int, list[Range]]] = field(default_factory=dict)

    def of(self, life: Life) -> dict[int, list[Range]]:
        """Fragment to merged ranges of ``life``, disjoint and sorted."""
        if life.incarnation is None:
            return {}
        return self.ranges.get((life.unit, life.incarnation), {})

    def touched(self, life: Life) -> list[bool]:
        """For each step of ``life``, whether any fragment of it was merged."""
        everything = union([r for ranges in self.of(life).values() for r in ranges])
        flags = [False] * len(life.steps)
        for since, step in everything:
            low, high = bisect_right(life.numbers, since), bisect_right(life.numbers, step)
            flags[low:high] = [True] * (high - low)
        return flags


def coverage(history: History, until_ns: int | None = None) -> Coverage:
    """The coverage by merges committed until ``until_ns`` (None: by all of them), without those
    that a syncer took back by then."""
    last = max((s[-1].event.t_ns for s in (history.merges, history.rolled_back) if s), default=None)
    if until_ns is not None and last is not None and last <= until_ns:
        until_ns = None  # both are in order of time, so these are all of them
    known: Coverage | None = history.memo.get(("coverage", until_ns))
    if known is None:
        undone = undone_lines(history, until_ns)
        stands = [m for m in _until(history, until_ns) if m.line not in undone]
        known = history.memo["coverage", until_ns] = _coverage(stands)
    return known


def undone_coverage(history: History, until_ns: int | None = None) -> Coverage:
    """The coverage by merges that a syncer took back until ``until_ns`` (None: ever)."""
    known: Coverage | None = history.memo.get(("undone", until_ns))
    if known is None:
        undone = undone_lines(history, until_ns)
        gone = [m for m in history.merges if m.line in undone]
        known = history.memo["undone", until_ns] = _coverage(gone)
    return known


def _until(history: History, until_ns: int | None) -> Iterator[Seen[Merged]]:
    for merge in history.merges:
        if until_ns is not None and merge.event.t_ns > until_ns:
            return
        yield merge


def _coverage(merges: Iterable[Seen[Merged]]) -> Coverage:
    raw: dict[tuple[str, int], dict[int, list[Range]]] = {}
    for merge in merges:
        for part in merge.event.contributions:
            life = raw.setdefault((part.unit, part.incarnation), {})
            life.setdefault(merge.event.fragment, []).append((part.since_step, part.step))
    return Coverage({k: {f: union(r) for f, r in v.items()} for k, v in raw.items()})
