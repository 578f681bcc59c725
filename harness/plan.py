"""The fault plan: pure. What begins or ends next, by time or by observed progress.

Everything random is drawn when the plan is made, from streams named after the fault's place in
the spec, so that a seed fixes victims and instants before anything runs, and adding a fault does
not move the others.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from faults import load as load_fault
from faults.base import Capability, Deed, Fault
from faults.select import Candidate, select
from harness.events import AnyEvent, Step
from harness.schedules import instants
from harness.seeds import stream
from harness.spec import NS, FaultPart, OnEvent


@dataclass(frozen=True, eq=False)
class Planned:
    """One fault on one unit."""

    fault: str
    """f1, f2, ... in the order of the spec; f1.2 is the second arrival of a repeated one."""
    kind: str
    unit: str
    deed: Deed
    needs: frozenset[Capability]
    params: dict[str, object]
    at_ns: int | None = None
    """Since steady state; None when it starts by progress or by an event."""
    at_step: int | None = None
    on: OnEvent | None = None
    delay_ns: int = 0
    """From the step or event that starts it until it begins."""
    for_ns: int | None = None
    lasting: bool = False


@dataclass(frozen=True)
class Due:
    """Something to do now. ``planned_ns`` is the instant at which it should have happened.

    ``begin`` starts a fault, ``on`` and ``off`` are the pulses of an intermittent one, ``end``
    releases it; ``window`` and ``tail`` end the two acts of a run.
    """

    what: Literal["begin", "on", "off", "end", "window", "tail"]
    planned_ns: int
    item: Planned | None = None


@dataclass
class Plan:
    """Queue of what is due. ``begin`` fixes the origin; ``observe`` feeds the journal back."""

    items: Sequence[Planned]
    duration_ns: int
    tail_ns: int
    _heap: list[tuple[int, int, Due]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _waiting: list[Planned] = field(default_factory=list)
    _window_ns: int = 0

    def begin(self, steady_ns: int) -> None:
        """Steady state was reached at ``steady_ns``; the fault window starts."""
        self._window_ns = steady_ns + self.duration_ns
        for item in self.items:
            if item.at_ns is None:
                self._waiting.append(item)
            else:
                self._start(item, steady_ns + item.at_ns)
        self._push(Due("window", self._window_ns))

    def observe(self, event: AnyEvent) -> None:
        """Start what waited for this event. Events before ``begin`` are of no interest."""
        ready = [item for item in self._waiting if _triggered(item, event)]
        for item in ready:
            self._waiting.remove(item)
            self._start(item, event.t_ns + item.delay_ns)

    def due_ns(self) -> int | None:
        """When the next thing is due; None when the plan has come to its end."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ns: int) -> list[Due]:
        """Everything that is due at ``now_ns``, oldest first."""
        out = []
        while self._heap and self._heap[0][0] <= now_ns:
            out.append(heapq.heappop(self._heap)[2])
        return out

    def close_window(self, now_ns: int) -> list[Planned]:
        """The fault window is over: nothing starts any more, and the quiet tail follows.

        Returns what never started.
        """
        never = self._waiting + [d.item for _, _, d in self._heap if d.what == "begin" and d.item]
        self._waiting, self._heap = [], []
        self._push(Due("tail", now_ns + self.tail_ns))
        return never

    def _start(self, item: Planned, at_ns: int) -> None:
        self._push(Due("begin", at_ns, item))
        if not item.lasting:
            return
        end_ns = self._window_ns if item.for_ns is None else at_ns + item.for_ns
        if item.deed.pulses:
            on_ns, off_ns = item.deed.pulses
            for start in range(at_ns + on_ns, min(end_ns, self._window_ns), on_ns + off_ns):
                self._push(Due("off", start, item))
                if start + off_ns < end_ns:
                    self._push(Due("on", start + off_ns, item))
        if end_ns < self._window_ns:
            self._push(Due("end", end_ns, item))

    def _push(self, due: Due) -> None:
        heapq.heappush(self._heap, (due.planned_ns, next(self._order), due))


def _triggered(item: Planned, event: AnyEvent) -> bool:
    if item.at_step is not None:
        return isinstance(event, Step) and event.clock >= item.at_step
    if item.on is None:
        return False
    kind = getattr(type(event), "__struct_config__", None)
    name = kind.tag if kind is not None else ""
    return (
        name == item.on.event
        and (item.on.unit is None or getattr(event, "unit", None) == item.on.unit)
        and (item.on.fault is None or getattr(event, "fault", None) == item.on.fault)
    )


def make(
    faults: Sequence[FaultPart], units: Sequence[Candidate], seed: int, duration_s: float
) -> tuple[list[Planned], list[str]]:
    """(planned faults, problems) for a spec's faults on these units."""
    planned: list[Planned] = []
    problems: list[str] = []
    for index, part in enumerate(faults):
        try:
            planned += _arrivals(index, part, units, seed, duration_s)
        except _Problems as error:
            problems += [f"fault[{index}].{p}" for p in error.found]
    return planned, problems


class _Problems(Exception):
    def __init__(self, found: Iterable[str]) -> None:
        self.found = list(found)


def _arrivals(
    index: int, part: FaultPart, units: Sequence[Candidate], seed: int, duration_s: float
) -> list[Planned]:
    fault = load_fault(part.kind)
    deed = fault.deed(part.params)
    name = f"f{index + 1}"
    if part.schedule is None:
        starts: list[float | None] = [part.at_s]
    else:
        found = instants(part.schedule, duration_s, stream(seed, name, "arrivals"))
        if not found:
            raise _Problems(["schedule: this seed draws no arrival in the fault window"])
        starts = list(found)
    out: list[Planned] = []
    hit: list[str] = []
    for number, start in enumerate(starts):
        victims = _victims(part, units, stream(seed, name, "where", number), hit)
        hit += victims
        out += _acts(part, fault, deed, name, number, start, victims, many=len(starts) > 1)
    return out


def _victims(
    part: FaultPart, units: Sequence[Candidate], draw: random.Random, hit: Sequence[str]
) -> tuple[str, ...]:
    victims, problems = select(part.where, units, draw)
    if problems:
        raise _Problems(problems)
    if hit and part.schedule is not None and draw.random() < part.schedule.offenders:
        return (draw.choice(hit),)
    return victims


def _acts(
    part: FaultPart,
    fault: Fault,
    deed: Deed,
    name: str,
    number: int,
    start_s: float | None,
    victims: Sequence[str],
    *,
    many: bool,
) -> list[Planned]:
    """One arrival: an act for every victim and every repeat of the deed."""
    out = []
    wait_s = part.on.after_s if part.on else 0.0
    for repeat, offset_ns in enumerate(deed.repeats):
        label = f"{name}.{number * len(deed.repeats) + repeat + 1}"
        common = Planned(
            fault=label if many or len(deed.repeats) > 1 else name,
            kind=part.kind,
            unit="",
            deed=deed,
            needs=fault.needs,
            params=dict(part.params),
            at_ns=None if start_s is None else round(start_s * NS) + offset_ns,
            at_step=part.at_step,
            on=part.on,
            delay_ns=round(wait_s * NS) + offset_ns,
            for_ns=None if part.for_s is None else round(part.for_s * NS),
            lasting=fault.lasting,
        )
        out += [replace(common, unit=unit) for unit in victims]
    return out
