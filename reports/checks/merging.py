"""Claims about merges: tokens counted once, quorum, staleness, weights, finite numbers."""

from __future__ import annotations

from math import isclose

from harness.events import Contribution, Merged
from reports.checks.base import (
    Evidence,
    Finding,
    broken,
    holds,
    not_asked,
    unknown,
    verdict_of,
)
from reports.checks.quality import evaluations_true
from reports.coverage import Sums
from reports.history import History
from reports.lives import Life, Seen

Violations = list[tuple[str, tuple[int, ...]]]

FIRST_LIFE = 1
"""The incarnation that goes on from a checkpoint."""

DAMAGED = ("checksum", "truncated", "non-finite", "outlier")
"""First words of refusals of updates whose content is wrong (harness.events.UpdateRefused)."""


def tokens_once(e: Evidence) -> Finding:
    """Check 1: a step's tokens enter a fragment at most once, and all are accounted for."""
    if not e.history.merges:
        return _no_merges(e.history)
    found, unseen = _contributions(e.history)
    found += _double(e.history)
    found += evaluations_true(e.history)
    for row in e.tokens.fragments:
        parts = (row.merged, row.lost, row.in_flight)
        if row.trained != sum(parts) or min(parts) < 0:
            found.append((f"fragment {row.fragment}: tokens do not add up: {row}", ()))
    count = sum(len(m.event.contributions) for m in e.history.merges)
    good = f"{count} contributions in {len(e.history.merges)} merges; no step counted twice"
    if unseen:
        good += f"; {unseen} reach back before the journal and were compared by range only"
    return verdict_of(found, holds(good, e.history.merges[-1].line))


def _contributions(history: History) -> tuple[Violations, int]:
    """Each contribution's counters against the steps that the learner itself journalled."""
    found: Violations = []
    unseen = 0
    sums: dict[int, Sums] = {}
    for merge in history.merges:
        for part in merge.event.contributions:
            life = history.life(part.unit, part.incarnation)
            if life is None or not life.steps:
                if history.cut or part.unit not in history.lives:
                    unseen += 1
                else:
                    found.append(
                        (f"{_named(merge, part)}: that life trained no step", (merge.line,))
                    )
                continue
            if part.c_steps != part.step - part.since_step:
                text = f"c_steps is {part.c_steps} for steps {part.since_step} to {part.step}"
                found.append((f"{_named(merge, part)}: {text}", (merge.line,)))
            reach = _beyond(history, life, part, merge.event.fragment)
            if reach:
                found.append((f"{_named(merge, part)}: {reach}", (merge.line,)))
                continue
            if part.since_step < life.numbers[0] - 1 or part.step > life.numbers[-1]:
                unseen += 1
                continue
            tokens = sums.get(id(life))
            if tokens is None:
                tokens = sums[id(life)] = Sums(life.numbers, [s.event.tokens for s in life.steps])
            trained = tokens.between(part.since_step, part.step)
            if trained != part.c_tokens:
                text = f"c_tokens is {part.c_tokens} but {trained} were trained in those steps"
                found.append((f"{_named(merge, part)}: {text}", (merge.line,)))
    return found, unseen


def _beyond(history: History, life: Life, part: Contribution, fragment: int) -> str:
    """What is wrong with steps outside those that the life journalled; empty where the journal may
    simply not hold them: a life that began before it, or one cut off in its middle."""
    first, last = life.numbers[0], life.numbers[-1]
    if part.step > last and not history.cut:
        return f"counts step {part.step}, but the last one trained is {last}"
    begun = life.joined.event.step if life.joined is not None else 0
    if life.resumed is not None:  # its counters go on, too
        begun = life.resumed.event.since[fragment]
    if part.since_step < begun:
        return f"counts from step {part.since_step}, but its life began after {first - 1}"
    return ""


def _double(history: History) -> Violations:
    """Contributions of one life to one fragment must not overlap."""
    found: Violations = []
    spans: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}
    if history.seam is not None:  # what was merged before the checkpoint counts as well
        for unit, through in history.seam.event.merged_through.items():
            for fragment, step in enumerate(through):
                spans[unit, FIRST_LIFE, fragment] = [(0, step, history.seam.line)]
    for merge in history.merges:
        for part in merge.event.contributions:
            key = (part.unit, part.incarnation, merge.event.fragment)
            spans.setdefault(key, []).append((part.since_step, part.step, merge.line))
    for (unit, _, fragment), rows in spans.items():
        rows.sort()
        reach, reach_line = rows[0][1], rows[0][2]
        for since, step, line in rows[1:]:
            if since < reach:
                text = f"steps {since + 1} to {min(step, reach)} of {unit} entered"
                found.append((f"{text} fragment {fragment} twice", (reach_line, line)))
            if step > reach:
                reach, reach_line = step, line
    return found


def quorum_kept(e: Evidence) -> Finding:
    """Check 2: enough distinct live contributors, none too old, weighed as the paper says."""
    history = e.history
    if not history.merges:
        return _no_merges(history)
    found: Violations = []
    limit = stale_limit(history)
    for merge in history.merges:
        found += [(text, (merge.line,)) for text in _merge_faults(history, merge, limit)]
    k = quorum(history)
    good = f"{len(history.merges)} merges, each with at least {k if k is not None else 'its'} "
    stale = f"none based on a version older than {limit} steps" if limit else "no staleness bound"
    return verdict_of(found, holds(f"{good}contributors; {stale}", history.merges[-1].line))


def _merge_faults(history: History, merge: Seen[Merged], limit: int | None) -> list[str]:
    event = merge.event
    found = []
    units = [p.unit for p in event.contributions]
    need = max(event.quorum, quorum(history) or 0)
    if len(set(units)) < need:
        found.append(f"{_title(event)} has {len(set(units))} contributors, quorum is {need}")
    if len(set(units)) != len(units):
        twice = sorted({u for u in units if units.count(u) > 1})
        found.append(f"{_title(event)} counts {', '.join(twice)} twice")
    for part in event.contributions:
        where = _named(merge, part)
        expected = part.c_tokens**2 / part.c_steps if part.c_steps > 0 else None
        if expected is None:
            found.append(f"{where}: c_steps is {part.c_steps}")
        elif not isclose(part.weight, expected, rel_tol=1e-9, abs_tol=0.0):
            found.append(f"{where}: weight is {part.weight}, c_tokens^2/c_steps is {expected}")
        newest = part.base_version == event.version - 1  # nothing newer was there to build on
        if limit is not None and not newest and part.base_clock < event.clock - limit:
            age = event.clock - part.base_clock
            found.append(f"{where}: based on a version {age} steps old, the bound is {limit}")
        dead = _dead_before(history, event, part)
        if dead:
            found.append(f"{where}: {dead}")
    return found


def _dead_before(history: History, event: Merged, part: Contribution) -> str:
    """Why the contributor cannot have been alive while this merge collected; empty if it could."""
    opened = event.t_ns - event.quorum_ns - event.grace_ns - event.sync_ns - part.pull_ns
    life = history.life(part.unit, part.incarnation)
    if life is not None and life.exit is not None and life.exit.event.t_ns < opened:
        return f"it had exited {(event.t_ns - life.exit.event.t_ns) / 1e9:.2f} s before"
    if part.incarnation >= _newest(history, part.unit):
        return ""
    newer = [
        lf
        for lf in history.lives.get(part.unit, ())
        if (lf.incarnation or 0) > part.incarnation and lf.joined and lf.joined.event.t_ns < opened
    ]
    return f"incarnation {newer[0].incarnation} had already taken over" if newer else ""


def _newest(history: History, unit: str) -> int:
    """The highest incarnation of ``unit``; 0 for one that never lived."""
    known: int | None = history.memo.get(("newest", unit))
    if known is None:
        known = max((lf.incarnation or 0 for lf in history.lives.get(unit, ())), default=0)
        history.memo["newest", unit] = known
    return known


def finite(e: Evidence) -> Finding:
    """Check 5: merged parameters are finite; a damaged update is refused and its sender named."""
    history = e.history
    if not history.merges:
        return _no_merges(history)
    found: Violations = [
        (f"{_title(m.event)} holds a number that is not finite", (m.line,))
        for m in history.merges
        if not m.event.finite
    ]
    found += [
        (f"the loss evaluated after global step {s.event.clock} is not finite", (s.line,))
        for s in history.evaluated
        if s.event.loss is None
    ]
    damaged = [r for r in history.refused if r.event.why.startswith(DAMAGED)]
    names = {
        (r.event.sender, r.event.sender_incarnation, r.event.fragment, r.event.step): r
        for r in damaged
    }
    for merge in history.merges:
        for part in merge.event.contributions:
            seen = names.get((part.unit, part.incarnation, merge.event.fragment, part.step))
            # Asked again later, a learner that waits may send the same step in good order.
            asked_ns = merge.event.t_ns - merge.event.sync_ns
            if seen is not None and seen.event.t_ns >= asked_ns:
                text = "was refused as damaged and merged all the same"
                found.append((f"{_named(merge, part)}: {text}", (seen.line, merge.line)))
    senders = ", ".join(sorted({r.event.sender for r in damaged}))
    refused = f"; {len(damaged)} damaged updates refused, from {senders}" if damaged else ""
    good = holds(
        f"{len(history.merges)} merges, all finite{refused}",
        *([r.line for r in damaged] or [history.merges[-1].line]),
    )
    return verdict_of(found, good)


def quorum(history: History) -> int | None:
    """K as the target's parameters state it."""
    value = history.run.params.get("quorum")
    return value if isinstance(value, int) else None


def stale_limit(history: History) -> int | None:
    """The staleness bound in force, in global steps."""
    params = history.run.params
    bound = params.get("stale_steps_max")
    if isinstance(bound, int):
        return bound
    every = params.get("sync_every")
    return 2 * every if isinstance(every, int) else None


def _no_merges(history: History) -> Finding:
    if not history.run.fragments:
        return not_asked("this target has no fragments and merges nothing")
    if history.start_ns is None:
        return unknown("nothing was merged before the run ended")
    return broken("steady state was declared, but nothing was ever merged")


def _title(event: Merged) -> str:
    return f"merge of fragment {event.fragment} version {event.version} at step {event.clock}"


def _named(merge: Seen[Merged], part: Contribution) -> str:
    return f"{part.unit} in {_title(merge.event)}"
