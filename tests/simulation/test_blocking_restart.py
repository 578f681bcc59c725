"""The syncer dies where learners wait for merges: each merge still has exactly its own step."""

from __future__ import annotations

from random import Random

import pytest

from harness.events import Merged, UnitExited
from tests.simulation.helpers import Story, experiment, fault

SLOW = {"fsync_ms": [30.0, 90.0], "restart_ms": [50.0, 400.0]}
"""Many of the kills hit a merge that is saved and not sent."""


@pytest.mark.parametrize("seed", range(1, 6))
def test_every_merge_has_the_step_that_it_is_of(seed: int) -> None:
    draw = Random(seed)
    kills = [fault("kill", "syncer", round(1 + 4 * k + draw.uniform(0, 3), 4)) for k in range(8)]
    every = draw.choice((4, 6))
    table = experiment(
        *kills,
        options=SLOW,
        duration_s=36.0,
        quorum=4,
        grace=False,
        blocking=True,
        sync_every=every,
    )
    story = Story(table, seed)
    assert story.violations() == []
    assert len([e for e in story.of(UnitExited, "syncer") if e.signal == 9]) == 8
    merges = story.of(Merged)
    assert len(merges) > 40
    for merged in merges:
        assert [c.step for c in merged.contributions] == [merged.clock] * 4, merged
