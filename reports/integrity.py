"""Whether a journal can be believed at all: what no run of ours would have written.

A report on a damaged journal would be about another run than the one that took place, so any damage
makes the verdict a harness error. A journal that merely ends early is not damaged but cut; that is
:attr:`reports.history.History.cut`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness import events as ev
from harness.journal import JournalText

BACKWARDS_MAX_NS = 5_000_000_000
"""Lines of several writers may be this much out of order: pipes and engines deliver late."""

STEP_SLACK_NS = 1_000_000_000
"""The steps of one life come through one pipe, one after the other; more than that is disorder."""

_PHASES: tuple[type[ev.Event], ...] = (
    ev.SteadyState,
    ev.WindowEnded,
    ev.TailEnded,
    ev.ResidueFound,
    ev.RunEnded,
)
"""Lines that the runner alone writes, in this order."""

# As tuples: a union that is built for every line costs more than all the rest.
_NAMED = (ev.Step, ev.Merged)
_TIMED = (ev.Step, ev.Waited)
_HOLDS = (ev.FaultAsked, ev.FaultEnded)

_FREEZING = frozenset({"frozen", "cpu_share"})
"""Holds under which a unit writes down late what it already saw."""

Line = tuple[int, ev.AnyEvent]


def damage(journal: JournalText) -> list[str]:
    """Everything that is wrong with the journal, the cause of most of it first."""
    numbers = journal.lines or range(1, len(journal.events) + 1)
    lines: list[Line] = list(zip(numbers, journal.events, strict=True))
    found = list(journal.problems)
    found += _request(lines)
    for judge in (_phases, _backwards, _steps, _completed):
        found += judge(lines)
    return list(dict.fromkeys(found))


def _request(lines: Sequence[Line]) -> list[str]:
    """What is wrong with the first line, which holds the request."""
    runs = [(number, event) for number, event in lines if isinstance(event, ev.RunStarted)]
    if not runs:
        return ["the journal lacks its first line: the request is not known"]
    number, run = runs[0]
    found = []
    if run is not lines[0][1]:
        found.append(f"the request is in line {number} and not in the first one")
    if len(runs) > 1:
        found.append(f"line {runs[1][0]} begins another run")
    if run.schema != ev.SCHEMA:
        found.append(f"the journal has schema {run.schema}, this version reads {ev.SCHEMA}")
    if not run.units:
        found.append("the request names no unit")
    if not run.params:
        found.append("the request holds no parameters of its target")
    if run.units:
        known = {unit.name for unit in run.units}
        for at, event in lines:
            if isinstance(event, _NAMED) and event.unit not in known:
                found.append(f"line {at} is of {event.unit}, which the request does not name")
                break
    return found


def _phases(lines: Sequence[Line]) -> list[str]:
    """The runner's own lines are in their order, once each, and the last one is the last."""
    at: dict[type[ev.AnyEvent], int] = {}
    found = []
    for number, event in lines:
        kind = type(event)
        if kind not in _PHASES:
            continue
        if kind in at:
            found.append(f"line {number} repeats {_name(kind)} of line {at[kind]}")
        at.setdefault(kind, number)
    order = [at[kind] for kind in _PHASES if kind in at]
    if order != sorted(order):
        said = ", ".join(f"{_name(kind)} in line {at[kind]}" for kind in _PHASES if kind in at)
        found.append(f"the phases of the run are not in their order: {said}")
    last = at.get(ev.RunEnded)
    if last is not None and last != lines[-1][0]:
        found.append(f"line {last} ends the run and {lines[-1][0]} comes after it")
    return found


@dataclass
class _Frozen:
    """How long a unit has stood still so far, by the journal."""

    since_ns: int | None = None
    total_ns: int = 0
    faults: set[str] = field(default_factory=set)

    def take(self, event: ev.FaultAsked | ev.FaultEnded) -> None:
        if isinstance(event, ev.FaultAsked):
            if not any(hold.resource in _FREEZING for hold in event.holds):
                return
            if not self.faults:
                self.since_ns = event.t_ns
            self.faults.add(event.fault)
        elif event.fault in self.faults:
            self.faults.discard(event.fault)
            if not self.faults and self.since_ns is not None:
                self.total_ns += max(0, event.t_ns - self.since_ns)
                self.since_ns = None

    def late_ns(self, now_ns: int) -> int:
        going_on = 0 if self.since_ns is None else max(0, now_ns - self.since_ns)
        return self.total_ns + going_on


def _backwards(lines: Sequence[Line]) -> list[str]:
    """Time goes on from line to line, but for what a frozen unit could not write in time."""
    frozen: dict[str, _Frozen] = {}
    steady = False
    previous: int | None = None
    for number, event in lines:
        t_ns = event.t_ns
        if type(event) is ev.SteadyState:
            steady = True
        elif isinstance(event, _HOLDS):
            frozen.setdefault(event.unit, _Frozen()).take(event)
        if previous is not None and t_ns < previous - BACKWARDS_MAX_NS:
            # Whoever attaches to a cluster reads what its units wrote before: negative instants.
            old = t_ns < 0 and not steady
            still = frozen.get(getattr(event, "unit", ""))
            late = previous - t_ns
            if not old and (still is None or late > BACKWARDS_MAX_NS + still.late_ns(previous)):
                return [f"line {number} is {late / 1e9:.1f} s older than the one before it"]
        previous = t_ns
    return []


def _steps(lines: Sequence[Line]) -> list[str]:
    """Steps begin before they end, and those of a life one after the other."""
    latest: dict[tuple[str, int], int] = {}
    for number, event in lines:
        if not isinstance(event, _TIMED):
            continue
        if event.began_at_ns > event.t_ns:
            return [f"line {number} says that {event.unit} began what had already ended"]
        if not isinstance(event, ev.Step):
            continue
        if min(event.compute_ns, event.nominal_ns, event.tokens) < 0:
            return [f"line {number} holds a step of {event.unit} with a negative amount"]
        key = event.unit, event.incarnation
        before = latest.get(key)
        if before is not None and event.began_at_ns < before - STEP_SLACK_NS:
            return [f"line {number}: a step of {event.unit} began before its last one had ended"]
        latest[key] = max(event.t_ns, before or event.t_ns)
    return []


def _completed(lines: Sequence[Line]) -> list[str]:
    """A run that says it was completed looked for residue."""
    kinds = {type(event) for _, event in lines}
    done = ev.RunEnded in kinds and any(
        isinstance(e, ev.RunEnded) and e.status == "completed" for _, e in lines
    )
    if done and ev.ResidueFound not in kinds:
        return ["the run says that it was completed, and nobody looked for residue"]
    return []


def _name(kind: type[ev.AnyEvent]) -> str:
    return next((name for name, known in ev.KINDS.items() if known is kind), kind.__name__)
