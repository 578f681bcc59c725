"""The main path: from a composed experiment to a finished journal.

A run proceeds like so:

1. The journal is created and its first line says what was asked for.
2. The runtime starts every unit.
3. Baseline: units run undisturbed until the target's steady state. Not reached in time: no fault
   is executed and the run is inconclusive.
4. The fault window: whatever the plan says is due is done, intent journalled before each act.
5. Everything is healed, last fault first, whatever happened before.
6. The quiet tail: nothing is done; recovery is judged here.
7. The runtime is closed, late events are collected, what is left behind is counted.
8. The last line says how the run ended. A journal without it was cut.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

import msgspec

import harness.rundir
from faults.holds import Holds
from harness.arrivals import notes
from harness.clock import VirtualClock
from harness.compose import Experiment, candidates
from harness.crew import Crew, Done
from harness.errors import ChaosError, ControlError, FaultSkipped, Interrupted
from harness.events import (
    AnyEvent,
    BaselineUnmet,
    FaultAsked,
    FaultEnded,
    FaultExecuted,
    FaultPlanned,
    HarnessFailed,
    Hold,
    ProxyChanged,
    RunEnded,
    RunStarted,
    SteadyState,
    TailEnded,
    WindowEnded,
)
from harness.events import FaultSkipped as Skipped
from harness.journal import Journal
from harness.plan import Due, Planned
from harness.rundir import RunDir
from harness.runtimes.base import opened
from harness.spec import NS

SCHEMA = 1
POLL_NS = 200_000_000
"""Longest uninterrupted wait; bounds how late a signal is acted on."""

Observer = Callable[[AnyEvent], None]


@dataclass
class StopFlag:
    """Set by a signal handler, read between polls."""

    signal_number: int = 0

    def check(self) -> None:
        """Raise :class:`Interrupted` when somebody asked us to stop."""
        if self.signal_number:
            raise Interrupted(self.signal_number)


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """While inside, SIGINT and SIGTERM set the flag; a second one acts as it did before.

    Does nothing outside the main thread, where Python cannot install handlers.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handler(number: int, _frame: FrameType | None) -> None:
        flag.signal_number = number
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handler)
    try:
        yield flag
    finally:
        for number, old in before.items():
            signal.signal(number, old)


SWITCH_S = 0.0005
"""How long one of our threads may keep the others from running. Python's own 5 ms would add up: a
fault that is due would wait for whoever reads the units' lines, more than once on its way."""


@contextmanager
def prompt_threads() -> Iterator[None]:
    """While inside, a thread that is due runs within about ``SWITCH_S``."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(
    experiment: Experiment,
    rundir: RunDir,
    *,
    observer: Observer = lambda _event: None,
    stop: StopFlag | None = None,
    journal: Journal | None = None,
) -> None:
    """Execute the experiment. The journal tells how it went; nothing is raised for that.

    It is a file in ``rundir`` unless another ``journal`` is given. Raises ``JournalError`` when
    the journal itself cannot be written.
    """
    with journal or Journal(rundir.journal) as journal, prompt_threads():
        acts = Acts(experiment, journal, observer, stop or StopFlag())
        acts.log(started(experiment))
        if experiment.control is not None:
            acts.log(msgspec.structs.replace(experiment.control, t_ns=acts.now()))
        status, why = acts.guarded()
        acts.close()
        acts.log(RunEnded(t_ns=acts.now(), status=status, why=why))


def _names(item: Planned) -> dict[str, str]:
    return {"fault": item.fault, "kind": item.kind, "unit": item.unit}


def _keys(item: Planned) -> frozenset[str]:
    """What the fault's acts must have to themselves: the unit's process, or the links, which one
    proxy carries for all and of which some belong to two units; a process is of no matter there."""
    keys = {f"unit {item.unit}"} if item.deed.action != "proxy" else {"links"}
    if item.deed.holds:
        keys = {"links" if r == "link" else f"unit {item.unit}" for r in item.deed.holds}
    return frozenset(keys)


def _other_seed(experiment: Experiment) -> int | None:
    """The target's seed where it is not the run's: one that stood there before."""
    seed: int | None = getattr(experiment.target, "seed", None)
    return None if seed == experiment.seed else seed


def started(experiment: Experiment) -> RunStarted:
    """The first line of the experiment's journal."""
    # A simulated journal is a pure function of spec and seed: no host fact may enter it.
    virtual = isinstance(experiment.runtime.clock, VirtualClock)
    facts = {} if virtual else harness.rundir.host_facts()
    return RunStarted(
        t_ns=experiment.runtime.clock.now_ns(),
        schema=SCHEMA,
        run="simulated" if virtual else experiment.run,
        experiment=experiment.spec.name,
        seed=experiment.seed,
        runtime=experiment.runtime.name,
        target=experiment.target.name,
        proxy=experiment.runtime.proxy,
        units=tuple(u.info for u in experiment.target.units()),
        spec=experiment.spec.resolved(),
        params=dict(experiment.target.params),
        fragments=experiment.target.fragments(),
        commit=facts.get("commit", ""),
        started_at=facts.get("started_at", ""),
        host_fingerprint=facts.get("fingerprint", ""),
        target_seed=_other_seed(experiment),
        repeat=experiment.repeat,
        notes=experiment.notes
        + tuple(
            notes(
                experiment.spec.faults,
                candidates(experiment.target),
                experiment.spec.head.duration_s,
            )
        ),
    )


@dataclass
class Acts:
    """One run's phases. ``run`` goes through them; a test that breaks things itself calls them."""

    experiment: Experiment
    journal: Journal
    observer: Observer
    stop: StopFlag
    active: list[Planned] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runtime = self.experiment.runtime
        self.plan = self.experiment.plan
        self.holds = Holds(self.runtime, self.experiment.standing)
        live = not isinstance(self.runtime.clock, VirtualClock)
        self.crew = Crew(self.runtime.clock, together=live)
        self.away = [item for item in self.experiment.planned if item.deed.from_start]
        """Who is absent from the start; steady state is not theirs to reach."""
        self.steady = self.experiment.target.steady({item.unit for item in self.away})

    def now(self) -> int:
        """The run's clock, in nanoseconds."""
        return self.runtime.clock.now_ns()

    def log(self, event: AnyEvent) -> None:
        """Append to the journal and tell the observer."""
        self.journal.append(event)
        self.observer(event)

    def guarded(self) -> tuple[str, str]:
        """Phases 2 to 6; (status, why) for the last line of the journal."""
        try:
            with opened(self.runtime, self.experiment.target):
                try:
                    if self.baseline():
                        self._window()
                        self.tail()
                finally:
                    self.heal()
        except Interrupted as error:
            return "interrupted", str(error)
        except KeyboardInterrupt:
            return "interrupted", "interrupted by a second signal"
        except ChaosError as error:
            self.failed("run", str(error))
            return "error", str(error)
        except Exception as error:
            # Whatever broke in here is ours, so it must end as a harness error in the journal
            # and not as a lost run.
            self.failed("run", f"{type(error).__name__}: {error}")
            return "error", f"{type(error).__name__}: {error}"
        return "completed", ""

    def close(self) -> None:
        """Phase 7: collect what was still on its way, and count what is left behind."""
        try:
            for event in self.runtime.poll(self.now()):
                self.log(event)
            self.log(self.runtime.residue(self.now()))
        except ChaosError as error:
            self.failed("teardown", str(error))
        finally:
            self.crew.close()

    def baseline(self) -> bool:
        """Phase 3; whether steady state was reached."""
        self._shape_links()
        for item in self.away:
            self.begin(item, self.now())
        deadline_ns = self.now() + round(self.experiment.spec.head.baseline_s_max * NS)
        while True:
            reached, why = self.steady.verdict()
            if reached:
                self.log(SteadyState(t_ns=self.now(), why=why))
                return True
            if self.now() >= deadline_ns:
                self.log(BaselineUnmet(t_ns=self.now(), why=why))
                for item in self.experiment.planned:
                    self._skip(item, self.now(), f"baseline not met: {why}")
                return False
            for event in self.poll(deadline_ns):
                self.steady.observe(event)

    def _shape_links(self) -> None:
        """The experiment's own links; part of what is given, so that no fault is journalled."""
        if not self.experiment.standing:
            return
        self.holds.stand()
        shapes: dict[str, list[str]] = {}
        for (unit, _), state in self.experiment.standing.items():
            rate = "" if state.bandwidth_kb_s is None else f", {state.bandwidth_kb_s:g} kB/s"
            shapes.setdefault(f"{state.latency_ms:g} ms{rate}", []).append(unit)
        said = "; ".join(f"{shape} each way: {', '.join(us)}" for shape, us in shapes.items())
        self.log(ProxyChanged(t_ns=self.now(), what=f"links as the experiment has them: {said}"))

    def _window(self) -> None:
        self.plan.begin(self.now())
        while (due_ns := self.plan.due_ns()) is not None:
            for event in self.poll(due_ns):
                self.plan.observe(event)
            for due in self.plan.take(self.now()):
                if due.what == "window":
                    return
                self._do(due)

    def tail(self) -> None:
        """Phases 5 and 6."""
        for item in self.plan.close_window(self.now()):
            why = "the fault window ended before it was due"
            if item.at_step is not None:
                why = f"global step {item.at_step} was not reached within the fault window"
            elif item.on is not None:
                why = f"no event {item.on.event!r} was seen within the fault window"
            self._skip(item, self.now(), why)
        self.heal()
        self.log(WindowEnded(t_ns=self.now()))
        while (due_ns := self.plan.due_ns()) is not None:
            self.poll(due_ns)
            if self.plan.take(self.now()):
                break
        self.log(TailEnded(t_ns=self.now()))

    def poll(self, until_ns: int) -> list[AnyEvent]:
        """Journal and return what the runtime reports until ``until_ns``, in short slices."""
        self.stop.check()
        events = self.runtime.poll(min(until_ns, self.now() + POLL_NS))
        self.crew.tell()
        for event in events:
            self.log(event)
        return events

    def _do(self, due: Due) -> None:
        item = due.item
        if item is None:
            return
        if due.what == "begin":
            self._begin(item, due.planned_ns)
        elif due.what == "end":
            self._end(item)
        else:
            self._pulse(item, on=due.what == "on")

    def begin(self, item: Planned, planned_ns: int) -> None:
        """Carry a fault out: intent first, then the act, then what came of it."""
        self._begin(item, planned_ns)
        self.crew.settle()

    def _begin(self, item: Planned, planned_ns: int) -> None:
        self._planned(item, planned_ns)
        holds = tuple(
            Hold(unit=item.unit, resource=resource, value=msgspec.to_builtins(value))
            for resource, value in item.deed.holds.items()
        )
        self.log(FaultAsked(t_ns=self.now(), holds=holds, **_names(item)))
        if item.lasting:
            self.active.append(item)
        self.crew.ask(_keys(item), partial(self._act, item), partial(self._begun, item))

    def _begun(self, item: Planned, done: Done) -> None:
        names = _names(item)
        if isinstance(done.error, FaultSkipped):
            self.log(Skipped(t_ns=done.t_ns, why=str(done.error), **names))
        elif isinstance(done.error, ControlError):
            self.log(Skipped(t_ns=done.t_ns, why=f"failed: {done.error}", **names))
            self.failed(f"{item.kind} on {item.unit}", str(done.error))
        elif done.error is not None:
            raise done.error
        else:
            self.log(FaultExecuted(t_ns=done.t_ns, note=done.result, **names))

    def _act(self, item: Planned) -> str:
        if item.deed.action == "kill":
            return self.runtime.kill(item.unit)
        if item.deed.action == "terminate":
            return self.runtime.terminate(item.unit, item.deed.grace_ns)
        if item.deed.action == "damage" and item.deed.damage is not None:
            return self.runtime.damage(item.unit, item.deed.damage)
        if item.deed.action == "proxy":
            return self.runtime.kill_proxy()
        if item.deed.action == "oom":
            return self.runtime.oom(item.unit)
        notes = [
            self.holds.take(item.fault, item.unit, resource, value)
            for resource, value in item.deed.holds.items()
        ]
        return "; ".join(n for n in notes if n)

    def _pulse(self, item: Planned, *, on: bool) -> None:
        if item in self.active:
            self.crew.ask(
                _keys(item), partial(self._change, item, on=on), partial(self._pulsed, item)
            )

    def _change(self, item: Planned, *, on: bool) -> None:
        for resource, value in item.deed.holds.items():
            if on:
                self.holds.take(item.fault, item.unit, resource, value)
            else:
                self.holds.drop(item.fault, item.unit, resource)

    def _pulsed(self, item: Planned, done: Done) -> None:
        if isinstance(done.error, FaultSkipped):
            return  # the victim is gone for the moment; the next pulse finds it again
        if isinstance(done.error, ControlError):
            self.failed(f"{item.kind} on {item.unit}", str(done.error))
        elif done.error is not None:
            raise done.error

    def end(self, item: Planned) -> None:
        """Release a lasting fault; does nothing when it is not on."""
        self._end(item)
        self.crew.settle()

    def _end(self, item: Planned) -> None:
        if item not in self.active:
            return
        self.active.remove(item)
        self.crew.ask(_keys(item), partial(self._release, item), partial(self._ended, item))

    def _release(self, item: Planned) -> tuple[list[str], set[str], list[ControlError]]:
        """Let go of all that the fault holds: (notes, who holds it still, what went wrong)."""
        notes: list[str] = []
        still: set[str] = set()
        failures: list[ControlError] = []
        for resource in self.holds.owned(item.fault, item.unit):
            try:
                note, others = self.holds.drop(item.fault, item.unit, resource)
            except FaultSkipped as error:
                note, others = f"target gone: {error}", ()
            except ControlError as error:
                failures.append(error)
                continue
            still.update(others)
            if note:
                notes.append(note)
        return notes, still, failures

    def _ended(self, item: Planned, done: Done) -> None:
        if done.error is not None:
            raise done.error
        notes, still, failures = done.result
        for error in failures:
            self.failed(f"undo of {item.kind} on {item.unit}", str(error))
        self.log(
            FaultEnded(
                t_ns=done.t_ns,
                note="; ".join(notes),
                still_held=tuple(sorted(still)),
                **_names(item),
            )
        )

    def heal(self) -> None:
        """Phase 5; doing it twice is harmless."""
        for item in reversed(self.active.copy()):
            self._end(item)
        self.crew.settle()
        for problem in self.holds.heal_all():
            self.failed("heal", problem)

    def _planned(self, item: Planned, planned_ns: int) -> None:
        self.log(
            FaultPlanned(
                t_ns=self.now(),
                fault=item.fault,
                kind=item.kind,
                unit=item.unit,
                planned_at_ns=planned_ns,
                for_ns=item.for_ns,
                params=dict(item.params),
            )
        )

    def _skip(self, item: Planned, planned_ns: int, why: str) -> None:
        self._planned(item, planned_ns)
        self.log(
            Skipped(t_ns=self.now(), fault=item.fault, kind=item.kind, unit=item.unit, why=why)
        )

    def failed(self, where: str, why: str) -> None:
        """Journal a failure of our own machinery."""
        self.log(HarnessFailed(t_ns=self.now(), where=where, why=why))
