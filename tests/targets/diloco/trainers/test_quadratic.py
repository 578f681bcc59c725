"""The quadratic trainer: the contract, and that it goes to the optimum that it knows."""

from __future__ import annotations

import numpy as np
import pytest

from targets.diloco.params import DilocoParams
from targets.diloco.trainers import quadratic
from tests.contracts import trainers as contract

PARAMS = DilocoParams(trainer="quadratic", fragments=5, scripted_elements=300)


def test_contract() -> None:
    contract.check_trainer(PARAMS)


def test_no_jax() -> None:
    contract.check_needs_no_jax(PARAMS)


def test_the_loss_is_zero_at_the_optimum_only() -> None:
    best = quadratic.optimum(PARAMS, 3)
    assert quadratic.loss(PARAMS, 3, best) == 0
    assert quadratic.loss(PARAMS, 3, quadratic.initial(PARAMS, 3)) > 0.5
    assert quadratic.loss(PARAMS, 4, best) > 0.5


def test_training_alone_comes_near_the_optimum() -> None:
    params = DilocoParams(trainer="quadratic", fragments=5, scripted_elements=300, inner_lr=0.02)
    trainer = contract.loaded(params)
    losses = [trainer.step().loss for _ in range(400)]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < losses[0] / 50


def test_loss_of_a_step_is_that_of_the_parameters_before_it() -> None:
    trainer = contract.loaded(PARAMS)
    arrays = trainer.layout.join(contract.held(trainer))
    loss = trainer.step().loss
    assert loss == pytest.approx(quadratic.loss(PARAMS, contract.SEED, arrays), rel=1e-6)


def test_a_larger_batch_has_less_noise() -> None:
    """After one step from the optimum Adam's second moment is the squared noise."""

    def noise(batch: int) -> float:
        params = DilocoParams(trainer="quadratic", fragments=5, batch=batch)
        trainer = quadratic.create(params, 0, 1)
        trainer.load(trainer.layout.split(quadratic.optimum(params, 1)))
        trainer.step()
        return float(np.sqrt(np.mean(trainer._v) / (1 - quadratic.BETA_2)))

    assert noise(4) == pytest.approx(2 * noise(16), rel=1e-5)


def test_warm_up_is_linear_and_starts_after_zero() -> None:
    params = DilocoParams(trainer="quadratic", fragments=5, warmup_steps=4, inner_lr=0.1)
    trainer = contract.loaded(params)
    rates = []
    for _ in range(5):
        trainer.step()
        rates.append(float(trainer.digests()["learning_rate"]))
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
