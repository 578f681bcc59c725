"""The SPMD target: parameters checked, units described, nodes and workers made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harness.errors import SpecError
from harness.events import UnitInfo
from targets import parameters
from targets.base import Node, UnitSpec
from targets.base import Worker as BaseWorker
from targets.counter import SteadyCount
from targets.diloco.trainers import lm
from targets.spmd.launcher import Launcher
from targets.spmd.params import SpmdParams
from targets.spmd.worker import Worker

LAUNCHER = "launcher"


def create(params: Mapping[str, Any], seed: int) -> SpmdTarget:
    """The target; raises ``harness.errors.SpecError`` that names every bad parameter."""
    found = parameters.read(SpmdParams, params)
    problems = found.problems + found.about(found.value.problems())
    if not found.wrong & {"data", "sequence", "workers"}:
        problems += found.about(lm.problems(found.value.as_diloco()))
    if problems:
        raise SpecError("target.params", problems)
    return SpmdTarget(found.value, seed)


def params_schema() -> dict[str, Any]:
    """JSON schema of ``[target] params``, for editors."""
    return parameters.schema(SpmdParams)


class SpmdTarget:
    """Implements ``targets.base.Target``. Nodes and workers are for the simulated runtime."""

    name = "spmd"

    def __init__(self, checked: SpmdParams, seed: int) -> None:
        self.checked = checked
        self.seed = seed
        self.params: Mapping[str, Any] = parameters.plain(checked)
        self._world: Any = None
        """What simulated workers with real gradients share."""
        self._disks: dict[str, list[int]] = {name: [] for name in checked.names()}

    def units(self) -> Sequence[UnitSpec]:
        """The launcher, then the workers, which are learners to faults and reports."""
        params = self.checked
        launcher = UnitSpec(UnitInfo(name=LAUNCHER, role="syncer"), traits=frozenset({"link"}))
        return [launcher, *(self._worker(i) for i in range(params.workers))]

    def _worker(self, number: int) -> UnitSpec:
        params = self.checked
        info = UnitInfo(
            name=params.worker_name(number),
            role="learner",
            group="region-0",
            tokens_per_step=params.batch * params.sequence,
            step_time_ns=params.step_ns,
        )
        return UnitSpec(
            info,
            links=(LAUNCHER,),
            config={"index": number},
            # No "durable": a worker that lost its checkpoints takes the state from any other one.
            traits=frozenset({"steps", "link"}),
        )

    def fragments(self) -> tuple[int, ...]:
        """None: nothing is merged, every step is one step of all."""
        return ()

    def node(self, unit: str) -> Node:
        """A fresh node; raises ``KeyError`` for a name that is none of ours."""
        if unit == LAUNCHER:
            return Launcher(unit, self.checked)
        self._disks[unit]
        return Worker(unit, self.checked, LAUNCHER, barrier=True)

    def worker(self, unit: str) -> BaseWorker:
        """A fresh worker; it finds the checkpoints of earlier lives."""
        from targets.spmd.work import SimulatedLauncher, SimulatedWorker

        if unit == LAUNCHER:
            return SimulatedLauncher()
        if self.checked.gradients:
            return self._gradient_worker(unit)
        return SimulatedWorker(self.checked, self._disks[unit])

    def _gradient_worker(self, unit: str) -> BaseWorker:
        from targets.spmd.gradients import GradientWorker, SharedWorld

        if self._world is None:
            self._world = SharedWorld(self.checked, self.seed, {n: {} for n in self._disks})
        number = self.checked.names().index(unit)
        return GradientWorker(self.checked, self._disks[unit], world=self._world, number=number)

    def module(self) -> str:
        """What a real unit runs."""
        return "targets.spmd.serve"

    def steady(self, absent: Collection[str] = ()) -> SteadyCount:
        """Steady once every worker took ``steady_steps`` steps."""
        present = [name for name in self.checked.names() if name not in absent]
        return SteadyCount(present, self.checked.steady_steps)
