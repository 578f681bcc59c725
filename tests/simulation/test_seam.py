"""Journals of a checkpointed run and of one that goes on from it, spoilt line by line.

Each way in which they can contradict themselves or each other is named by the check that is
there for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.events import (
    AnyEvent,
    Checkpointed,
    Merged,
    Resumed,
    RolledBack,
    SnapshotComplete,
    Step,
)
from harness.journal import JournalText
from reports.build import analyse
from reports.history import History, fold
from reports.seam import across
from tests.simulation.cuts import SYNCER, Run
from tests.simulation.helpers import experiment

Events = tuple[AnyEvent, ...]
Spoil = Callable[[Any], Any]
"""An event to what becomes of it; None: it is gone."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Events, Events]]:
    """The events of a run with three checkpoints and of one that goes on from the last."""
    folder = tmp_path_factory.mktemp("pair")
    table = experiment(duration_s=6, quiet_tail_s=3, checkpoint_every=12)
    with pytest.MonkeyPatch.context() as patch:
        first = Run(table, 8, folder / "1", patch)
        second = Run(table, 8, folder / "2", patch, first)
        assert first.violations() == second.violations() == []
        yield first.ran.events, second.ran.events


@pytest.mark.parametrize("rescued_before", [False, True])
def test_a_resumed_run_that_loses_all_of_it_gives_no_number_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rescued_before: bool
) -> None:
    """The disk and every learner at once: the seam is all that the syncer knows of earlier runs,
    whose own rescue began at a round number as this one does."""
    names = [f"learner-{i}" for i in range(4)]
    faults = [
        {"kind": "lose_checkpoint", "where": ["syncer"], "at_s": 5},
        {"kind": "kill", "where": names, "at_s": 5},
    ]
    settings: dict[str, Any] = {"duration_s": 15, "quiet_tail_s": 8, "checkpoint_every": 12}
    first = experiment(*(faults if rescued_before else ()), **settings)
    earlier = Run(first, 8, tmp_path / "1", monkeypatch)
    resumed = Run(experiment(*faults, **settings), 8, tmp_path / "2", monkeypatch, earlier)
    assert earlier.violations() == resumed.violations() == []
    (seam,) = resumed.of(Resumed, SYNCER)
    backs = resumed.of(RolledBack)
    assert len(backs) == 4
    assert all(b.version > seam.versions[b.fragment] for b in backs)
    assert all(m.clock > seam.marker for m in resumed.of(Merged))


def spoilt(events: Events, kind: type, spoil: Spoil, number: int | None = None) -> History:
    """The history with ``spoil`` done to every event of ``kind``, or to the ``number``-th."""
    out: list[AnyEvent] = []
    seen = 0
    for event in events:
        became: Any = event
        if isinstance(event, kind):
            if number is None or seen == number:
                became = spoil(event)
            seen += 1
        if became is not None:
            out.append(became)
    assert seen
    return fold(JournalText(tuple(out), ()))


def answer(history: History, check: str) -> tuple[Any, str]:
    """What the check says of it."""
    found = {a.check.name: a.finding for a in analyse(history).answers}[check]
    return found.valid, found.why


def of(unit: str, **changes: Any) -> Spoil:
    """Change the unit's events; a callable gets the old value."""

    def spoil(event: Any) -> Any:
        if event.unit != unit:
            return event
        return replace(
            event,
            **{k: v(getattr(event, k)) if callable(v) else v for k, v in changes.items()},
        )

    return spoil


def gone(unit: str) -> Spoil:
    return lambda event: None if event.unit == unit else event


def one_more(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(v + 1 for v in values)


def test_sound_journals_contradict_nothing(pair: tuple[Events, Events]) -> None:
    first, second = (fold(JournalText(events, ())) for events in pair)
    assert across(first, second) == []
    assert answer(first, "checkpoints")[0] is True
    valid, why = answer(second, "checkpoints")
    assert valid is True
    assert "with 4 learners' parts" in why


@pytest.mark.parametrize(
    ("kind", "spoil", "why"),
    [
        (Checkpointed, of("learner-1", versions=one_more), "the syncer had committed"),
        (Checkpointed, of("learner-1", step=lambda s: s - 6), "whose part ends at step"),
        (Checkpointed, gone("learner-2"), "is complete without the part of learner-2"),
        (Checkpointed, of("learner-2", incarnation=7), "without the part of learner-2"),
        (Checkpointed, gone(SYNCER), "has no part of the syncer"),
        (SnapshotComplete, gone(SYNCER), "were begun and none was completed"),
    ],
)
def test_an_inconsistent_cut_is_named(
    pair: tuple[Events, Events], kind: type, spoil: Spoil, why: str
) -> None:
    valid, said = answer(spoilt(pair[0], kind, spoil), "checkpoints")
    assert (valid, why in said) == (False, True), said


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (of("learner-1", marker=12), "went on from step 12"),
        (of("learner-1", run="another"), "of run another"),
        (of("learner-1", versions=one_more), "the syncer had committed"),
        (of("learner-1", step=lambda s: s - 9), "whose part ends at step"),
        (of("learner-1", step=lambda s: s + 1), "went on with step"),
        (gone(SYNCER), "without the syncer"),
    ],
)
def test_going_on_from_elsewhere_is_named(
    pair: tuple[Events, Events], spoil: Spoil, why: str
) -> None:
    valid, said = answer(spoilt(pair[1], Resumed, spoil), "checkpoints")
    assert (valid, why in said) == (False, True), said


def reaching_back(merged: Merged) -> Merged:
    part = merged.contributions[0]
    since = part.since_step - 4
    back = replace(part, since_step=since, c_steps=part.step - since)
    return replace(merged, contributions=(back, *merged.contributions[1:]))


def test_steps_from_before_the_seam_are_not_merged_again(pair: tuple[Events, Events]) -> None:
    first = fold(JournalText(pair[0], ()))
    history = spoilt(pair[1], Merged, reaching_back, 0)
    assert answer(history, "tokens-once")[0] is False
    assert any("in both runs" in problem for problem in across(first, history))


def test_versions_and_global_steps_go_on(pair: tuple[Events, Events]) -> None:
    first = fold(JournalText(pair[0], ()))

    def later(merged: Merged) -> Merged:
        return replace(merged, version=merged.version + 1)

    valid, why = answer(spoilt(pair[1], Merged, later), "versions")
    assert (valid, "of the checkpoint to" in why) == (False, True)
    history = spoilt(pair[1], Merged, lambda m: replace(m, clock=5), 0)
    assert "was merged again after the checkpoint" in answer(history, "checkpoints")[1]
    assert any("was merged in both runs" in problem for problem in across(first, history))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (of("learner-1", step=3), "step was written as"),
        (of("learner-1", digests={}), "digests was written as"),
        (of(SYNCER, versions=one_more), "and the second run goes on from"),
        (of(SYNCER, run="another"), "goes on from run another"),
        (of(SYNCER, marker=13), "has no complete checkpoint 13"),
        (gone(SYNCER), "began anew"),
    ],
)
def test_what_was_read_is_what_was_written(
    pair: tuple[Events, Events], spoil: Spoil, why: str
) -> None:
    first = fold(JournalText(pair[0], ()))
    problems = across(first, spoilt(pair[1], Resumed, spoil))
    assert any(why in problem for problem in problems), problems


def test_what_was_never_written_cannot_be_gone_on_from(pair: tuple[Events, Events]) -> None:
    second = fold(JournalText(pair[1], ()))
    assert any(
        "never written" in problem
        for problem in across(spoilt(pair[0], Checkpointed, gone("learner-0")), second)
    )


def test_a_cut_journal_may_lack_a_part(pair: tuple[Events, Events]) -> None:
    """Whoever wrote it was stopped hard, and the line may have died with it."""
    events = tuple(e for e in pair[0] if not isinstance(e, Step) or e.step < 10_000)[:-1]
    history = spoilt(events, Checkpointed, gone("learner-2"))
    assert answer(history, "checkpoints")[0] is True
