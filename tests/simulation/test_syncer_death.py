"""The syncer is killed at any instant: nothing that was broadcast is lost, no version comes twice.

Slow durable writes and slow merges make sure that many of the kills hit the middle of one.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from harness.events import Adopted, FaultExecuted, Merged, Step, UnitExited, UnitStarted
from tests.simulation.helpers import Story, experiment, fault

RUNS = 25
KILLS = 8
"""Per run; 200 in all."""

SLOW: dict[str, Any] = {"fsync_ms": [30.0, 90.0], "restart_ms": [50.0, 400.0]}


def story_of(run: int) -> Story:
    """One run with its kills at seeded instants."""
    draw = Random(run)
    faults = [fault("kill", "syncer", round(1 + 4 * k + draw.uniform(0, 3), 4)) for k in range(8)]
    own: dict[str, Any] = {"quorum": draw.choice((1, 2, 4)), "step_time_s": draw.choice((0.1, 0.2))}
    if draw.random() < 0.3:
        own["trainer"] = "quadratic"
    return Story(experiment(*faults, options=SLOW, duration_s=36.0, **own), run)


def killed_in_a_save(story: Story) -> int:
    return sum("in progress" in e.note for e in story.of(FaultExecuted))


@pytest.mark.parametrize("first", range(0, RUNS, 5))
def test_two_hundred_kills_at_any_instant(first: int) -> None:
    killed = in_save = 0
    for run in range(first, first + 5):
        story = story_of(run)
        assert story.violations() == [], run
        answers = {a.check.name: a.finding.valid for a in story.analysis.answers}
        assert [answers[name] for name in ("versions", "nothing-lost", "one-author")] == [True] * 3
        killed += len([e for e in story.of(UnitExited, "syncer") if e.signal == 9])
        in_save += killed_in_a_save(story)
        seen: set[tuple[int, int]] = set()
        for merged in story.of(Merged):
            assert (merged.fragment, merged.version) not in seen
            seen.add((merged.fragment, merged.version))
    assert killed == 5 * KILLS
    assert in_save >= 3, "some of the kills fall between saving and broadcasting"


def test_learners_train_on_and_are_merged_afterwards() -> None:
    story = Story(experiment(fault("kill", "syncer", 5), options={"restart_ms": [4000.0, 4000.0]}))
    assert story.violations() == []
    died = story.of(UnitExited, "syncer")[0].t_ns
    back = story.of(UnitStarted, "syncer")[1].t_ns
    for learner in (f"learner-{i}" for i in range(4)):
        steps = [s for s in story.of(Step, learner) if died < s.t_ns < back]
        assert len(steps) >= 18
        after = [c for m in story.of(Merged) if m.t_ns > back for c in m.contributions]
        # What was trained meanwhile is in the first merges, as one contribution.
        assert max(c.c_steps for c in after if c.unit == learner) >= len(steps)


@pytest.mark.parametrize("ms", [0, 1, 2, 5, 20, 50, 89, 91, 120])
def test_killed_so_long_after_the_collection_closed(ms: int) -> None:
    """Pull, merge, save, broadcast: each in its turn is cut off in the middle."""
    calm = Story(experiment(fault("noop", "syncer", 5), options=SLOW))
    zero = calm.when("f1", FaultExecuted) - 5 * 10**9
    merged = next(m for m in calm.of(Merged) if m.t_ns > zero + 6 * 10**9)
    closed = merged.t_ns - merged.sync_ns
    at_s = round((closed - zero) / 1e9 + ms / 1000, 6)
    story = Story(experiment(fault("kill", "syncer", at_s), options=SLOW))
    assert story.violations() == []
    versions: dict[int, list[int]] = {}
    for event in story.of(Merged):
        versions.setdefault(event.fragment, []).append(event.version)
    for found in versions.values():
        assert found == sorted(set(found))
    held: dict[tuple[str, int], int] = {}
    for adopted in story.of(Adopted):
        key = (adopted.unit, adopted.fragment)
        assert adopted.version >= held.get(key, 0)
        held[key] = adopted.version
