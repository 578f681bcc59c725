"""A tiny target: units that count, each on its own. For testing the harness itself.

A unit takes paced steps that compute nothing, and makes its count durable, so a restarted one
goes on where it was. There is no syncer, no link and no fragment. The parameters ``exit_at_step``,
``mute`` and ``deaf`` break it on purpose, so that the harness can be seen to notice.

``python -m targets.counter CONFIG.json`` is the real unit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from annotated_types import Ge, Gt, Le

from faults.base import Tuning
from harness.errors import SpecError
from harness.events import AnyEvent, Joined, Step, UnitEnded, UnitInfo
from targets.base import (
    Effect,
    Input,
    Node,
    Note,
    Save,
    Started,
    Stop,
    StopAsked,
    UnitSpec,
    Work,
    WorkDone,
    Worker,
)
from targets.diloco.accelerator import Pacer, StopSleeper


@dataclass(frozen=True, kw_only=True)
class CounterParams:
    """Parameters of ``[target] name = "counter"``."""

    units: Annotated[int, Ge(1), Le(64)] = 2
    """Units, named counter-0 to counter-(N-1)."""
    step_time_s: Annotated[float, Gt(0)] = 0.05
    tokens: Annotated[int, Ge(1)] = 100
    """What a step counts as."""
    steady_steps: Annotated[int, Ge(1)] = 3
    """Steps after which a unit counts as steady."""
    exit_at_step: Annotated[int, Ge(0)] = 0
    """counter-0 exits with code 3 at this step of its first life, unasked; 0 never."""
    mute: bool = False
    """counter-0 never takes a step: the baseline is never met."""
    deaf: bool = False
    """Real units ignore their tuning: such faults have no effect."""

    @property
    def step_ns(self) -> int:
        """Nominal duration of a step."""
        return round(self.step_time_s * 1e9)


@dataclass(frozen=True, slots=True)
class Count:
    """The worker's only job: let the time of one step pass."""

    paced: ClassVar[bool] = True
    step: int


class Counted(msgspec.Struct, frozen=True, gc=False):
    """``began_at_ns`` is on the clock of ``now_ns``."""

    began_at_ns: int = 0


class Counter:
    """Node of one unit."""

    def __init__(self, name: str, params: CounterParams) -> None:
        self.name = name
        self.params = params
        self.step = 0
        self._incarnation = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to ``event``; links and ticks mean nothing here."""
        first = self.name == "counter-0"
        match event:
            case Started(incarnation=incarnation, saved=saved):
                self._incarnation = incarnation
                self.step = int(saved.get("step", 0))
                joined = Joined(
                    t_ns=now_ns,
                    unit=self.name,
                    incarnation=incarnation,
                    source="initial",
                    clock=0,
                    step=self.step,
                )
                return (
                    [Note(joined)] if self.params.mute and first else [Note(joined), self._next()]
                )
            case WorkDone(job=Count(step=step), result=Counted(began_at_ns=began_at_ns)):
                self.step = step
                done: list[Effect] = [Save("step", step), Note(self._noted(now_ns, began_at_ns))]
                if first and self._incarnation == 1 and step == self.params.exit_at_step:
                    return [*done, *self._end(now_ns, "had enough", 3)]
                return [*done, self._next()]
            case StopAsked():
                return self._end(now_ns, "asked to stop", 0)
        return []

    def deadline_ns(self) -> int | None:
        """Never: there is nothing to wait for."""
        return None

    def _next(self) -> Work:
        return Work(Count(self.step + 1))

    def _noted(self, now_ns: int, began_at_ns: int) -> Step:
        return Step(
            t_ns=now_ns,
            unit=self.name,
            incarnation=self._incarnation,
            step=self.step,
            began_at_ns=began_at_ns,
            tokens=self.params.tokens,
            nominal_ns=self.params.step_ns,
        )

    def _end(self, now_ns: int, why: str, code: int) -> list[Effect]:
        ended = UnitEnded(t_ns=now_ns, unit=self.name, incarnation=self._incarnation, why=why)
        return [Note(ended), Stop(why, code)]


class CounterWorker:
    """Lets time pass: really with a pacer, otherwise in the simulator only."""

    def __init__(self, params: CounterParams, pacer: Pacer | None = None) -> None:
        self._params = params
        self._pacer = pacer

    def run(self, job: Count) -> Counted:
        """One step."""
        if self._pacer is None:
            return Counted()
        began_at_ns = self._pacer.begin()
        self._pacer.end(began_at_ns)
        return Counted(began_at_ns)

    def cost_ns(self, job: Count) -> int:
        """The nominal step time."""
        return self._params.step_ns


class SteadyCount:
    """Steady once every unit took ``steady_steps`` steps."""

    def __init__(self, units: Sequence[str], steps: int) -> None:
        self._left = dict.fromkeys(units, steps)

    def observe(self, event: AnyEvent) -> None:
        """Only steps matter."""
        if isinstance(event, Step) and event.unit in self._left:
            self._left[event.unit] -= 1

    def verdict(self) -> tuple[bool, str]:
        """(reached, who is missing how many steps)."""
        late = [f"{name} ({left})" for name, left in self._left.items() if left > 0]
        if late:
            return False, f"steps still missing: {', '.join(late)}"
        return True, "every unit counts"


class CounterTarget:
    """Implements ``targets.base.Target``."""

    name = "counter"

    def __init__(self, checked: CounterParams, params: Mapping[str, Any]) -> None:
        self.checked = checked
        self.params = params
        self._names = [f"counter-{i}" for i in range(checked.units)]

    def units(self) -> Sequence[UnitSpec]:
        """All alike; in reports they are learners."""
        tokens, step_ns = self.checked.tokens, self.checked.step_ns
        infos = [
            UnitInfo(name=n, role="learner", tokens_per_step=tokens, step_time_ns=step_ns)
            for n in self._names
        ]
        return [UnitSpec(info, traits=frozenset({"steps", "durable"})) for info in infos]

    def fragments(self) -> tuple[int, ...]:
        """None: nothing is merged."""
        return ()

    def node(self, unit: str) -> Node:
        """A fresh node; raises ``KeyError`` for a name that is none of ours."""
        if unit not in self._names:
            raise KeyError(f"{unit} is no unit of this target")
        return Counter(unit, self.checked)

    def worker(self, unit: str) -> Worker:
        """The worker of the simulated runtime."""
        return CounterWorker(self.checked)

    def module(self) -> str:
        """What a real unit runs."""
        return "targets.counter"

    def steady(self, absent: Collection[str] = ()) -> SteadyCount:
        """See :class:`SteadyCount`."""
        present = [name for name in self._names if name not in absent]
        return SteadyCount(present, self.checked.steady_steps)


def create(params: Mapping[str, Any], seed: int) -> CounterTarget:
    """The target; raises ``harness.errors.SpecError`` that names every bad parameter."""
    from targets import parameters  # not in a unit's process: it needs pydantic

    found = parameters.read(CounterParams, params)
    if found.problems:
        raise SpecError("target.params", found.problems)
    return CounterTarget(found.value, parameters.plain(found.value))


def params_schema() -> dict[str, Any]:
    """JSON schema of ``[target] params``, for editors."""
    from targets import parameters

    return parameters.schema(CounterParams)


class NoLinks:
    """The transport of a unit that speaks to nobody."""

    def start(self) -> None:
        """Nothing to open."""

    def send(self, peer: str, message: Any) -> None:
        """Dropped, as without a link."""

    def disconnect(self, peer: str, why: str) -> None:
        """Nothing to give up."""

    def close(self) -> None:
        """Nothing to end."""


if __name__ == "__main__":
    from targets import live

    def build(unit: live.Unit) -> live.Parts:
        """The parts of the real unit."""
        params = CounterParams(**unit.config.params)
        sleeper = StopSleeper(unit.stopping)
        tuning = Tuning if params.deaf else unit.tuning
        pacer = Pacer(params.step_ns, time.monotonic_ns, sleeper, tuning)
        node = Counter(unit.config.unit, params)
        return live.Parts(node, CounterWorker(params, pacer), lambda sink: NoLinks())

    live.main(sys.argv, build)
