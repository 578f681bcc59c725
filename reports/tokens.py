"""Where every trained token went: merged, lost or in flight, exactly and per fragment.

A step's tokens enter each fragment on their own. In one fragment they are

* *merged* when the step lies in (since_step, step] of a contribution merged by the window's end;
* *lost* when the fragment was overwritten after that step, or the life that held it ended;
* *in flight* otherwise: held by a living learner and still able to be merged.

``trained = merged + lost + in flight`` holds exactly in every fragment. The figures for a whole
run weigh fragments by their elements and are rounded so that the same identity holds.

What is lost has three causes. Most is *overwritten*: adopting a merge replaces what was trained
since the pull that it was made of, in a run without faults, too. The rest *died* with its learner,
or was *taken back*: merged, and lost with the syncer's disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.coverage import (
    Coverage,
    Sums,
    coverage,
    fragment_weights,
    undone_coverage,
    union,
)
from reports.history import History
from reports.ledger import Ledger
from reports.lives import Life


@dataclass(frozen=True)
class FragmentTokens:
    """Tokens of one fragment; integers."""

    fragment: int
    elements: int
    trained: int
    merged: int
    lost: int
    in_flight: int
    died: int = 0
    """Of ``lost``: held by a life that ended, and not overwritten before."""
    taken_back: int = 0
    """Of ``lost``: in merges that the syncer took back; of those that died, none."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a window; None for the parts when the target has no fragments."""

    trained: int
    merged: int | None
    lost: int | None
    in_flight: int | None
    fragments: tuple[FragmentTokens, ...]
    died: int | None = None
    """Of ``lost``, as in :class:`FragmentTokens`."""
    taken_back: int | None = None
    """Of ``lost``, as in :class:`FragmentTokens`."""


def account(history: History, start_ns: int, end_ns: int) -> Tokens:
    """Account for the tokens of all steps that ended in (start_ns, end_ns]."""
    weights = fragment_weights(history)
    merged, undone = coverage(history, end_ns), undone_coverage(history, end_ns)
    sums = _token_sums(history, start_ns, end_ns)
    rows = tuple(
        _fragment(sums, merged, undone, number, elements, end_ns)
        for number, elements in enumerate(weights)
    )
    trained = sum(total.total for _, total in sums)
    if not rows:
        return Tokens(trained, None, None, None, ())
    parts = _weighted(rows, trained)
    elements = sum(r.elements for r in rows) or 1
    died = min(parts[1], sum(r.elements * r.died for r in rows) // elements)
    back = min(parts[1] - died, sum(r.elements * r.taken_back for r in rows) // elements)
    return Tokens(trained, parts[0], parts[1], parts[2], rows, died, back)


def merged_useful(history: History, ledger: Ledger) -> tuple[int, int] | None:
    """(useful ns weighed by merged elements, elements in total).

    The numerator is the sum over steps of useful nanoseconds times the elements of the fragments
    into which the step's tokens were merged by the window's end; None without fragments.
    """
    weights = fragment_weights(history)
    if not weights:
        return None
    merged = coverage(history, ledger.end_ns)
    weighed = 0
    for learner in ledger.learners:
        for life, useful in learner.useful:
            sums = Sums(life.numbers, useful)
            for fragment, ranges in merged.of(life).items():
                if fragment < len(weights):
                    weighed += weights[fragment] * sums.over(ranges)
    return weighed, sum(weights)


def _token_sums(history: History, start_ns: int, end_ns: int) -> list[tuple[Life, Sums]]:
    found = []
    for unit in history.learners:
        for life in history.lives.get(unit, ()):
            tokens = [
                s.event.tokens if start_ns < s.event.t_ns <= end_ns else 0 for s in life.steps
            ]
            found.append((life, Sums(life.numbers, tokens)))
    return found


def _fragment(
    sums: list[tuple[Life, Sums]],
    merged: Coverage,
    undone: Coverage,
    number: int,
    elements: int,
    end_ns: int,
) -> FragmentTokens:
    trained = into = lost = died = back = 0
    for life, tokens in sums:
        ranges = merged.of(life).get(number, [])
        whole = tokens.total
        heard = tokens.over(ranges)
        gone = lost_through(life, number, end_ns)
        trained += whole
        into += heard
        undid = undone.of(life).get(number, [])
        if undid:
            both = tokens.over(union([*ranges, *undid])) - heard
            back += min(both, _unheard(tokens, ranges, adopted_through(life, number, end_ns)))
        if gone is None:
            lost += whole - heard
            died += whole - heard - _unheard(tokens, ranges, adopted_through(life, number, end_ns))
        else:
            lost += _unheard(tokens, ranges, gone)
    return FragmentTokens(number, elements, trained, into, lost, trained - into - lost, died, back)


def _unheard(tokens: Sums, ranges: list[tuple[int, int]], through: int) -> int:
    """Tokens of the steps up to ``through`` that lie in no merged range."""
    below = [(since, min(step, through)) for since, step in ranges if since < through]
    return tokens.between(-1, through) - tokens.over(union(below))


def lost_through(life: Life, fragment: int, end_ns: int) -> int | None:
    """The last local step whose tokens for ``fragment`` can no longer be merged by ``end_ns``;
    None when that is all of them because the life is over."""
    return None if life.ended_by(end_ns) else adopted_through(life, fragment, end_ns)


def adopted_through(life: Life, fragment: int, end_ns: int) -> int:
    """The local step after which the life last adopted ``fragment`` by ``end_ns``; -1: never."""
    steps = [a.event.step for a in life.adoptions(fragment) if a.event.t_ns <= end_ns]
    return max(steps, default=-1)


def _weighted(rows: tuple[FragmentTokens, ...], trained: int) -> tuple[int, int, int]:
    """Element-weighted means of (merged, lost, in flight), rounded so that they sum exactly."""
    elements = sum(r.elements for r in rows) or 1
    exact = [
        sum(r.elements * getattr(r, part) for r in rows) for part in ("merged", "lost", "in_flight")
    ]
    whole = [value // elements for value in exact]
    # Largest remainder: hand out what rounding down left over, ties in the order of the parts.
    order = sorted(range(3), key=lambda i: (-(exact[i] % elements), i))
    for i in order[: trained - sum(whole)]:
        whole[i] += 1
    return whole[0], whole[1], whole[2]
