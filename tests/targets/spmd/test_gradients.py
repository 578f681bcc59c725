"""Data-parallel training in virtual time: one trainer with the sum of the batches, honest about
steps that were not finished and states that were rolled back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from targets.diloco import architecture, data
from targets.diloco.evaluation import Evaluate
from targets.diloco.trainers import lm
from targets.spmd.gradients import GradientWorker, SharedWorld
from targets.spmd.messages import Advance, Enter, Form, Held, Keep, Look
from targets.spmd.params import SpmdParams

pytestmark = pytest.mark.slow

SEED = 5
PARAMS = SpmdParams(workers=2, batch=2, sequence=16, gradients=True, warmup_steps=0)


def formed(world: int, step: int = 0, share: int = -1) -> Form:
    return Form(world=world, members=PARAMS.names(), address="", step=step, share=share)


class Two:
    """Two workers of one world, each life a fresh worker."""

    def __init__(self) -> None:
        self.world = SharedWorld(PARAMS, SEED, {name: {} for name in PARAMS.names()})
        self.workers: list[GradientWorker] = []

    def enter(self, form: Form) -> None:
        self.workers = [GradientWorker(PARAMS, [], world=self.world, number=i) for i in range(2)]
        for rank, worker in enumerate(self.workers):
            worker.run(Enter(form, rank))

    def step(self, number: int) -> list[Any]:
        return [worker.run(Advance(number)) for worker in self.workers]

    def params(self) -> list[Any]:
        state = self.world._state
        assert state is not None
        return [np.asarray(p) for p in state.params]


def one_trainer(steps: int) -> tuple[list[Any], list[Any]]:
    """Parameters and first moments of one trainer that takes both batches at once."""
    settings = PARAMS.as_diloco()
    arch = architecture.of_params(settings)
    program = lm.step_program(settings, 2 * PARAMS.batch)
    source = data.open_source(settings, SEED)
    leaves = [np.asarray(a, np.float32) for a in architecture.initial(arch, SEED)]
    state: Any = (leaves, [np.zeros_like(a) for a in leaves], [np.zeros_like(a) for a in leaves])
    for step in range(steps):
        both = [source.shard(i, 1).records(step * PARAMS.batch, PARAMS.batch) for i in range(2)]
        rate = np.float32(lm.learning_rate(settings, step + 1, step + 1))
        decay = np.float32(PARAMS.weight_decay)
        *state, _ = program.call(*state, np.int32(step), rate, decay, np.concatenate(both))
    return [np.asarray(p) for p in state[0]], [np.asarray(m) for m in state[1]]


def test_it_is_one_trainer_with_the_sum_of_the_batches() -> None:
    two = Two()
    two.enter(formed(1))
    for step in range(1, 4):
        two.step(step)
    params, moments = one_trainer(3)
    assert two.world._state is not None
    for ours, theirs in zip(two.world._state.first, moments, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-6)
    # Where a gradient is next to nothing, AdamW makes a whole step of its last bits.
    apart = [np.abs(a - b).mean() for a, b in zip(two.params(), params, strict=True)]
    assert max(apart) < 1e-5


def test_a_step_that_somebody_did_not_finish_is_no_step() -> None:
    two = Two()
    two.enter(formed(1))
    two.step(1)
    before = two.params()
    two.workers[0].run(Advance(2))
    two.workers[0].run(Keep(2))
    assert two.workers[0].run(Look()) == Held((0,))
    assert all(np.array_equal(a, b) for a, b in zip(two.params(), before, strict=True))
    two.workers[1].run(Advance(2))
    assert two.workers[0].run(Look()) == Held((0, 2))


def test_what_is_computed_again_after_a_rollback_has_the_same_bits() -> None:
    two = Two()
    two.enter(formed(1))
    two.step(1)
    for worker in two.workers:
        worker.run(Keep(1))
    two.step(2)
    two.step(3)
    once = two.params()
    two.enter(formed(2, step=1))
    assert not np.array_equal(two.params()[0], once[0])
    two.step(2)
    two.step(3)
    assert all(np.array_equal(a, b) for a, b in zip(two.params(), once, strict=True))


def test_a_checkpoint_of_one_is_shared_with_all() -> None:
    two = Two()
    two.enter(formed(1))
    two.step(1)
    two.workers[1].run(Keep(1))
    after = two.params()
    two.enter(formed(2, step=1, share=1))
    assert all(np.array_equal(a, b) for a, b in zip(two.params(), after, strict=True))


def test_whoever_is_of_an_older_world_fails_as_in_a_collective() -> None:
    two = Two()
    two.enter(formed(1))
    old = two.workers[0]
    two.enter(formed(2))
    with pytest.raises(RuntimeError, match="world 1 is over"):
        old.run(Advance(1))


def test_only_the_present_parameters_are_evaluated() -> None:
    two = Two()
    two.enter(formed(1))
    two.step(1)
    judged = two.workers[0].run(Evaluate(1, 64, 1))
    want = lm.evaluate(PARAMS.as_diloco(), two.params(), SEED)
    assert (judged.loss, judged.accuracy) == (want.loss, want.accuracy)
    with pytest.raises(RuntimeError, match="gone"):
        two.workers[0].run(Evaluate(2, 128, 2))
