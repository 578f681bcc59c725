"""The arithmetic behind the nodes: real workers with JAX, and their twins in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from targets.diloco import architecture, codec, data
from targets.diloco.accelerator import Pacer
from targets.diloco.evaluation import Evaluate, Judged
from targets.diloco.trainers import lm
from targets.spmd.checkpoints import CheckpointError, Checkpoints, Flat
from targets.spmd.messages import (
    Advance,
    Advanced,
    CloseWorlds,
    Enter,
    Entered,
    Held,
    Keep,
    Look,
    OpenWorld,
)
from targets.spmd.params import SpmdParams
from targets.spmd.world import MeetingPoint, World, initial_state, open_meeting_point

WAIT_SHARE = 2
"""Waiting for the others costs an emulated chip nothing while it is shorter than half a step: the
pacer takes it from the time that the step leaves (see ``Pacer.begin``). Longer is journalled."""


class SpmdWorker:
    """A real worker: its part of the world, its data and its checkpoints."""

    def __init__(
        self,
        params: SpmdParams,
        number: int,
        seed: int,
        checkpoints: Checkpoints,
        pacer: Pacer,
        cache_dir: str,
    ) -> None:
        self._params = params
        self._settings = params.as_diloco()
        self._seed = seed
        self._checkpoints = checkpoints
        self._pacer = pacer
        # Always in the order of the first life, so that what is computed again is the same.
        self._shard = data.open_source(self._settings, seed).shard(number, 1)
        self._world = World(params.model, params.batch, params.sequence, cache_dir)
        self._snapshot: Callable[[], Flat] | None = None

    def compute(self, job: Any) -> Any:
        """Carry out a main-lane job."""
        match job:
            case Look():
                return self._look()
            case Enter(form=form, rank=rank):
                return self._enter(form.address, rank, len(form.members), form.step, form.share)
            case Advance(step=step):
                return self._advance(step)
        raise TypeError(f"not a job of a worker's main lane: {type(job).__name__}")

    def publish(self) -> None:
        """What is kept from now on is the present state."""
        self._snapshot = self._world.snapshot()

    def bind(self, job: Any) -> Callable[[], Any]:
        """A :class:`Keep` or an :class:`Evaluate` of the state published last."""
        if isinstance(job, Evaluate) and self._snapshot is not None:
            return partial(self._judge, self._snapshot)
        if not isinstance(job, Keep) or self._snapshot is None:
            raise TypeError(f"not a job of a worker's other lanes: {type(job).__name__}")
        return partial(self._keep, job.step, self._snapshot)

    def run(self, job: Any) -> Any:
        """Everything at once, for whoever has no lanes."""
        if isinstance(job, Keep | Evaluate):
            return self.bind(job)()
        result = self.compute(job)
        self.publish()
        return result

    def cost_ns(self, job: Any) -> int:
        """The nominal step time; only the simulator asks, and it has workers of its own."""
        return self._params.step_ns

    def _look(self) -> Held:
        whole, damaged = [0], []
        for step in self._checkpoints.steps():
            try:
                self._checkpoints.load(step, self._world.values)
            except CheckpointError as error:
                damaged.append(str(error))
            else:
                whole.append(step)
        return Held(tuple(whole), tuple(damaged))

    def _enter(self, address: str, rank: int, size: int, step: int, share: int) -> Entered:
        self._world.meet(address, rank, size)
        self._world.prepare()
        flat: Flat | None = None
        if step == 0:
            flat = initial_state(self._params.model, self._seed)
        elif share in (-1, rank):
            flat = self._checkpoints.load(step, self._world.values)
        if share >= 0:
            flat = self._world.share(flat)
        assert flat is not None
        self._world.load(flat)
        return Entered(codec.digest([flat]), self._world.source, self._world.took_ns)

    def _advance(self, step: int) -> Advanced:
        records = self._shard.records((step - 1) * self._params.batch, self._params.batch)
        # The moments are as old as the parameters: a checkpoint holds both.
        rate = lm.learning_rate(self._settings, step, step)
        arrived_ns = self._pacer.begin()
        self._world.barrier()
        met_ns = time.monotonic_ns()
        waited = met_ns - arrived_ns > self._pacer.nominal_ns // WAIT_SHARE
        if waited:
            met_ns = self._pacer.begin()
        loss = self._world.step(step - 1, rate, self._params.weight_decay, records)
        paced = self._pacer.end(met_ns)
        return Advanced(
            tokens=self._params.batch * self._params.sequence,
            began_at_ns=max(paced.began_at_ns, met_ns) if waited else paced.began_at_ns,
            compute_ns=paced.compute_ns,
            nominal_ns=self._pacer.nominal_ns,
            loss=loss,
            waited=(arrived_ns, met_ns) if waited else None,
        )

    def _judge(self, snapshot: Callable[[], Flat]) -> Judged:
        tensors = architecture.tensors(architecture.SIZES[self._params.model])
        ends = np.cumsum([t.elements for t in tensors])
        parts = np.split(snapshot()[: ends[-1]], ends[:-1])
        arrays = [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
        found = lm.evaluate(self._settings, arrays, self._seed)
        records = found.tokens // self._params.sequence
        return Judged(found.loss, found.accuracy, found.floor, records)

    def _keep(self, step: int, snapshot: Callable[[], Flat]) -> None:
        self._checkpoints.save(step, snapshot())


class LauncherWorker:
    """Holds the meeting points of the worlds that somebody may still be in."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._open: dict[int, MeetingPoint] = {}

    def run(self, job: Any) -> Any:
        """See :class:`OpenWorld` and :class:`CloseWorlds`."""
        match job:
            case OpenWorld(world=world, size=size):
                address, self._open[world] = open_meeting_point(self._host, size)
                return address
            case CloseWorlds(before=before):
                for world in [w for w in self._open if w < before]:
                    self._open.pop(world).shutdown()
                return None
        raise TypeError(f"not a job of the launcher: {type(job).__name__}")

    def cost_ns(self, job: Any) -> int:
        """Nothing; only the simulator asks, and it has workers of its own."""
        return 0


# --- virtual time -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Virtual durations in ns."""

    look_ns: int = 5_000_000
    enter_ns: int = 500_000_000
    """Meeting, loading the program, taking up the state."""
    keep_ns: int = 10_000_000
    open_ns: int = 20_000_000
    step_ns: int = 1_000_000
    """A step when ``step_time_s`` is 0."""


@dataclass
class SimulatedWorker:
    """Counts steps. ``held`` is its disk and outlives it."""

    params: SpmdParams
    held: list[int]
    costs: Costs = field(default_factory=Costs)

    def run(self, job: Any) -> Any:
        """Carry out ``job``."""
        match job:
            case Look():
                return Held((0, *self.held))
            case Enter():
                return Entered()
            case Advance():
                tokens = self.params.batch * self.params.sequence
                return Advanced(tokens=tokens, nominal_ns=self.params.step_ns)
            case Keep(step=step):
                self.held[:] = [*(s for s in self.held if s < step), step][-2:]
                return None
        raise TypeError(f"not a job of a worker: {type(job).__name__}")

    def cost_ns(self, job: Any) -> int:
        """Virtual duration of ``job``."""
        match job:
            case Look():
                return self.costs.look_ns
            case Enter():
                return self.costs.enter_ns
            case Keep():
                return self.costs.keep_ns
            case Evaluate():
                return 0
        return self.params.step_ns or self.costs.step_ns


@dataclass
class SimulatedLauncher:
    """Opens nothing."""

    costs: Costs = field(default_factory=Costs)
    opened: list[int] = field(default_factory=list)

    def run(self, job: Any) -> Any:
        """Carry out ``job``."""
        if isinstance(job, OpenWorld):
            self.opened.append(job.world)
            return f"world-{job.world}"
        return None

    def cost_ns(self, job: Any) -> int:
        """Virtual duration of ``job``."""
        return self.costs.open_ns
