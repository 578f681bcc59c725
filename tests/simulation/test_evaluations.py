"""Evaluations of whole simulated runs: real gradients, the same bytes twice, no virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from harness.events import Evaluated, Merged, Step
from harness.fuzz.act import perform
from tests.simulation.helpers import Story, experiment, fault

LM: dict[str, Any] = {
    "learners": 2,
    "trainer": "lm",
    "batch": 1,
    "sequence": 16,
    "fragments": 4,
    "sync_every": 4,
    "step_time_s": 1.0,
}


def told(story: Story) -> list[Evaluated]:
    return [e for e in story.events if isinstance(e, Evaluated)]


@pytest.mark.slow
def test_a_language_model_is_evaluated_and_the_same_run_again_is_the_same_bytes() -> None:
    table = experiment(
        fault("kill", "learner-0", 5), duration_s=8, quiet_tail_s=6, **LM, evaluate_every=8
    )
    one, two = perform(table, 4), perform(table, 4)
    assert one.journal == two.journal
    found = [e for e in one.events if isinstance(e, Evaluated)]
    assert len(found) >= 2
    assert all(e.accuracy is not None and e.records > 0 for e in found)
    assert found[-1].loss < found[0].loss


@pytest.mark.slow
def test_data_parallel_training_with_gradients_learns_and_rolls_back() -> None:
    params = {
        "workers": 2,
        "batch": 1,
        "sequence": 16,
        "step_time_s": 1.0,
        "steady_steps": 2,
        "gradients": True,
        "evaluate_every": 4,
        "checkpoint_every": 5,
    }
    table = {
        "title": "t",
        "duration_s": 10,
        "quiet_tail_s": 10,
        "target": {"name": "spmd", "params": params},
        "fault": [fault("kill", "worker-1", 7)],
    }
    ran = perform(table, 4)
    assert ran.journal == perform(table, 4).journal
    found = [e for e in ran.events if isinstance(e, Evaluated)]
    assert [e.tokens for e in found] == [e.steps * 2 * 16 for e in found]
    told = {e.steps: e.loss for e in found}
    assert all(told[e.steps] == e.loss for e in found)
    assert len({e.steps for e in found}) >= 3
    # A step that is computed again after the rollback has the same parameters again.
    losses: dict[int, set[float]] = {}
    for event in ran.events:
        if isinstance(event, Step) and event.loss is not None:
            losses.setdefault(event.step, set()).add(event.loss)
    assert all(len(values) <= 2 for values in losses.values())  # one for each worker's batch
    again = [s for s in ran.events if isinstance(s, Step) and s.unit == "worker-0"]
    assert len(again) > len({s.step for s in again}), "nothing was computed again"


@pytest.mark.parametrize("every", [3, 7, 50])
def test_evaluations_come_at_their_steps_and_claim_what_was_merged(every: int) -> None:
    story = Story(
        experiment(
            fault("kill", "learner-1", 6),
            fault("kill", "syncer", 12),
            trainer="quadratic",
            evaluate_every=every,
        )
    )
    found = told(story)
    last = max(e.clock for e in story.events if isinstance(e, Merged))
    assert abs(len(found) - last // every) <= 2
    tokens = [e.tokens for e in found]
    assert tokens == sorted(tokens)
    check = next(i for i in story.analysis.report.invariants if i.name == "tokens-once")
    assert check.valid is True, check.why


def test_evaluating_moves_nothing_else() -> None:
    table = experiment(fault("kill", "learner-1", 6), trainer="quadratic")
    plain = perform(table, 2)
    table["target"]["params"]["evaluate_every"] = 5
    looked = perform(table, 2)
    assert [e for e in looked.events[1:] if not isinstance(e, Evaluated)] == list(plain.events[1:])
