"""Evaluations: when the syncer asks for one, of which tokens, and what its worker answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import events as ev
from harness.errors import SpecError
from targets.base import Save, Started, WorkDone, WorkFailed
from targets.diloco import codec
from targets.diloco.evaluation import Evaluate, Evaluations, Judged
from targets.diloco.messages import Merge, MergeInput, MergeResult
from targets.diloco.params import DilocoParams
from targets.diloco.target import create
from targets.diloco.trainers import TRAINERS, load, quadratic
from targets.diloco.work import SyncerWorker, syncer_worker
from tests.targets.diloco.test_syncer import Script

# --- when, and of how many tokens ---------------------------------------------------------------


def test_a_token_counts_by_the_share_of_the_fragments_it_was_merged_into() -> None:
    found = Evaluations(2, (100, 300))
    found.merged(0, 40)
    assert found.due(2, 7) == Evaluate(2, 10, 7)
    found.answered()
    found.merged(1, 40)
    assert found.due(4, 9) == Evaluate(4, 40, 9)


def test_due_once_for_every_multiple_that_was_passed() -> None:
    found = Evaluations(10, (1,))
    asked = []
    for clock in (3, 9, 11, 12, 19, 20, 35, 36):
        if found.due(clock, 0) is not None:
            asked.append(clock)
            found.answered()
    assert asked == [11, 20, 35]


def test_a_slow_host_is_not_asked_again_before_it_has_answered() -> None:
    found = Evaluations(1, (1,))
    assert found.due(1, 0) is not None
    assert found.due(2, 0) is None
    found.answered()
    assert found.due(3, 0) is not None


def test_never_when_it_was_not_asked_for() -> None:
    found = Evaluations(0, (1,))
    assert all(found.due(clock, 0) is None for clock in range(1, 50))


# --- the syncer's node --------------------------------------------------------------------------


def stepped(script: Script, steps: int, first: int = 1) -> None:
    """``steps`` global steps of one learner, 100 tokens in each merge."""
    for step in range(first, first + steps):
        script.report(0, step)
        script.whole_step((0, {"since_step": step - 1, "step": step}))


def evaluating(every: int = 2, **more: Any) -> Script:
    settings = {"learners": 1, "trainer": "quadratic", "stale_steps_max": 50, **more}
    script = Script(evaluate_every=every, **settings)
    script.join(0)
    return script


def test_the_syncer_asks_beside_its_merges_and_says_what_came() -> None:
    script = evaluating()
    stepped(script, 1)
    assert script.jobs(Evaluate) == []
    stepped(script, 1, first=2)
    (job,) = script.jobs(Evaluate)
    assert job == Evaluate(2, 100, 2)
    script.do(WorkDone(job, Judged(1.5, 0.25, 0.5, 8)))
    (told,) = script.noted(ev.Evaluated)
    assert (told.clock, told.tokens, told.steps) == (2, 100, 2)
    assert (told.loss, told.accuracy, told.floor, told.records) == (1.5, 0.25, 0.5, 8)


def test_nobody_is_asked_by_default() -> None:
    script = evaluating(every=0)
    for step in range(1, 6):
        stepped(script, 1, first=step)
        assert script.jobs(Evaluate) == []


def test_an_evaluation_that_failed_is_said_and_the_next_one_is_asked_for() -> None:
    script = evaluating()
    stepped(script, 2)
    (job,) = script.jobs(Evaluate)
    script.do(WorkFailed(job, "out of memory"))
    (note,) = script.noted(ev.UnitNote)
    assert (note.what, note.detail) == ("evaluation-failed", "out of memory")
    stepped(script, 2, first=3)
    assert len(script.jobs(Evaluate)) == 1


def test_tokens_are_counted_across_lives() -> None:
    script = evaluating()
    saved: dict[str, Any] = {}
    for step in range(1, 4):
        stepped(script, 1, first=step)
        saved |= {e.key: e.value for e in script.done if isinstance(e, Save)}
    again = evaluating(saved=saved, life=2)
    again.report(0, 4)
    again.whole_step((0, {"since_step": 3, "step": 4}))
    (job,) = again.jobs(Evaluate)
    assert (job.clock, job.tokens) == (4, 200)


# --- workers ------------------------------------------------------------------------------------

PARAMS = DilocoParams(learners=2, trainer="quadratic", fragments=2, sync_every=2, evaluate_every=2)


def test_the_worker_judges_what_it_holds() -> None:
    worker = syncer_worker(PARAMS, 3)
    want = quadratic.loss(PARAMS, 3, quadratic.initial(PARAMS, 3))
    assert worker.run(Evaluate(2, 0, 0)) == Judged(want, None, 0.0, 0)
    assert worker.cost_ns(Evaluate(2, 0, 0)) == 0


def test_what_was_bound_is_judged_even_if_a_merge_came_between() -> None:
    worker = syncer_worker(PARAMS, 3)
    assert isinstance(worker, SyncerWorker)
    before = worker.run(Evaluate(0, 0, 0))
    bound = worker.bind(Evaluate(0, 0, 0))
    flat = np.zeros_like(worker.theta(0))
    for version in (1, 2, 3):  # each merge writes where the one before the last was
        given = MergeInput("learner-0", 1.0, codec.pack([flat], "f32"))
        assert isinstance(worker.run(Merge(version, 0, version, (given,))), MergeResult)
    assert bound() == before
    assert worker.run(Evaluate(0, 0, 0)) != before


def test_every_trainer_judges_or_says_that_it_cannot() -> None:
    for name in TRAINERS:
        params = DilocoParams(trainer=name, fragments=2, sync_every=2)  # type: ignore[arg-type]
        module = load(name)
        assert (module.evaluate(params, module.initial(params, 1), 1) is None) == (
            name == "scripted"
        )


def test_a_trainer_that_learns_nothing_cannot_be_evaluated() -> None:
    with pytest.raises(SpecError, match="evaluate_every: the scripted trainer learns nothing"):
        create({"trainer": "scripted", "evaluate_every": 5}, 1)


def test_started_without_anything_saved_begins_at_nothing() -> None:
    script = evaluating()
    script.do(Started(1, {}))
    assert script.syncer._evaluations.tokens == 0
