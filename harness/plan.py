"""The fault plan: pure. What begins or ends next, by time or by observed progress.

Everything random is drawn when the plan is made (:mod:`harness.arrivals`), so that a seed fixes
victims and instants before anything runs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from faults.base import Capability, Deed
from faults.select import Candidate
from harness.arrivals import Act, Arrival, drawn
from harness.events import AnyEvent, Step
from harness.spec import NS, FaultPart, OnEvent


@dataclass(frozen=True, eq=False)
class Planned:
    """One fault on one unit."""

    fault: str
    """f1, f2, ... in the order of the spec, or the fault's name; f1.2 is its second act."""
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
        if not item.deed.from_start:  # else it is on already
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
    faults: Sequence[FaultPart | None], units: Sequence[Candidate], seed: int, duration_s: float
) -> tuple[list[Planned], list[str]]:
    """(planned faults, problems) for a spec's faults on these units; None stands for one that
    could not be read, so that the others keep their places."""
    planned: list[Planned] = []
    problems: list[str] = []
    for index, part in enumerate(faults):
        if part is None:
            continue
        arrivals, found = drawn(index, part, units, seed, duration_s)
        problems += [f"f{index + 1}.{p}" for p in found]
        if part.at_s is None and any(a.deed.from_start for arr in arrivals for a in arr.acts):
            problems.append(f"f{index + 1}.from_start: only the end can be planned; give at_s")
        planned += _labelled(part.name or f"f{index + 1}", part, arrivals)
    return planned, problems


def _labelled(name: str, part: FaultPart, arrivals: Sequence[Arrival]) -> list[Planned]:
    """Every act of every arrival on each of its victims; acts are numbered throughout."""
    acts = [
        (arrival, act, offset_ns)
        for arrival in arrivals
        for act in arrival.acts
        for offset_ns in act.deed.repeats
    ]
    many = len(acts) > 1 or part.schedule is not None
    out = []
    for number, (arrival, act, offset_ns) in enumerate(acts, start=1):
        common = _planned(part, arrival, act, offset_ns)
        label = f"{name}.{number}" if many else name
        out += [replace(common, fault=label, unit=unit) for unit in arrival.victims]
    return out


def _planned(part: FaultPart, arrival: Arrival, act: Act, offset_ns: int) -> Planned:
    wait_ns = round((part.on.after_s if part.on else 0.0) * NS)
    later_ns = round(act.after_s * NS) + offset_ns
    return Planned(
        fault="",
        kind=act.fault.kind,
        unit="",
        deed=act.deed,
        needs=act.fault.needs,
        params={**act.params, **arrival.about},
        at_ns=None if arrival.at_s is None else round(arrival.at_s * NS) + later_ns,
        at_step=part.at_step,
        on=part.on,
        delay_ns=wait_ns + later_ns,
        for_ns=None if act.for_s is None else round(act.for_s * NS),
        lasting=act.fault.lasting,
    )
