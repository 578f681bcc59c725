"""How long things took in a run, from its journal: what a simulated twin of it needs to know.

Each figure is the median over the samples of the run, with how many there were. How a unit comes to
life is taken from later lives where there are any: the first ones all start at once and crowd the
host, and they are over before anything is measured. Lateness of steps is a mean, because goodput
sums it, and so is the gap between two; steps that a fault slowed by half or more are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from harness import events as ev
from harness.events import AnyEvent

SLOWED_BY_FAULT = 0.5
"""Lateness, as a share of a step's nominal time, that is put down to a fault."""


@dataclass(frozen=True)
class Figure:
    """One kind of duration, in nanoseconds. ``value_ns`` is None when there was no sample."""

    name: str
    value_ns: float | None
    samples: int
    about: str

    @property
    def ms(self) -> float | None:
        """In milliseconds."""
        return None if self.value_ns is None else self.value_ns / 1e6


@dataclass(frozen=True)
class Measured:
    """The figures by name, in a fixed order."""

    figures: tuple[Figure, ...]

    def ms(self, name: str) -> float | None:
        """The figure called ``name`` in milliseconds; raises ``KeyError`` for an unknown name."""
        for figure in self.figures:
            if figure.name == name:
                return figure.ms
        raise KeyError(name)


class _Samples:
    """Takes events in order of time and keeps the durations between those that belong together."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {name: [] for name in _ABOUT}
        self.first: dict[str, list[float]] = {name: [] for name in _ABOUT}
        """The same of first lives, for want of others."""
        self.roles: dict[str, str] = {}
        self.exited: dict[str, int] = {}
        self.spawned: dict[str, int] = {}
        self.started: dict[tuple[str, int], int] = {}
        self.ready: dict[tuple[str, int], int] = {}
        self.stepped: dict[tuple[str, int], tuple[int, int]] = {}

    def take(self, event: AnyEvent) -> None:
        match event:
            case ev.UnitExited():
                self.exited[event.unit] = event.t_ns
            case ev.UnitSpawned():
                self.spawned[event.unit] = event.t_ns
                self._since("restart", self.exited.pop(event.unit, None), event.t_ns)
            case ev.UnitStarted():
                self.roles[event.unit] = event.role
                self.started[event.unit, event.incarnation] = event.t_ns
                began = self.spawned.pop(event.unit, None)
                self._since("spawn", began, event.t_ns, event.incarnation)
            case ev.UnitReady():
                self._boot(event)
            case ev.Joined():
                ready = self.ready.pop((event.unit, event.incarnation), None)
                self._since("join", ready, event.t_ns, event.incarnation)
            case ev.Step():
                self._step(event)
            case ev.Heard():
                self.found["round trip"].append(event.rtt_ns)
            case _:
                pass

    def _since(self, name: str, began_ns: int | None, t_ns: int, incarnation: int = 2) -> None:
        # A unit's own first line may be stamped before its supervisor tells of the start.
        if began_ns is not None:
            self._of(incarnation)[name].append(max(0, t_ns - began_ns))

    def _of(self, incarnation: int) -> dict[str, list[float]]:
        return self.first if incarnation == 1 else self.found

    def figures(self) -> Iterable[Figure]:
        """Every figure, in a fixed order."""
        for name, about in _ABOUT.items():
            found = self.found[name] or self.first[name]
            yield Figure(name, _middle(name, found), len(found), about)

    def _boot(self, event: ev.UnitReady) -> None:
        key = (event.unit, event.incarnation)
        began_ns = self.started.get(key)
        if began_ns is None:
            return
        whole = event.t_ns - began_ns
        if self.roles.get(event.unit) != "learner":
            self.found["syncer boot"].append(whole)
            return
        self.ready[key] = event.t_ns
        self._of(event.incarnation)["import"].append(min(event.import_ns, whole))
        name = "first compile" if event.incarnation == 1 else "compile"
        self.found[name].append(max(0, whole - event.import_ns))

    def _step(self, event: ev.Step) -> None:
        key = (event.unit, event.incarnation)
        number, before_ns = self.stepped.get(key, (0, 0))
        self.stepped[key] = (event.step, event.t_ns)
        if event.step != number + 1 or not number or not event.nominal_ns:
            return
        late = event.t_ns - before_ns - event.nominal_ns
        if abs(late) < SLOWED_BY_FAULT * event.nominal_ns:
            self.found["step late"].append(late)
            self.found["step gap"].append(max(0, event.began_at_ns - before_ns))


_ABOUT = {
    "restart": "from a unit's exit until it is started again",
    "spawn": "from a process' start to its first line",
    "import": "imports of a learner",
    "first compile": "what else a learner's first life needs until it is ready",
    "compile": "the same of its later lives, with a warm cache",
    "syncer boot": "from the syncer's first line until it is ready",
    "join": "from ready until a learner holds the state it trains on",
    "round trip": "of a heartbeat on a link",
    "step gap": "from the end of a step until the next one begins, in the mean",
    "step late": "by how much a step ends later than its nominal time after the last, in the mean",
    "detect": "from a fault's effect until somebody acted on it",
}


def measure(events: Iterable[AnyEvent], detect_s: Sequence[float] = ()) -> Measured:
    """Fold a journal's events into figures. ``detect_s`` are detection times in seconds, which
    take a whole report to find (:mod:`reports.healing`)."""
    samples = _Samples()
    for event in sorted(events, key=lambda e: e.t_ns):
        samples.take(event)
    samples.found["detect"] = [1e9 * s for s in detect_s]
    return Measured(tuple(samples.figures()))


def _middle(name: str, found: Sequence[float]) -> float | None:
    if not found:
        return None
    return fmean(found) if name.startswith("step") else median(found)
