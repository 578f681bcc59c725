"""Recovery from a peer on the simulated cluster: everything that may go wrong on the way.

A slow link between learners stretches a transfer so that faults can hit the middle of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.events import Adopted, Joined, Merged, Step, UnitExited, UnitNote
from tests.simulation.helpers import Story, experiment, fault

MS = 1_000_000

SLOW: dict[str, Any] = {"bandwidth_kb_s": 50.0}
"""Three times 16 KiB of state then take about a second."""

PATIENT: dict[str, Any] = {"recovery_steps_max": 30}


def rejoined(story: Story, unit: str = "learner-1", life: int = 2) -> Joined:
    """How that life of the unit came to its state."""
    (joined,) = [j for j in story.of(Joined, unit) if j.incarnation == life]
    return joined


def gave_up(story: Story, unit: str = "learner-1") -> list[str]:
    return [n.detail for n in story.of(UnitNote, unit) if n.what == "recovery"]


def mid_transfer(**params: Any) -> tuple[float, Story]:
    """(seconds after the kill at which the transfer is under way, the undisturbed story)."""
    table = experiment(fault("kill", "learner-1", 5), options=SLOW, **PATIENT, **params)
    story = Story(table)
    died = story.of(UnitExited, "learner-1")[0].t_ns
    # Early in its second: a window of parts stays on its way when the donor is gone.
    return (rejoined(story).t_ns - died) / 1e9 - 0.85, story


def test_state_is_the_donors_to_the_bit_and_counters_go_on_from_it() -> None:
    story = Story(experiment(fault("kill", "learner-1", 5), trainer="quadratic"))
    assert story.violations() == []
    joined = rejoined(story)
    assert joined.source == joined.inner == "learner-2"
    assert set(joined.digests) == {"params", "moments", "step", "learning_rate"}
    assert joined.digests == joined.donor_digests
    assert joined.nbytes == 3 * 4 * 4096
    donors = [s.step for s in story.of(Step, "learner-2") if s.t_ns <= joined.t_ns]
    assert joined.step in donors[-3:]
    mine = [s.step for s in story.of(Step, "learner-1") if s.incarnation == 2]
    assert mine[:3] == [joined.step + 1, joined.step + 2, joined.step + 3]
    answers = {a.check.name: a.finding for a in story.analysis.answers}
    assert answers["recovered-state"].valid is True


def test_nothing_broadcast_meanwhile_is_missed() -> None:
    _, story = mid_transfer()
    joined = rejoined(story)
    died = story.of(UnitExited, "learner-1")[0].t_ns
    mine = [a for a in story.of(Adopted, "learner-1") if a.t_ns > died]
    assert [a for a in mine if a.step == joined.step], "some of it was replayed after the transfer"
    first_step = next(e for e in story.of(Step, "learner-1") if e.t_ns > joined.t_ns)
    for fragment in range(4):
        replayed = [a for a in mine if a.fragment == fragment and a.t_ns < first_step.t_ns]
        sent = [
            m.version
            for m in story.of(Merged)
            if m.fragment == fragment and joined.clock < m.clock and m.t_ns < joined.t_ns - 50 * MS
        ]
        assert not sent or replayed[-1].version >= sent[-1]
        held = [a.version for a in mine if a.fragment == fragment]
        assert held == list(range(held[0], held[0] + len(held)))


def test_the_donor_keeps_training() -> None:
    _, story = mid_transfer()
    joined = rejoined(story)
    steps = [s for s in story.of(Step, joined.source) if abs(s.t_ns - joined.t_ns) < 2_000 * MS]
    assert all(s.t_ns - s.began_at_ns < 210 * MS for s in steps)


def test_a_donor_that_dies_in_the_middle_is_replaced() -> None:
    after, _ = mid_transfer()
    story = Story(
        experiment(
            fault("kill", "learner-1", 5),
            fault("kill", "learner-2", 5 + after),
            options=SLOW,
            **PATIENT,
        )
    )
    assert story.violations() == []
    joined = rejoined(story)
    assert joined.inner == "learner-3"
    assert joined.digests == joined.donor_digests
    assert gave_up(story)[0].startswith("gave up recovery from learner-2: ")


def test_a_victim_that_dies_again_in_the_middle_starts_over() -> None:
    after, _ = mid_transfer()
    story = Story(
        experiment(
            fault("kill", "learner-1", 5),
            fault("kill", "learner-1", 5 + after),
            options=SLOW,
            **PATIENT,
        )
    )
    assert story.violations() == []
    assert [j.incarnation for j in story.of(Joined, "learner-1")] == [1, 3]
    assert rejoined(story, life=3).inner == "learner-2"


@pytest.mark.parametrize("kind", ["stall", "partition", "pause"])
def test_a_donor_that_falls_silent_in_the_middle_is_replaced(kind: str) -> None:
    after, _ = mid_transfer()
    story = Story(
        experiment(
            fault("kill", "learner-1", 5),
            fault(kind, "learner-2", 5 + after, 6),
            options=SLOW,
            **PATIENT,
        )
    )
    assert story.violations() == []
    assert rejoined(story).inner == "learner-3"
    (why,) = gave_up(story)
    assert "heard nothing for 15" in why


def test_a_transfer_that_takes_too_many_steps_is_given_up_for_fresh_inner_state() -> None:
    """50 KiB at 20 KB/s take over two seconds: more than H = 4 steps of 0.2 s."""
    story = Story(experiment(fault("kill", "learner-1", 5), options={"bandwidth_kb_s": 20.0}))
    joined = rejoined(story)
    assert (joined.source, joined.inner, joined.donor_digests) == ("syncer", "fresh", {})
    notes = gave_up(story)
    assert [n.split(":")[0] for n in notes[:-1]] == [
        f"gave up recovery from learner-{i}" for i in (2, 3, 0)
    ]
    assert all("it took more than 4 global steps" in n for n in notes[:-1])
    assert notes[-1].startswith("no donor, so fresh inner state: learner-2: it took more")


def test_more_steps_allow_a_longer_transfer() -> None:
    options = {"bandwidth_kb_s": 20.0}
    table = experiment(fault("kill", "learner-1", 5), options=options, recovery_steps_max=40)
    assert rejoined(Story(table)).inner == "learner-2"


def test_without_a_healthy_donor_the_syncers_parameters_come_with_fresh_inner_state() -> None:
    both = [fault("kill", "learner-0", 5), fault("kill", "learner-1", 5)]
    story = Story(experiment(*both, learners=2, options={"restart_ms": [600.0, 600.0]}))
    assert story.violations() == []
    first = min((j for j in story.of(Joined) if j.incarnation == 2), key=lambda j: j.t_ns)
    assert (first.source, first.inner, first.donor_digests) == ("syncer", "fresh", {})


def test_the_last_healthy_donor_dies_in_the_middle() -> None:
    after, _ = mid_transfer(learners=2)
    story = Story(
        experiment(
            fault("kill", "learner-1", 5),
            fault("kill", "learner-0", 5 + after),
            learners=2,
            options=SLOW,
            **PATIENT,
        )
    )
    assert story.violations() == []
    joined = rejoined(story)
    assert (joined.source, joined.inner) == ("syncer", "fresh")
    assert gave_up(story)[-1].startswith("no donor, so fresh inner state: learner-0: ")


def test_the_syncer_may_die_while_a_peer_hands_over() -> None:
    after, _ = mid_transfer()
    story = Story(
        experiment(
            fault("kill", "learner-1", 5),
            fault("kill", "syncer", 5 + after),
            options=SLOW,
            **PATIENT,
        )
    )
    assert story.violations() == []
    assert rejoined(story).inner.startswith("learner-")


def test_a_newcomer_whose_link_to_the_syncer_breaks_keeps_its_transfer() -> None:
    after, _ = mid_transfer()
    story = Story(
        experiment(
            fault("kill", "learner-1", 5),
            fault("reset", "learner-1", 5 + after, 0.05),
            options=SLOW,
            **PATIENT,
        )
    )
    assert story.violations() == []
    assert rejoined(story).inner.startswith("learner-")


def test_two_that_died_together_recover_from_the_others() -> None:
    faults = [fault("kill", f"learner-{i}", 5) for i in (0, 1, 2)]
    story = Story(experiment(*faults))
    assert story.violations() == []
    for unit in ("learner-0", "learner-1", "learner-2"):
        joined = rejoined(story, unit)
        assert joined.inner.startswith("learner-")
        assert joined.digests == joined.donor_digests


@pytest.mark.parametrize("quorum", [1, 4])
def test_recovery_does_not_wait_for_the_next_merge(quorum: int) -> None:
    """With one fragment a merge comes every 24 steps, with K = M not before the newcomer is back:
    the fragment committed last is the first that bears a stamp."""
    story = Story(
        experiment(fault("kill", "learner-1", 10), quorum=quorum, fragments=1, sync_every=24)
    )
    assert story.violations() == []
    assert rejoined(story).inner == "learner-2"


def test_where_learners_wait_for_each_other_recovery_goes_on_in_step() -> None:
    story = Story(experiment(fault("kill", "learner-1", 5), quorum=4, grace=False, blocking=True))
    assert story.violations() == []
    joined = rejoined(story)
    assert joined.inner == "learner-2"
    assert joined.digests == joined.donor_digests


def test_recovery_from_the_syncer_can_be_asked_for() -> None:
    story = Story(experiment(fault("kill", "learner-1", 5), recovery="syncer"))
    assert story.violations() == []
    assert (rejoined(story).source, rejoined(story).inner) == ("syncer", "fresh")
