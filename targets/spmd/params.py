"""Settings of the SPMD target. A plain dataclass: a unit's process need not import pydantic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from targets.diloco.params import DilocoParams

Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class SpmdParams:
    """Parameters of ``[target] name = "spmd"``."""

    workers: Annotated[int, Ge(1), Le(64)] = 4
    """Processes of one device each, named worker-0 to worker-(N-1)."""
    variant: Literal["checkpoint-restart", "elastic"] = "checkpoint-restart"
    """After a death, wait for every worker; or go on with those that are there, and take the
    others back at a checkpoint. Both start all processes anew."""
    checkpoint_every: Positive = 10
    """Steps between two checkpoints; what was done since the last one is lost with a world."""
    workers_min: Positive = 1
    """Elastic only: the smallest world."""
    regroup_s: Annotated[float, Gt(0)] = 2.0
    """Elastic only: how long after the last arrival the missing are waited for."""
    steady_steps: Positive = 10
    """Steps that every worker has taken in a steady state."""
    heartbeat_ms: Positive = 250
    """Workers and launcher say something at least this often."""
    silence_ms_max: Positive = 5000
    """A worker that was not heard for so long ends its world: a collective never gives up a
    frozen peer by itself."""

    gradients: bool = False
    """Simulated runtime only: real gradients in virtual time, instead of steps that are only
    counted. Real units always compute."""
    evaluate_every: Annotated[int, Ge(0)] = 0
    """Steps between two evaluations of the parameters on held-out data, by the worker of rank 0;
    0: never."""

    step_time_s: Annotated[float, Ge(0)] = 0.1
    """Emulated duration of one step; 0 runs as fast as the host can."""
    batch: Positive = 8
    """Sequences per step and worker; a world of n workers has a global batch of n times that."""
    sequence: Annotated[int, Ge(8)] = 64
    """Bytes per sequence."""
    model: Literal["micro", "tiny", "small", "base", "100m"] = "tiny"
    """As for the diloco target."""
    data: str = "cpython-docs"
    """cpython-docs, cpython-library, synthetic, or the path of a file or folder to train on."""
    inner_lr: Annotated[float, Gt(0)] = 3e-3
    warmup_steps: Annotated[int, Ge(0)] = 20
    horizon_steps: Annotated[int, Ge(0)] = 0
    """As for the diloco target."""
    weight_decay: Annotated[float, Ge(0)] = 0.1

    def problems(self) -> list[str]:
        """Every mistake that needs more than one field to see; empty when sound."""
        found = []
        if self.workers_min > self.workers:
            found.append(
                f"workers_min is {self.workers_min} but there are only {self.workers} workers"
            )
        if self.silence_ms_max <= 2 * self.heartbeat_ms:
            found.append(
                f"silence_ms_max is {self.silence_ms_max} but heartbeat_ms is "
                f"{self.heartbeat_ms}: allow at least two heartbeats"
            )
        return found

    @property
    def step_ns(self) -> int:
        """Nominal duration of a step."""
        return round(self.step_time_s * 1e9)

    def worker_name(self, index: int) -> str:
        """Name of the worker with number ``index``."""
        return f"worker-{index}"

    def names(self) -> tuple[str, ...]:
        """All workers' names, in order."""
        return tuple(self.worker_name(i) for i in range(self.workers))

    def as_diloco(self) -> DilocoParams:
        """The same model, data and inner optimizer as settings of the other target, whose modules
        do the training: a worker is to a world what a learner is to a cluster."""
        return DilocoParams(
            learners=self.workers,
            trainer="lm",
            fragments=1,
            sync_every=1,
            heartbeat_ms=self.heartbeat_ms,
            silence_ms_max=self.silence_ms_max,
            step_time_s=self.step_time_s,
            batch=self.batch,
            sequence=self.sequence,
            model=self.model,
            data=self.data,
            inner_lr=self.inner_lr,
            warmup_steps=self.warmup_steps,
            horizon_steps=self.horizon_steps,
            weight_decay=self.weight_decay,
        )
