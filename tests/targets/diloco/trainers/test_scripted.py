"""The scripted trainer keeps the contract, apart from learning anything."""

from __future__ import annotations

from targets.diloco.params import DilocoParams
from tests.contracts import trainers as contract

PARAMS = DilocoParams(trainer="scripted", fragments=5, scripted_elements=300)


def test_contract() -> None:
    contract.check_trainer(PARAMS, learns=False)


def test_no_jax() -> None:
    contract.check_needs_no_jax(PARAMS)


def test_steps_change_nothing_and_have_no_loss() -> None:
    trainer = contract.loaded(PARAMS)
    before = contract.held(trainer)
    assert trainer.step().loss is None
    assert contract.same(before, contract.held(trainer))
    assert trainer.digests()["step"] == "1"
