"""Whatever broke while it ran: a tape ends bit-equal, and whatever is changed in it is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import harness.sim.cluster
from harness.events import (
    Adopted,
    AnyEvent,
    Joined,
    LastMerged,
    Merged,
    RolledBack,
    RunEnded,
    StateCopied,
    Step,
    Tampered,
)
from harness.fuzz.draw import draw
from targets.diloco.replay import Finding, follow
from targets.diloco.tape import Adopt, LearnerLife, Tape, Train, build
from tests.simulation.helpers import Story, experiment, fault

STORM = (
    fault("kill", "learner-0", 4),
    fault("partition", "learner-1", 8, 4),
    fault("kill", "syncer", 12.03),
    fault("kill", "learner-2", 15),
    fault("pause", "learner-3", 18, 3),
    fault("kill", "syncer", 22),
    fault("corrupt_update", "learner-1", 24, 5, how="scale"),
)
SMALL: dict[str, Any] = {"scripted_elements": 64}


def story_of(seed: int, *faults: Any, **own: Any) -> Story:
    table = experiment(*(faults or STORM), **{**SMALL, **own})
    if "preset" in own:
        for name in ("quorum", "grace", "fragments", "sync_every"):
            table["target"]["params"].pop(name)
        if own["preset"] == "streaming":
            table["target"]["params"] |= {"fragments": 4, "sync_every": 4}
    return Story(table, seed)


def tape_of(events: Sequence[AnyEvent]) -> Tape:
    return build(enumerate(events, start=1))


def all_equal(events: Sequence[AnyEvent]) -> Finding:
    """Follow the tape; everything in it was compared, and is equal."""
    tape = tape_of(events)
    found = follow(tape)
    assert found.difference == ""
    assert found.unfollowed == ()
    joins = sum(isinstance(e, Joined) for e in events)
    assert (found.merges, found.steps, found.joins) == (tape.merges, tape.steps, joins)
    assert tape.steps == sum(isinstance(e, Step) for e in events)
    assert tape.merges >= 15
    return found


WAYS: dict[str, dict[str, Any]] = {
    "f32": {},
    "bf16": {"wire_up": "bf16", "wire_down": "bf16"},
    "int4-up": {"wire_up": "int4", "wire_down": "bf16"},
    "int4-both-ways": {"wire_up": "int4", "wire_down": "int4"},
    "from-the-syncer": {"recovery": "syncer"},
    "streaming": {"preset": "streaming"},
    "lockstep": {"preset": "lockstep"},
    "averaged": {"merge": "avg", "quorum": 3},
}


@pytest.mark.parametrize(
    ("way", "seed"), [*((way, 1) for way in WAYS), ("f32", 2), ("int4-both-ways", 3)]
)
def test_a_storm_ends_bit_equal(way: str, seed: int) -> None:
    story = story_of(seed, trainer="quadratic", **WAYS[way])
    all_equal(story.events)
    if way != "from-the-syncer":
        assert story.of(StateCopied)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["f32", "int4-both-ways", "lockstep"])
def test_real_gradients_end_bit_equal(way: str) -> None:
    story = story_of(
        5,
        fault("kill", "learner-0", 2),
        fault("kill", "syncer", 4),
        trainer="lm",
        learners=2,
        batch=2,
        sequence=16,
        step_time_s=0.5,
        duration_s=8.0,
        quiet_tail_s=4.0,
        **WAYS[way],
    )
    found = all_equal(story.events)
    assert found.steps >= 30
    assert all(step.loss is not None for step in story.of(Step))


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_drawn_experiments_end_bit_equal(first: int) -> None:
    for seed in range(first, first + 5):
        table = draw(seed)
        table["target"]["params"]["trainer"] = "scripted"
        tape = tape_of(Story(table, seed).events)
        found = follow(tape)
        assert (found.difference, found.unfollowed) == ("", ()), seed
        assert (found.merges, found.steps) == (tape.merges, tape.steps), seed


@pytest.mark.parametrize("trainer", ["scripted", "quadratic"])
@pytest.mark.parametrize("kind", ["lose_checkpoint", "corrupt_checkpoint", "torn_write"])
def test_a_syncer_whose_disk_was_lost_or_damaged(kind: str, trainer: str) -> None:
    faults = (fault(kind, "syncer", 6), fault("kill", "learner-2", 12), fault(kind, "syncer", 20))
    story = story_of(5, *faults, trainer=trainer)
    assert story.of(RolledBack)
    all_equal(story.events)


def test_spoilt_updates_that_were_accepted_are_spoilt_again() -> None:
    """Before it knows what is usual, the syncer takes a scaled update for an honest one."""
    scaled = fault("corrupt_update", "learner-1", 0, 25, how="scale")
    story = story_of(2, scaled, trainer="quadratic", sync_every=32, fragments=4, learners=2)
    answers = [op for life in tape_of(story.events).learners for op in life.ops]
    assert any(getattr(op, "update", "") == "scale" for op in answers)
    all_equal(story.events)
    # Without the lines that say so it is another tape.
    silent = [e for e in story.events if not isinstance(e, Tampered)]
    assert "merged at global step" in follow(tape_of(silent)).difference


def test_a_merge_whose_line_died_with_the_syncer_is_told_again() -> None:
    options = {"fsync_ms": [80.0, 90.0], "restart_ms": [50.0, 400.0]}
    for seed in range(40):
        kills = [fault("kill", "syncer", at) for at in (3, 7, 11, 15)]
        table = experiment(*kills, options=options, trainer="quadratic", **SMALL)
        story = Story(table, seed)
        told = {(m.fragment, m.version) for m in story.of(Merged)}
        lost = [e for e in story.of(LastMerged) if (e.fragment, e.version) not in told]
        if lost:
            break
    else:
        raise AssertionError("no kill fell between saving and telling in 40 runs")
    all_equal(story.events)
    # The reports have the merge at its own instant, once.
    seen = [(m.event.fragment, m.event.version) for m in story.analysis.history.merges]
    assert len(seen) == len(set(seen))
    assert (lost[0].fragment, lost[0].version) in seen
    assert story.violations() == []


def test_simulated_reads_are_of_the_instant_at_which_they_were_asked_for() -> None:
    """Steps that are not much longer than a read: many end while one is under way."""
    story = story_of(
        1,
        fault("kill", "learner-0", 1),
        trainer="scripted",
        step_time_s=0.002,
        duration_s=2.0,
        quiet_tail_s=1.0,
    )
    all_equal(story.events)


def test_the_replay_catches_reads_of_another_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.sim.cluster, "_bound", lambda bind, job: lambda: bind(job)())
    story = story_of(
        1, fault("noop", "learner-0", 1), step_time_s=0.002, duration_s=2.0, quiet_tail_s=1.0
    )
    assert "merged at global step" in follow(tape_of(story.events)).difference


# --- changed tapes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm() -> tuple[AnyEvent, ...]:
    kill = fault("kill", "learner-0", 4)
    return story_of(4, kill, trainer="quadratic", duration_s=10.0, quiet_tail_s=8.0).events


def changed(
    events: Sequence[AnyEvent], kind: type, number: int, edit: Callable[[Any], Any]
) -> tuple[list[AnyEvent], int]:
    """``events`` with the ``number``-th of a kind edited, and its line."""
    found = [i for i, e in enumerate(events) if type(e) is kind]
    index = found[number]
    return [*events[:index], edit(events[index]), *events[index + 1 :]], index + 1


def test_a_changed_digest_is_the_first_difference(calm: Sequence[AnyEvent]) -> None:
    events, line = changed(calm, Merged, 9, lambda m: msgspec.structs.replace(m, digest="nonsense"))
    merge: Any = events[line - 1]
    found = follow(tape_of(events))
    assert found.line == line
    for words in (
        f"version {merge.version} of fragment {merge.fragment}",
        f"global step {merge.clock}",
        f"{merge.contributions[0].unit} (life {merge.contributions[0].incarnation}, step ",
        "nonsense in the tape",
    ):
        assert words in found.difference
    assert found.merges < tape_of(calm).merges, "nothing after it is carried out"


def test_a_changed_loss_is_named_with_both_values(calm: Sequence[AnyEvent]) -> None:
    events, line = changed(calm, Step, 40, lambda s: msgspec.structs.replace(s, loss=0.125))
    step: Any = events[line - 1]
    found = follow(tape_of(events))
    assert found.line == line
    assert f"loss of {step.unit} (life {step.incarnation}) at step {step.step}: 0.125" in (
        found.difference
    )
    assert str(getattr(calm[line - 1], "loss")) in found.difference  # noqa: B009


def test_a_changed_weight_changes_the_merge(calm: Sequence[AnyEvent]) -> None:
    def edit(merge: Merged) -> Merged:
        first, *others = merge.contributions
        heavier = msgspec.structs.replace(first, weight=2 * first.weight)
        return msgspec.structs.replace(merge, contributions=(heavier, *others))

    events, line = changed(calm, Merged, 12, edit)
    assert follow(tape_of(events)).line == line


def test_a_missing_participant_changes_the_merge(calm: Sequence[AnyEvent]) -> None:
    def edit(merge: Merged) -> Merged:
        return msgspec.structs.replace(merge, contributions=merge.contributions[1:])

    events, line = changed(calm, Merged, 12, edit)
    assert follow(tape_of(events)).line == line


def test_a_changed_state_is_named(calm: Sequence[AnyEvent]) -> None:
    def edit(joined: Joined) -> Joined:
        return msgspec.structs.replace(joined, digests={**joined.digests, "moments": "other"})

    events, line = changed(calm, Joined, -1, edit)
    found = follow(tape_of(events))
    assert found.line == line
    assert "moments of the state that learner-0 (life 2) began with, from learner-1" in (
        found.difference
    )


def test_the_order_of_lines_matters(calm: Sequence[AnyEvent]) -> None:
    """An adoption that is moved beyond the next step cannot be followed; it is not passed over."""
    at = next(i for i, e in enumerate(calm) if isinstance(e, Adopted) and e.step > 5)
    moved: Any = calm[at]
    later = next(
        i for i, e in enumerate(calm) if i > at and isinstance(e, Step) and e.unit == moved.unit
    )
    events = [*calm[:at], *calm[at + 1 : later + 1], moved, *calm[later + 1 :]]
    found = follow(tape_of(events))
    assert any(f"{moved.unit} (life 1)" in why for why in found.unfollowed)


def skipping(tape: Tape, kind: type, number: int) -> Tape:
    """``tape`` with one operation of one learner left out."""

    def cut(life: LearnerLife) -> LearnerLife:
        found = [op for op in life.ops if isinstance(op, kind)]
        left = [op for op in life.ops if op is not found[number]]
        return replace(life, ops=left)

    first, *others = tape.learners
    return replace(tape, learners=[cut(first), *others])


@pytest.mark.parametrize(("kind", "said"), [(Adopt, "loss of"), (Train, "merged at global step")])
def test_a_replay_that_skips_something_is_caught(
    calm: Sequence[AnyEvent], kind: type, said: str
) -> None:
    found = follow(skipping(tape_of(calm), kind, 5))
    assert said in found.difference


def test_a_cut_journal_is_followed_up_to_the_cut(calm: Sequence[AnyEvent]) -> None:
    assert isinstance(calm[-1], RunEnded)
    half = calm[: len(calm) // 2]
    tape = tape_of(half)
    found = follow(tape)
    assert tape.cut
    assert found.difference == ""
    assert 10 < found.merges < tape_of(calm).merges


def test_a_hole_ends_what_builds_on_it_and_nothing_else(calm: Sequence[AnyEvent]) -> None:
    at = next(i for i, e in enumerate(calm) if isinstance(e, Merged) and e.version == 4)
    found = follow(tape_of([*calm[:at], *calm[at + 1 :]]))
    assert found.difference == ""
    lost: Any = calm[at]
    assert any(f"fragment {lost.fragment} goes from version 3 to 5" in w for w in found.unfollowed)
    assert 0 < found.merges < tape_of(calm).merges


def test_until_a_global_step(calm: Sequence[AnyEvent]) -> None:
    tape = tape_of(calm)
    found = follow(tape, until=20)
    assert found.merges == sum(isinstance(e, Merged) and e.clock <= 20 for e in calm)
    assert (found.difference, found.unfollowed) == ("", ())


def test_memory_is_bounded_by_what_is_in_flight() -> None:
    """Four times as long a run holds no more at a time."""
    noop = fault("noop", "learner-0", 1)
    peaks = [
        follow(tape_of(story_of(3, noop, duration_s=seconds).events)).held_bytes_max
        for seconds in (15.0, 60.0)
    ]
    assert peaks[1] <= 1.5 * peaks[0]


def test_progress_is_told(calm: Sequence[AnyEvent]) -> None:
    told: list[tuple[int, int]] = []
    tape = tape_of(calm)
    follow(tape, progress=lambda done, total: told.append((done, total)))
    assert told == [(n + 1, tape.merges) for n in range(tape.merges)]
