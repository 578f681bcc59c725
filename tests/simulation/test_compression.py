"""Four-bit links under trouble: receivers follow, whole fragments go to whoever lost track."""

from __future__ import annotations

from typing import Any

import pytest

from harness.events import Adopted, Merged, UnitNote, UpdateRefused
from tests.simulation.helpers import Story, experiment, fault

INT4: dict[str, Any] = {
    "trainer": "quadratic",
    "scripted_elements": 4096,
    "wire_up": "int4",
    "wire_down": "int4",
}
TROUBLE = {
    "calm": [],
    "kill": [fault("kill", "learner-1", 5)],
    "partition": [fault("partition", "learner-1", 5, 5)],
    "oneway": [fault("partition_oneway", "learner-1", 5, 4, direction="down")],
    "flap": [fault("flap", "learner-1", 5, 8, down_s=1.0, up_s=1.0)],
    "stall": [fault("stall", "learner-1", 5, 5)],
    "syncer": [fault("kill", "syncer", 5), fault("kill", "learner-0", 9)],
}


@pytest.mark.parametrize("name", TROUBLE)
def test_nobody_adopts_anything_but_what_was_sent(name: str) -> None:
    story = Story(experiment(*TROUBLE[name], **INT4))
    assert story.violations() == []
    # Adopting verifies a digest of the bits that come out, so one wrong anchor would be told.
    assert [n for n in story.of(UnitNote) if n.what == "adopt-failed"] == []
    last = {p: max(m.version for m in story.of(Merged) if m.fragment == p) for p in range(4)}
    for unit in range(4):
        newest = {a.fragment: a.version for a in story.of(Adopted, f"learner-{unit}")}
        assert all(newest[p] >= last[p] - 1 for p in range(4)), (unit, newest, last)


@pytest.mark.parametrize("update", ["nan", "bitflip"])
def test_spoilt_changes_are_refused(update: str) -> None:
    spoilt = fault("corrupt_update", "learner-1", 5, 5, how=update)
    story = Story(experiment(spoilt, **INT4))
    assert story.violations() == []
    assert {r.sender for r in story.of(UpdateRefused)} == {"learner-1"}


def bytes_per_step(up: str, down: str) -> float:
    params = {**INT4, "wire_up": up, "wire_down": down, "scripted_elements": 200_000}
    story = Story(experiment(duration_s=10, fragments=24, sync_every=24, **params))
    per_step = story.analysis.report.network.bytes_per_step
    assert per_step is not None
    return per_step


def test_bytes_on_the_wire_against_lockstep() -> None:
    """Measured with framing and reports: at H = P = 24 against 8 bytes a parameter and step."""
    lockstep = 8 * 200_000
    assert lockstep / bytes_per_step("int4", "bf16") > 70
    assert lockstep / bytes_per_step("int4", "int4") > 150
