"""Presets: what they set, what may still be chosen, and what contradicts them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import SpecError
from harness.events import Joined, Merged, Step, Waited
from targets.diloco.presets import PRESETS
from targets.diloco.target import create, read_params
from tests.simulation.helpers import Story, experiment

BASE: dict[str, Any] = {"trainer": "scripted", "learners": 3}


def test_every_preset_of_the_parameter_is_in_the_table() -> None:
    for name in PRESETS:
        assert read_params({**BASE, "preset": name}).preset == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("decoupled", {"blocking": False, "quorum": 1, "fragments": 24, "sync_every": 24}),
        ("streaming", {"blocking": True, "quorum": 3, "fragments": 24, "grace": False}),
        ("diloco", {"blocking": True, "quorum": 3, "fragments": 1, "sync_every": 24}),
        ("lockstep", {"blocking": True, "quorum": 3, "fragments": 1, "sync_every": 1}),
    ],
)
def test_what_a_preset_means(name: str, expected: dict[str, Any]) -> None:
    params = read_params({**BASE, "preset": name})
    assert {key: getattr(params, key) for key in expected} == expected


def test_what_is_only_usual_may_be_chosen() -> None:
    params = read_params({**BASE, "preset": "diloco", "merge": "rda", "sync_every": 7})
    assert (params.merge, params.sync_every) == ("rda", 7)


def test_every_contradiction_is_named() -> None:
    given = {**BASE, "preset": "lockstep", "quorum": 2, "sync_every": 4, "blocking": False}
    with pytest.raises(SpecError) as raised:
        read_params(given)
    text = "\n".join(raised.value.problems)
    for name in ("quorum", "sync_every", "blocking"):
        assert f'{name}: preset "lockstep" means' in text
    assert "fragments" not in text


def test_an_unknown_preset_is_a_mistake() -> None:
    with pytest.raises(SpecError, match="preset"):
        read_params({**BASE, "preset": "lookstep"})


def test_a_preset_survives_being_resolved_and_read_again() -> None:
    target = create({**BASE, "preset": "lockstep"}, seed=1)
    assert create(target.params, seed=1).params == target.params


@pytest.mark.parametrize("name", ["streaming", "diloco", "lockstep"])
def test_learners_wait_for_each_merge_and_everybody_is_in_it(name: str) -> None:
    params = {"preset": name, "learners": 3, "trainer": "scripted", "step_time_s": 0.2}
    table = experiment(duration_s=10, quiet_tail_s=10)
    story = Story({**table, "target": {"name": "diloco", "params": params}})
    assert story.violations() == []
    merges = story.of(Merged)
    assert merges
    assert all(len(merge.contributions) == 3 for merge in merges)
    assert story.of(Waited)


def test_lockstep_merges_after_every_step_of_everybody() -> None:
    params = {"preset": "lockstep", "learners": 3, "trainer": "scripted", "step_time_s": 0.2}
    table = experiment(duration_s=10, quiet_tail_s=10)
    story = Story({**table, "target": {"name": "diloco", "params": params}})
    assert len(story.of(Joined)) == 3
    last = story.of(Merged)[-1].clock
    for unit in range(3):
        steps = [s.step for s in story.of(Step, f"learner-{unit}")]
        assert abs(max(steps) - last) <= 1
