"""Data-parallel training with real gradients in virtual time.

All simulated workers are in this process, so the state that each would hold a copy of is held
once. A step is what it is on a real cluster: each worker takes the gradient of its own batch, from
its own shard, at the parameters after the step before; the gradients are averaged in the order of
ranks; one AdamW update follows. That is one trainer with the sum of the batches. The update is
made when the last member has done its part and not before: a step that somebody died in is no
step, and no checkpoint of it can be kept.

States are immutable, so checkpoints share what they hold. As on a real worker's disk they outlive
its processes, and a step that is computed again after a rollback gives the same bits again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from targets.diloco import architecture, compiled, data
from targets.diloco.architecture import Architecture
from targets.diloco.evaluation import Evaluate, Judged
from targets.diloco.trainers import lm
from targets.spmd.messages import Advance, Advanced, Enter, Entered, Form, Held, Keep, Look
from targets.spmd.params import SpmdParams
from targets.spmd.work import SimulatedWorker

Leaves = list[Any]
"""JAX arrays, float32, in the order of ``architecture.tensors``."""


@dataclass(frozen=True, slots=True)
class Replica:
    """The state after ``step``, which every member has."""

    step: int
    params: Leaves
    first: Leaves
    second: Leaves


Disk = dict[int, Replica]
"""A worker's checkpoints by step."""


@dataclass
class SharedWorld:
    """The state of the world that is running. One object serves a whole run."""

    params: SpmdParams
    seed: int
    disks: dict[str, Disk] = field(default_factory=dict)
    form: Form | None = None
    _state: Replica | None = None
    _done: dict[int, Leaves] = field(default_factory=dict)
    """Rank to gradient, of the step under way."""
    _keeping: list[tuple[int, str]] = field(default_factory=list)
    """Checkpoints asked for by members that are done with a step which others are not."""

    @cached_property
    def _jax(self) -> Any:
        return compiled.start_jax()

    @cached_property
    def _source(self) -> data.Source:
        return data.open_source(self.params.as_diloco(), self.seed)

    def enter(self, form: Form, unit: str) -> None:
        """``unit`` takes up the state of ``form``; the first member's entry makes a new world."""
        if self.form is None or self.form.world < form.world:
            self.form = form
            self._state = self._found(form, unit)
            self._done.clear()
            self._keeping.clear()

    def _found(self, form: Form, unit: str) -> Replica:
        if form.step == 0:
            arrays = architecture.initial(architecture.SIZES[self.params.model], self.seed)
            put = [self._jax.device_put(np.array(a, np.float32, order="C")) for a in arrays]
            zeros = [self._jax.device_put(np.zeros(a.shape, np.float32)) for a in arrays]
            return Replica(0, put, zeros, list(zeros))
        donor = form.members[form.share] if form.share >= 0 else unit
        return self.disks[donor][form.step]

    def advance(self, world: int, rank: int, number: int, step: int) -> float:
        """The part of the member with that rank and number in ``step``; its loss.

        Raises ``RuntimeError`` when the world is over, as a collective does.
        """
        form, state = self.form, self._state
        if form is None or state is None or form.world != world or state.step != step - 1:
            raise RuntimeError(f"world {world} is over")
        batch = self.params.batch
        records = self._source.shard(number, 1).records((step - 1) * batch, batch)
        loss, gradient = gradient_program(self._arch, batch, self.params.sequence)(
            state.params, records
        )
        self._done[rank] = gradient
        if len(self._done) == len(form.members):
            self._update(state)
        return float(loss)

    def _update(self, state: Replica) -> None:
        members = [self._done[rank] for rank in sorted(self._done)]
        self._done = {}
        mean = _mean_program(len(members))(members)
        step = state.step + 1
        rate = np.float32(lm.learning_rate(self.params.as_diloco(), step, step))
        decay = np.float32(self.params.weight_decay)
        params, first, second, _ = update_program(self._arch)(
            state.params, state.first, state.second, np.int32(state.step), rate, decay, mean
        )
        self._state = Replica(step, params, first, second)
        due, self._keeping = self._keeping, []
        for at, unit in due:
            self.keep(unit, at)

    def keep(self, unit: str, step: int) -> None:
        """Keep the state after ``step`` for ``unit``, once all members have taken that step."""
        state = self._state
        assert state is not None
        if state.step < step:
            self._keeping.append((step, unit))
        elif state.step == step:
            disk = self.disks[unit]
            for old in sorted(s for s in disk if s < step)[:-1]:
                del disk[old]
            disk[step] = state
            for beyond in [s for s in disk if s > step]:
                del disk[beyond]

    def judged(self, step: int) -> Judged:
        """The parameters after ``step`` on held-out data. Raises ``RuntimeError`` when they are
        not the present ones."""
        state = self._state
        if state is None or state.step != step:
            raise RuntimeError(f"the parameters after step {step} are gone")
        found = lm.evaluate(
            self.params.as_diloco(), [np.asarray(p) for p in state.params], self.seed
        )
        records = found.tokens // self.params.sequence
        return Judged(found.loss, found.accuracy, found.floor, records)

    @property
    def _arch(self) -> Architecture:
        return architecture.SIZES[self.params.model]


@dataclass
class GradientWorker(SimulatedWorker):
    """A simulated worker that computes. ``held`` is not used: ``world`` has the disks."""

    world: SharedWorld = field(kw_only=True)
    number: int = field(kw_only=True)
    _form: Form | None = None
    _rank: int = 0

    def run(self, job: Any) -> Any:
        """Carry out ``job``."""
        unit = self.params.worker_name(self.number)
        match job:
            case Look():
                return Held((0, *sorted(self.world.disks[unit])))
            case Enter(form=form, rank=rank):
                self._form, self._rank = form, rank
                self.world.enter(form, unit)
                return Entered()
            case Advance(step=step):
                assert self._form is not None
                loss = self.world.advance(self._form.world, self._rank, self.number, step)
                tokens = self.params.batch * self.params.sequence
                return Advanced(tokens=tokens, nominal_ns=self.params.step_ns, loss=loss)
            case Keep(step=step):
                self.world.keep(unit, step)
                return None
            case Evaluate(steps=steps):
                return self.world.judged(steps)
        return super().run(job)


# --- programs -----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def gradient_program(arch: Architecture, batch: int, sequence: int) -> Any:
    """(leaves, uint8 [batch, sequence + 1]) to (mean loss, gradient leaves), compiled."""
    import jax

    from targets.diloco.training import gradient

    leaves = _leaf_shapes(arch)
    records = jax.ShapeDtypeStruct((batch, sequence + 1), np.uint8)
    return jax.jit(gradient(arch)).lower(leaves, records).compile()


@lru_cache(maxsize=8)
def update_program(arch: Architecture) -> Any:
    """The inner step of ``targets.diloco.training`` with the gradient given in place of data."""
    import jax

    from targets.diloco.training import inner_step

    def given(mean_loss: Any, params: Any, gradients: Any) -> Any:
        return jax.numpy.float32(0), gradients

    leaves = _leaf_shapes(arch)
    scalar, count = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.int32)
    step = jax.jit(inner_step(arch, given))
    return step.lower(leaves, leaves, leaves, count, scalar, scalar, leaves).compile()


@lru_cache(maxsize=8)
def _mean_program(size: int) -> Any:
    import jax

    def mean(members: Sequence[Leaves]) -> Leaves:
        return [sum(parts[1:], parts[0]) / np.float32(size) for parts in zip(*members, strict=True)]

    return jax.jit(mean)


def _leaf_shapes(arch: Architecture) -> list[Any]:
    import jax

    return [jax.ShapeDtypeStruct(t.shape, np.float32) for t in architecture.tensors(arch)]
