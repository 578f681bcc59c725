"""A fake cluster that writes a consistent journal, without running anything.

It plays the protocol on paper: learners step on a fixed beat whatever happens, a syncer merges one
fragment per beat from every learner that is connected, everybody adopts the result 5 ms later.
Faults are scripted with :class:`Kill`, :class:`Pause`, :class:`Straggle` and :class:`Cut`. A test
that wants a broken journal changes the finished list of events with :func:`change`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness import events as ev
from harness.journal import JournalText

MS = 1_000_000
SECOND = 1_000 * MS
E = TypeVar("E", bound=ev.Event)


@dataclass(frozen=True)
class Kill:
    """The unit dies at ``at_s`` and its process runs again ``down_s`` later (None: never)."""

    unit: str
    at_s: float
    down_s: float | None = 1.0
    kind: str = "kill"
    init_s: float = 0.5
    recover_s: float = 0.1
    notice_s: float | None = 0.05
    """When the syncer gives the link up; None for never."""


@dataclass(frozen=True)
class Pause:
    """Frozen: the running step takes ``for_s`` longer."""

    unit: str
    at_s: float
    for_s: float
    kind: str = "pause"


@dataclass(frozen=True)
class Straggle:
    """Steps take ``factor`` times as long."""

    unit: str
    at_s: float
    for_s: float
    factor: float = 3.0
    kind: str = "straggle"


@dataclass(frozen=True)
class Cut:
    """The link is silent: no contributions, no adoptions, and both ends notice after 1 s."""

    unit: str
    at_s: float
    for_s: float
    kind: str = "partition"
    notice_s: float = 1.0


@dataclass(frozen=True)
class Ghost:
    """A fault that is executed and does nothing at all."""

    unit: str
    at_s: float
    for_s: float
    kind: str = "latency"


Scripted = Kill | Pause | Straggle | Cut | Ghost


@dataclass
class _Life:
    unit: str
    incarnation: int
    began_ns: int
    first_ns: int
    by: str
    died_ns: int | None = None
    steps: list[ev.Step] = field(default_factory=list)
    since: dict[int, int] = field(default_factory=dict)
    base: dict[int, tuple[int, int]] = field(default_factory=dict)

    def done(self, t_ns: int) -> int:
        """Number of the last step finished by ``t_ns``."""
        return bisect_right(self.steps, t_ns, key=_when)

    def alive(self, t_ns: int) -> bool:
        return self.first_ns <= t_ns and (self.died_ns is None or t_ns < self.died_ns)


@dataclass
class Cluster:
    """Settings of the fake cluster; :meth:`events` plays it."""

    learners: int = 3
    fragments: tuple[int, ...] = (100, 300)
    step_ms: int = 100
    tokens: int = 64
    faults: Sequence[Scripted] = ()
    steady_s: float = 1.0
    window_s: float = 10.0
    tail_s: float = 2.0
    seed: int = 7
    gate: dict[str, float] = field(default_factory=dict)
    compute_ms: int = 20
    loss_from: float | None = 5.0
    experiment: str = "fake"

    def events(self) -> list[ev.AnyEvent]:
        """The whole journal, in order of time."""
        self._out: list[ev.AnyEvent] = []
        self._lives: dict[str, list[_Life]] = {n: self._live(n) for n in self._names()}
        self._head()
        for lives in self._lives.values():
            for life in lives:
                self._write_life(life)
        for number, fault in enumerate(self.faults, start=1):
            self._write_fault(f"f{number}", fault)
        self._merge_all()
        self._tail()
        first, *rest = self._out
        rest.sort(key=_when)
        return [first, *rest]

    @property
    def end_ns(self) -> int:
        """The quiet tail's end."""
        return round((self.window_s + self.tail_s) * SECOND)

    def _names(self) -> list[str]:
        return [f"learner-{i}" for i in range(self.learners)]

    def _head(self) -> None:
        step_ns = self.step_ms * MS
        learners = [
            ev.UnitInfo(name=n, role="learner", step_time_ns=step_ns, tokens_per_step=self.tokens)
            for n in self._names()
        ]
        self._out.append(
            ev.RunStarted(
                t_ns=0,
                schema=1,
                run="run-1",
                experiment=self.experiment,
                seed=self.seed,
                runtime="simulated",
                target="diloco",
                proxy="simulated",
                units=(ev.UnitInfo(name="syncer", role="syncer"), *learners),
                spec={"title": "A fake run", "gate": dict(self.gate)},
                params={
                    "learners": self.learners,
                    "quorum": 1,
                    "fragments": len(self.fragments),
                    "sync_every": len(self.fragments),
                    "stale_steps_max": 200,
                },
                fragments=self.fragments,
                repeat=f"diloco-chaos run fake --seed {self.seed}",
            )
        )
        self._out += [
            ev.UnitSpawned(t_ns=1, unit="syncer", by="harness", pid=10),
            ev.UnitStarted(t_ns=2, unit="syncer", incarnation=1, role="syncer", pid=10),
            ev.UnitReady(t_ns=3, unit="syncer", incarnation=1),
            ev.SteadyState(
                t_ns=round(self.steady_s * SECOND), why="every learner was merged in each fragment"
            ),
        ]

    def _tail(self) -> None:
        end = self.end_ns
        self._out.append(ev.WindowEnded(t_ns=round(self.window_s * SECOND)))
        self._out.append(ev.TailEnded(t_ns=end))
        for lives in self._lives.values():
            if lives[-1].died_ns is None:
                unit = lives[-1].unit
                self._out.append(ev.UnitExited(t_ns=end + 10 * MS, unit=unit, code=0))
        self._out.append(ev.UnitExited(t_ns=end + 20 * MS, unit="syncer", pid=10, code=0))
        self._out.append(ev.ResidueFound(t_ns=end + 30 * MS))
        self._out.append(ev.RunEnded(t_ns=end + 40 * MS, status="completed"))

    # --- learners ---

    def _live(self, name: str) -> list[_Life]:
        kills = sorted(
            (f for f in self.faults if isinstance(f, Kill) and f.unit == name),
            key=lambda f: f.at_s,
        )
        lives = [_Life(name, 1, 0, 100 * MS, "harness")]
        for kill in kills:
            died = round(kill.at_s * SECOND)
            lives[-1].died_ns = died
            if kill.down_s is None:
                break
            began = died + round(kill.down_s * SECOND)
            first = began + round((kill.init_s + kill.recover_s) * SECOND)
            lives.append(_Life(name, len(lives) + 1, began, first, "supervisor"))
        for life in lives:
            self._steps(life)
        return lives

    def _steps(self, life: _Life) -> None:
        t = life.first_ns
        number = 0
        stop = self.end_ns if life.died_ns is None else life.died_ns
        while True:
            nominal = self.step_ms * MS
            ends = t + round(nominal * self._factor(life.unit, t))
            for pause in self.faults:
                if isinstance(pause, Pause) and pause.unit == life.unit:
                    begins = round(pause.at_s * SECOND)
                    if t <= begins < ends:
                        ends += round(pause.for_s * SECOND)
            if ends > stop:
                return
            number += 1
            loss = None
            if self.loss_from is not None:
                loss = self.loss_from / (1.0 + ends / SECOND)
            life.steps.append(
                ev.Step(
                    t_ns=ends,
                    unit=life.unit,
                    incarnation=life.incarnation,
                    step=number,
                    began_at_ns=t,
                    tokens=self.tokens,
                    compute_ns=self.compute_ms * MS,
                    nominal_ns=nominal,
                    loss=loss,
                )
            )
            t = ends

    def _factor(self, unit: str, t_ns: int) -> float:
        for fault in self.faults:
            if isinstance(fault, Straggle) and fault.unit == unit:
                begins = round(fault.at_s * SECOND)
                if begins <= t_ns < begins + round(fault.for_s * SECOND):
                    return fault.factor
        return 1.0

    def _write_life(self, life: _Life) -> None:
        unit, number = life.unit, life.incarnation
        pid = 100 * number + int(unit.rsplit("-", 1)[1])
        ready = life.first_ns - (100 * MS if number > 1 else 50 * MS)
        self._out += [
            ev.UnitSpawned(t_ns=life.began_ns, unit=unit, by=life.by, pid=pid),
            ev.UnitStarted(
                t_ns=life.began_ns + 1, unit=unit, incarnation=number, role="learner", pid=pid
            ),
        ]
        if life.died_ns is None or ready < life.died_ns:
            self._out.append(ev.UnitReady(t_ns=ready, unit=unit, incarnation=number))
        if life.died_ns is None or life.first_ns < life.died_ns:
            self._out.append(
                ev.Joined(
                    t_ns=life.first_ns,
                    unit=unit,
                    incarnation=number,
                    source="initial" if number == 1 else "syncer",
                    clock=0,
                    step=0,
                )
            )
        self._out += life.steps
        if life.died_ns is not None:
            self._out.append(ev.UnitExited(t_ns=life.died_ns, unit=unit, pid=pid, signal=9))

    # --- merges ---

    def _connected(self, unit: str, t_ns: int) -> bool:
        return not any(
            isinstance(f, Cut)
            and f.unit == unit
            and round(f.at_s * SECOND) <= t_ns < round((f.at_s + f.for_s) * SECOND)
            for f in self.faults
        )

    def _frozen(self, unit: str, t_ns: int) -> bool:
        return any(
            isinstance(f, Pause)
            and f.unit == unit
            and round(f.at_s * SECOND) <= t_ns < round((f.at_s + f.for_s) * SECOND)
            for f in self.faults
        )

    def _merge_all(self) -> None:
        versions = [0] * len(self.fragments)
        clock = 0
        t = 250 * MS
        while t + 10 * MS < self.end_ns:
            clock += 1
            fragment = clock % len(self.fragments)
            if self._merge(t, clock, fragment, versions[fragment] + 1):
                versions[fragment] += 1
            t += self.step_ms * MS

    def _merge(self, t: int, clock: int, fragment: int, version: int) -> bool:
        parts: list[ev.Contribution] = []
        excluded: dict[str, str] = {}
        heard: list[_Life] = []
        for unit, lives in self._lives.items():
            life = next((lf for lf in lives if lf.alive(t)), None)
            if life is None or not self._connected(unit, t):
                excluded[unit] = "disconnected"
                continue
            if self._frozen(unit, t):
                excluded[unit] = "late: no push in time"
                continue
            heard.append(life)
            since, step = life.since.get(fragment, 0), life.done(t)
            if step <= since:
                excluded[unit] = "nothing new since its last merge"
                continue
            base, base_clock = life.base.get(fragment, (version - 1, clock - 1))
            tokens = (step - since) * self.tokens
            parts.append(
                ev.Contribution(
                    unit=unit,
                    incarnation=life.incarnation,
                    since_step=since,
                    step=step,
                    c_steps=step - since,
                    c_tokens=tokens,
                    weight=tokens**2 / (step - since),
                    base_version=base,
                    base_clock=base_clock,
                    pull_ns=2 * MS,
                )
            )
        if not parts:
            return False
        self._out.append(
            ev.Merged(
                t_ns=t,
                unit="syncer",
                incarnation=1,
                clock=clock,
                fragment=fragment,
                version=version,
                quorum=1,
                contributions=tuple(parts),
                excluded=excluded,
                reason="quorum of 1 and grace window over",
                sync_ns=3 * MS,
                bytes_in=clock * 4_000,
                bytes_out=clock * 5_000,
                rule="rda",
            )
        )
        for life in heard:
            at = t + 5 * MS
            if not life.alive(at):
                continue
            life.since[fragment] = life.done(at)
            life.base[fragment] = (version, clock)
            self._out.append(
                ev.Adopted(
                    t_ns=at,
                    unit=life.unit,
                    incarnation=life.incarnation,
                    fragment=fragment,
                    version=version,
                    clock=clock,
                    step=life.done(at),
                )
            )
        return True

    # --- faults ---

    def _write_fault(self, name: str, fault: Scripted) -> None:
        at = round(fault.at_s * SECOND)
        common: dict[str, Any] = {"fault": name, "kind": fault.kind, "unit": fault.unit}
        lasts = None if isinstance(fault, Kill) else round(fault.for_s * SECOND)
        holds: tuple[ev.Hold, ...] = ()
        if not isinstance(fault, Kill):
            resource = {Pause: "frozen", Straggle: "tuning"}.get(type(fault), "link")
            holds = (ev.Hold(unit=fault.unit, resource=resource, value=True),)
        self._out += [
            ev.FaultPlanned(t_ns=0, planned_at_ns=at - 2 * MS, for_ns=lasts, **common),
            ev.FaultAsked(t_ns=at - MS, holds=holds, **common),
            ev.FaultExecuted(t_ns=at, **common),
        ]
        if lasts is not None:
            self._out.append(ev.FaultEnded(t_ns=at + lasts, **common))
        if isinstance(fault, Kill) and fault.notice_s is not None:
            self._link_down(fault.unit, at + round(fault.notice_s * SECOND))
            self._link_up(fault.unit, self._back(fault.unit, at))
        if isinstance(fault, Cut):
            self._link_down(fault.unit, at + round(fault.notice_s * SECOND))
            self._link_up(fault.unit, at + round(fault.for_s * SECOND) + 20 * MS)

    def _back(self, unit: str, at: int) -> int | None:
        return next((lf.first_ns for lf in self._lives[unit] if lf.began_ns > at), None)

    def _link_down(self, unit: str, at: int) -> None:
        self._out.append(
            ev.LinkDown(t_ns=at, unit="syncer", incarnation=1, peer=unit, why="silent for 1.0 s")
        )

    def _link_up(self, unit: str, at: int | None) -> None:
        if at is not None:
            self._out.append(ev.LinkUp(t_ns=at, unit="syncer", incarnation=1, peer=unit))


def _when(event: ev.AnyEvent) -> int:
    return event.t_ns


def among(events: Sequence[ev.AnyEvent], *more: ev.AnyEvent) -> list[ev.AnyEvent]:
    """The events with ``more`` put where their instants belong; of equal ones the new come last."""
    return sorted([*events, *more], key=_when)


def journal(events: Iterable[ev.AnyEvent]) -> JournalText:
    """The events as a journal that was read back whole."""
    found = tuple(events)
    return JournalText(found, (), tuple(range(1, len(found) + 1)))


def write(directory: Path, events: Iterable[ev.AnyEvent]) -> Path:
    """Write the events as a run directory's journal; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "journal.jsonl").write_bytes(b"".join(ev.encode(e) for e in events))
    return directory


def change(
    events: Sequence[ev.AnyEvent],
    kind: type[E],
    edit: Callable[[E], ev.AnyEvent | None],
    which: int | None = 0,
) -> list[ev.AnyEvent]:
    """The events with the ``which``-th of ``kind`` edited (None: all); None from ``edit`` drops it.

    Raises ``AssertionError`` when there is none: a mutation that changes nothing proves nothing.
    """
    out: list[ev.AnyEvent] = []
    seen = hit = 0
    total = sum(isinstance(e, kind) for e in events)
    wanted = which if which is None or which >= 0 else total + which
    for event in events:
        if isinstance(event, kind):
            if wanted is None or seen == wanted:
                hit += 1
                new = edit(event)
                if new is not None:
                    out.append(new)
            else:
                out.append(event)
            seen += 1
        else:
            out.append(event)
    assert hit, f"no {kind.__name__} number {which} among {total}"
    return out


def replace(event: E, **fields: Any) -> E:
    """The event with some fields changed."""
    return msgspec.structs.replace(event, **fields)
