"""Links so slow that one fragment takes longer than the silence bound: busy is not silent."""

from __future__ import annotations

from typing import Any

import pytest

from harness.events import FaultExecuted, LinkDown, LinkUp, Merged
from harness.sim.cluster import Cluster
from tests.simulation.helpers import Story, experiment, fault

S = 1_000_000_000
FRAGMENT_BYTES = 400_000
KB_S = 100
SLOW: dict[str, Any] = {
    "options": {"bandwidth_kb_s": KB_S},
    "duration_s": 90.0,
    "scripted_elements": FRAGMENT_BYTES,  # in four fragments, of four bytes each
    "pull_ms_max": 30_000,
    "step_time_s": 1.0,
    "quorum": 4,
    "sync_every": 8,
    "stale_steps_max": 80,
}
"""A fragment takes 4 s, the silence bound is 1.5 s."""


def downs(story: Story) -> list[str]:
    return [f"{e.t_ns / S:.1f} {e.unit} {e.peer}: {e.why}" for e in story.of(LinkDown)]


def test_a_fragment_that_takes_longer_than_the_silence_bound_is_no_silence() -> None:
    story = Story(experiment(**SLOW))
    assert downs(story) == []
    assert len(story.of(LinkUp)) == 8
    heard = {c.unit for merged in story.of(Merged) for c in merged.contributions}
    assert heard == {f"learner-{i}" for i in range(4)}
    assert story.violations() == []


def test_without_what_arrives_in_parts_the_links_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counter-proof: nothing else keeps these links up."""
    monkeypatch.setattr(Cluster, "arriving", lambda *_: None)
    assert any("heard nothing" in down for down in downs(Story(experiment(**SLOW))))


@pytest.mark.parametrize("kind", ["partition", "partition_oneway", "pause"])
def test_a_peer_that_falls_silent_in_the_middle_is_noticed_all_the_same(kind: str) -> None:
    story = Story(experiment(fault(kind, "learner-1", 40, 6), **SLOW))
    (done,) = story.of(FaultExecuted)
    noticed = [
        e.t_ns - done.t_ns
        for e in story.of(LinkDown, "syncer")
        if e.peer == "learner-1" and "heard nothing" in e.why
    ]
    assert noticed
    assert 1.4 * S <= noticed[0] <= 2.0 * S
