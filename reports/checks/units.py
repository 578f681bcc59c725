"""Claims about units: exits explained, bystanders undisturbed, the recovered heard again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.events import Step, UnitExited
from reports.checks.base import (
    Evidence,
    Finding,
    broken,
    holds,
    not_asked,
    unknown,
    verdict_of,
)
from reports.effects import EXIT_SLACK_NS, FaultFact
from reports.healing import Healing
from reports.history import History
from reports.lives import FaultWindow, Seen
from reports.shadows import STATE_KINDS
from reports.worlds import ended_with_its_world

Violations = list[tuple[str, tuple[int, ...]]]

RATE_LOSS_MAX = 0.10
"""A learner that was not hit may lose this share of its step rate (DESIGN: blast radius)."""

_RATE_STEPS_MIN = 3
_BEFORE_NS = 10_000_000_000

_DEADLY = {
    "kill": ({9}, {137}),
    "kill_group": ({9}, {137}),
    "crash_loop": ({9}, {137}),
    "oom": ({9}, {137}),
    **dict.fromkeys(sorted(STATE_KINDS), ({9}, {137})),
    "terminate": ({15, 9}, {0, 143, 137}),
    "absent": ({15, 9}, {0, 143, 137}),
}
"""Fault kind to the signals and exit codes with which its victim may end."""


def exits_explained(e: Evidence) -> Finding:
    """Check 10: every unit exit is explained by a fault or is a failure."""
    history = e.history
    if history.ended is not None and history.ended.event.status == "interrupted":
        return not_asked("the run was interrupted, and stopping it ends units")
    teardown = history.teardown_ns
    judged = [s for s in history.exits if teardown is None or s.event.t_ns < teardown]
    found: Violations = []
    # The intent is journalled before the deed, so a death may come between the two lines.
    left = {id(f.window): _deaths(f) for f in e.facts if f.window.asked_ns is not None}
    together = 0
    for seen in judged:
        if not _explained(seen.event, e.facts, left):
            world = ended_with_its_world(history, seen.event, e.facts)
            if world is not None:
                together += 1
                continue
            how = f"signal {seen.event.signal}" if seen.event.signal else f"code {seen.event.code}"
            at = f"{seen.event.t_ns / 1e9:.2f} s"
            found.append((f"{seen.event.unit} ended with {how} at {at}, by no fault", (seen.line,)))
    good = f"{len(judged)} exits, each one caused by a fault" if judged else "no unit exited"
    if together:
        good += f" ({together} of them ended with the world that they were members of)"
    return verdict_of(found, holds(good, *(s.line for s in judged)))


def _deaths(fact: FaultFact) -> int:
    """How many exits the fault may explain."""
    times = fact.window.params.get("times")
    return int(times) if fact.window.kind == "crash_loop" and isinstance(times, int) else 1


def _explained(event: UnitExited, facts: Iterable[FaultFact], left: dict[int, int]) -> bool:
    for fact in facts:
        window = fact.window
        if left.get(id(window), 0) < 1 or window.unit != event.unit:
            continue
        if _could_end(window, event):
            left[id(window)] -= 1
            return True
    return False


def _could_end(window: FaultWindow, event: UnitExited) -> bool:
    signals, codes = _DEADLY.get(window.kind, (set(), set()))
    if event.signal is not None and event.signal not in signals:
        return False
    if event.signal is None and event.code is not None and event.code not in codes:
        return False
    begin = window.asked_ns or window.executed_ns or 0
    grace = round(float(window.params.get("grace_s", 0)) * 1e9)
    return begin <= event.t_ns <= (window.last_executed_ns or begin) + grace + EXIT_SLACK_NS


def bystanders_undisturbed(e: Evidence) -> Finding:
    """Check 7: learners that were not hit keep their step rate within 10 %."""
    history = e.history
    hits = [f for f in e.facts if f.executed and not f.control]
    if not hits:
        return not_asked("no fault was executed")
    if history.worlds:
        return not_asked("the units of this target stop together: it has no bystanders")
    hit = {f.window.unit for f in hits}
    if any(f.window.kind == "kill_proxy" for f in hits):
        return not_asked("the proxy was hit, which concerns every link")
    if hit & set(history.syncers):
        return not_asked("the syncer was hit, which concerns every learner")
    spared = [u for u in history.learners if u not in hit]
    if not spared:
        return not_asked("every learner was hit")
    begin = min(f.window.executed_ns or 0 for f in hits)
    end = history.window_ended.event.t_ns if history.window_ended else history.end_ns
    found: Violations = []
    rates: list[str] = []
    short: list[str] = []
    for unit in spared:
        before = _rate(history, unit, begin - _BEFORE_NS, begin) or _nominal_rate(history, unit)
        if before is None:
            short.append(unit)
            continue
        during = _rate(history, unit, begin, end)
        if during is None:
            # A learner that stopped dead must not hide behind "too few steps".
            if before[0] * (end - begin) / 1e9 < 2 * _RATE_STEPS_MIN:
                short.append(unit)
                continue
            during = 0.0, before[1]
        change = during[0] / before[0] - 1.0
        rates.append(f"{unit} {change:+.1%}")
        if change < -RATE_LOSS_MAX:
            text = f"{unit} was not hit and fell from {before[0]:.2f} to {during[0]:.2f} steps/s"
            found.append((text, (before[1], during[1])))
    if found:
        return verdict_of(found, holds(""))
    if short:
        return unknown(f"too few steps before or during the faults: {', '.join(short)}")
    return holds("step rate during the faults against before: " + ", ".join(rates))


def _rate(history: History, unit: str, start: int, end: int) -> tuple[float, int] | None:
    """(steps per second, line of the last one) over the steps inside (start, end]; None for too
    few of them."""
    inside: list[Seen[Step]] = [
        s for s in history.steps(unit) if s.event.began_at_ns >= start and s.event.t_ns <= end
    ]
    if len(inside) < _RATE_STEPS_MIN:
        return None
    # A learner that stopped half way through has a low rate, so unless its last step ended near
    # the end of the interval the clock runs to that end.
    first = min(s.event.began_at_ns for s in inside)
    last = max(inside, key=lambda s: s.event.t_ns)
    usual = (last.event.t_ns - first) // len(inside)
    over = end if end - last.event.t_ns > 3 * usual else last.event.t_ns
    return len(inside) / ((over - first) / 1e9), last.line


def _nominal_rate(history: History, unit: str) -> tuple[float, int] | None:
    """The rate that pacing would give, for a fault too early to have measured one before it."""
    for seen in history.steps(unit):
        if seen.event.nominal_ns > 0:
            return 1e9 / seen.event.nominal_ns, seen.line
    return None


def back_in_time(e: Evidence) -> Finding:
    """Check 11: every learner that came back contributes again within the bound."""
    history = e.history
    if not history.run.fragments:
        return not_asked("this target has no fragments and merges nothing")
    learners = set(history.learners)
    rows = [h for h in e.healing if h.counts and h.fact.window.unit in learners]
    if not rows:
        return not_asked("no learner was out of training")
    bound = contribute_bound_ns(history)
    found: Violations = []
    asides: list[str] = []
    pending: list[str] = []
    lines: list[int] = []
    for row in rows:
        window = row.fact.window
        name = f"{window.unit} after {window.fault} ({window.kind})"
        back = _came_back_ns(row)
        lines += window.lines[-1:]
        if back is None or row.origin_ns is None:
            if window.absence:
                asides.append(f"{name} was still away, as planned")
            elif _died_again(history, row):
                asides.append(f"{name} died again before it was back")
            else:
                pending.append(f"{name} never came back before the run ended")
            continue
        heard = None if row.reintegrate_ns is None else row.origin_ns + row.reintegrate_ns
        silent_ns = (history.end_ns if heard is None else heard) - back
        if silent_ns <= bound:
            if heard is None:
                pending.append(f"{name}: the run ended before the bound was over")
        elif _hit_again(e, row, back, back + bound):
            asides.append(f"{name}: it or the syncer was hit again before it was heard")
        else:
            text = f"{name} was back and not heard for {silent_ns / 1e9:.2f} s"
            found.append((f"{text}, the bound is {bound / 1e9:.1f} s", tuple(window.lines)))
    if not found and pending:
        return unknown("; ".join(pending), *lines)
    if not found and len(asides) == len(rows):
        return not_asked("; ".join(asides))
    heard_again = len(rows) - len(asides)
    says = f"{heard_again} times out and back, each heard within {bound / 1e9:.1f} s of being back"
    return verdict_of(found, holds("; ".join([says, *asides]), *lines))


def _died_again(history: History, row: Healing) -> bool:
    """Whether a later life of the unit ended before it took a step: what became of the unit is
    then told by the fault that ended that one."""
    since = row.origin_ns or 0
    return any(
        lf.begin_ns > since and not lf.steps and lf.ended_by(history.end_ns)
        for lf in history.lives.get(row.fact.window.unit, ())
    ) and any(s.event.unit == row.fact.window.unit and s.event.t_ns > since for s in history.exits)


def _hit_again(e: Evidence, row: Healing, start_ns: int, end_ns: int) -> bool:
    """Whether the unit, or the syncer that should hear it, died or was hit by another fault in
    (start_ns, end_ns]."""
    units = {row.fact.window.unit, *e.history.syncers}
    died = any(
        lf.ended_ns is not None and start_ns < lf.ended_ns <= end_ns
        for unit in units
        for lf in e.history.lives.get(unit, ())
    )
    return died or any(
        f.window.unit in units
        and f is not row.fact
        and f.executed
        and start_ns < f.window.until_ns(e.history.end_ns)
        and (f.window.executed_ns or 0) <= end_ns
        for f in e.facts
    )


def _came_back_ns(row: Healing) -> int | None:
    """When the learner could contribute again: its first step after death, or the lift."""
    effect = row.fact.effect
    if effect is not None and effect.what == "exit":
        if row.origin_ns is None or row.ready_ns is None:
            return None
        return row.origin_ns + row.ready_ns
    return row.origin_ns


def contribute_bound_ns(history: History) -> int:
    """How long a learner that is back may go unheard: three cycles of fragments at the nominal
    step time, and at least 10 s (a link that was cut is dialled again with backoff)."""
    every = history.run.params.get("sync_every")
    step_ns = max((u.step_time_ns for u in history.units.values()), default=0)
    cycles = 3 * every * step_ns if isinstance(every, int) else 0
    return max(10_000_000_000, cycles)


def donors_copied(e: Evidence) -> Finding:
    """Check 6: a recovered learner's state equals its donor's, digest by digest."""
    found: Violations = []
    lines: list[int] = []
    for unit in e.history.learners:
        for life in e.history.lives.get(unit, ()):
            joined = life.joined
            if joined is None or not joined.event.donor_digests:
                continue
            lines.append(joined.line)
            mine, theirs = joined.event.digests, joined.event.donor_digests
            for name in sorted({*mine, *theirs}):
                if mine.get(name) != theirs.get(name):
                    text = f"{unit} took {name} from {joined.event.source} and holds another value"
                    found.append((text, (joined.line,)))
    if not lines:
        return not_asked("no learner copied its state from another one")
    return verdict_of(found, holds(f"{len(lines)} recoveries, every digest equal", *lines))


def _hollow(wanted: Sequence[FaultFact]) -> Violations:
    """Faults of the spec of which nothing at all took effect, with what the run says of it.

    Of a repeated fault (f1.1, f1.2, ...) or one with several victims, some may well find their
    victim gone; when none took effect, the run does not show what it was made to show.
    """
    by_name: dict[str, list[FaultFact]] = {}
    for fact in wanted:
        by_name.setdefault(fact.window.fault.split(".")[0], []).append(fact)
    found: Violations = []
    for name, facts in by_name.items():
        if all(fact.effect is None for fact in facts):
            first = facts[0]
            why = first.window.skipped or first.why_not
            text = f"{name} ({first.window.kind} on {first.window.unit}) never took effect: {why}"
            found.append((text, tuple(first.window.lines)))
    return found


def faults_real(e: Evidence) -> Finding:
    """Check 9: every fault asked for was executed and effective, or the run says why not."""
    wanted = [f for f in e.facts if not f.control]
    if not e.facts:
        return not_asked("the experiment has no fault")
    found: Violations = []
    excused = 0
    for fact in wanted:
        window = fact.window
        name = f"{window.fault} ({window.kind} on {window.unit})"
        if fact.effect is not None:
            continue
        if not fact.executed:
            if window.skipped:
                excused += 1
            else:
                found.append((f"{name} was planned and nothing came of it", tuple(window.lines)))
        elif fact.why_not:
            excused += 1
        else:
            text = f"{name} was executed and does not show in the unit's behaviour"
            found.append((text, tuple(window.lines)))
    for fact in e.facts:
        if fact.control and fact.effect is not None:
            found.append((f"{fact.window.fault} does nothing and had an effect", ()))
    real = sum(f.effect is not None for f in wanted)
    says = f"{real} of {len(wanted)} effective" + (f", {excused} not, with reason" * bool(excused))
    stopped = e.history.ended is None or e.history.ended.event.status != "completed"
    if found and stopped:
        return unknown(f"the run was stopped early: {found[0][0]}", *found[0][1])
    if not found and not real and wanted:
        return broken(f"no fault had any effect: {says}", *wanted[0].window.lines)
    found += _hollow(wanted)
    return verdict_of(found, holds(says, *(f.window.lines[-1] for f in wanted)))
