"""The tape in a journal: everything in its place, and whatever is missing named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from harness.events import Adopted as AdoptedEvent
from harness.events import (
    AnyEvent,
    Contribution,
    Joined,
    LastMerged,
    Merged,
    Resumed,
    RolledBack,
    RunEnded,
    RunStarted,
    StateCopied,
    Step,
    Tampered,
    UnitInfo,
    UnitReady,
)
from targets.diloco.tape import (
    Adopt,
    Answer,
    Commit,
    Copy,
    Load,
    NoTapeError,
    Reopen,
    Rollback,
    Take,
    Tape,
    Train,
    build,
)

UNITS = (
    UnitInfo(name="syncer", role="syncer"),
    UnitInfo(name="learner-0", role="learner"),
    UnitInfo(name="learner-1", role="learner"),
)


def run(**own: Any) -> RunStarted:
    given: dict[str, Any] = {
        "schema": 1,
        "run": "r",
        "experiment": "e",
        "seed": 1,
        "runtime": "process",
        "target": "diloco",
        "proxy": "none",
        "units": UNITS,
        "spec": {},
        "params": {"learners": 2},
        "fragments": (10, 10),
    }
    return RunStarted(t_ns=0, **{**given, **own})


def joined(t: int, unit: str = "learner-0", life: int = 1, **own: Any) -> Joined:
    given: dict[str, Any] = {"source": "initial", "clock": 0, "step": 0, "versions": (0, 0)}
    return Joined(t_ns=t, unit=unit, incarnation=life, **{**given, **own})


def step(t: int, number: int, unit: str = "learner-0", life: int = 1) -> Step:
    return Step(t_ns=t, unit=unit, incarnation=life, step=number, began_at_ns=t - 1, tokens=8)


def adopted(t: int, p: int, version: int, at: int, unit: str = "learner-0") -> AdoptedEvent:
    return AdoptedEvent(
        t_ns=t, unit=unit, incarnation=1, fragment=p, version=version, clock=version, step=at
    )


def part(unit: str, at: int, since: int = 0, base: int = 0, life: int = 1) -> Contribution:
    steps = at - since
    return Contribution(
        unit=unit,
        incarnation=life,
        since_step=since,
        step=at,
        c_steps=steps,
        c_tokens=8 * steps,
        weight=64.0 * steps,
        base_version=base,
        base_clock=base,
    )


def merged(t: int, p: int, version: int, *parts: Contribution, life: int = 1) -> Merged:
    return Merged(
        t_ns=t,
        unit="syncer",
        incarnation=life,
        clock=version,
        fragment=p,
        version=version,
        quorum=1,
        contributions=parts,
        digest=f"d{p}{version}",
    )


END = RunEnded(t_ns=10**9, status="completed")


def tape_of(*events: AnyEvent, **own: Any) -> Tape:
    return build(enumerate([run(**own), *events, END], start=1))


def ops(tape: Tape, unit: str = "learner-0", life: int = 1) -> Sequence[Any]:
    return next(x.ops for x in tape.learners if (x.unit, x.life) == (unit, life))


SOUND: tuple[AnyEvent, ...] = (
    joined(1),  # line 2
    step(10, 1),
    step(20, 2),
    merged(25, 0, 1, part("learner-0", 2)),  # line 5
    step(30, 3),
    adopted(31, 0, 1, 3),  # line 7
    step(40, 4),
    merged(45, 0, 2, part("learner-0", 4, since=3, base=1)),  # line 9
)


def test_every_operation_stands_where_it_was_done() -> None:
    tape = tape_of(*SOUND)
    assert tape.problems == ()
    assert not tape.cut
    assert (tape.merges, tape.steps) == (2, 4)
    assert [type(op) for op in ops(tape)] == [
        Load, Train, Train, Answer, Train, Adopt, Train, Answer,
    ]  # fmt: skip
    first, second = (op for op in ops(tape) if isinstance(op, Answer))
    assert [op.parts[0].number for op in tape.syncer if isinstance(op, Commit)] == [
        first.part,
        second.part,
    ]


def test_a_read_comes_before_the_adoption_at_the_same_step() -> None:
    tape = tape_of(
        joined(1),
        step(10, 1),
        merged(12, 0, 1, part("learner-0", 1)),
        adopted(13, 0, 1, 1),
        merged(15, 1, 1, part("learner-0", 1)),
        adopted(16, 1, 1, 1),
    )
    assert tape.problems == ()
    assert [type(op) for op in ops(tape)] == [Load, Train, Answer, Answer, Adopt, Adopt]


def test_a_journal_that_ends_early_is_cut() -> None:
    assert build(enumerate([run(), *SOUND], start=1)).cut


def test_a_repeated_merge_stands_in_for_its_lost_line_and_only_for_that() -> None:
    lost = merged(25, 0, 1, part("learner-0", 2))
    again = LastMerged(
        t_ns=60,
        unit="syncer",
        incarnation=2,
        life=1,
        ago_ns=35,
        clock=1,
        fragment=0,
        version=1,
        quorum=1,
        contributions=lost.contributions,
        digest=lost.digest,
    )
    assert again.merged() == lost
    later = merged(90, 0, 2, part("learner-0", 4, since=3, base=1), life=2)
    tape = tape_of(*SOUND[:3], *SOUND[4:7], again, later)
    assert tape.problems == ()
    # It is the end of its own life, before the next one begins.
    assert [type(op) for op in tape.syncer] == [Commit, Reopen, Commit]
    told = tape_of(*SOUND, replace_version(again, 2))
    assert [op.version for op in told.syncer if isinstance(op, Commit)] == [1, 2]


def replace_version(event: LastMerged, version: int) -> LastMerged:
    return msgspec.structs.replace(event, version=version)


def test_what_a_damaged_disk_gave_back_is_a_version_of_its_own() -> None:
    back = RolledBack(
        t_ns=60, unit="syncer", incarnation=2, fragment=0, version=3, before=2, clock=9, digest="x"
    )
    tape = tape_of(*SOUND, back, adopted(61, 0, 3, 4))
    assert tape.problems == ()
    reopen, rollback = tape.syncer[-2:]
    assert isinstance(reopen, Reopen)
    assert reopen.content == {0: 1}, "version 2 itself was damaged"
    assert isinstance(rollback, Rollback)
    # The node's own value was damaged: it went one back, and 3 may have been sent to everybody.
    sent = msgspec.structs.replace(back, version=4)
    reopen = next(op for op in tape_of(*SOUND, sent).syncer if isinstance(op, Reopen))
    assert reopen.content == {0: 2}


def recovery(*between: AnyEvent) -> tuple[AnyEvent, ...]:
    return (
        joined(1),
        step(10, 1),
        StateCopied(
            t_ns=12, unit="learner-0", incarnation=1, peer="learner-1", peer_incarnation=2, step=1
        ),
        *between,
        joined(15, "learner-1", 2, source="learner-0", inner="learner-0", step=7, donor_step=1),
        step(20, 8, "learner-1", 2),
    )


def test_a_newcomer_takes_what_its_donor_copied_for_this_life() -> None:
    tape = tape_of(*recovery())
    assert tape.problems == ()
    copy = next(op for op in ops(tape) if isinstance(op, Copy))
    take = next(op for op in ops(tape, "learner-1", 2) if isinstance(op, Take))
    assert copy.copy == take.copy


def test_the_donors_last_copy_counts_and_others_are_not_carried_out() -> None:
    again = StateCopied(
        t_ns=14, unit="learner-0", incarnation=1, peer="learner-1", peer_incarnation=2, step=2
    )
    tape = tape_of(*recovery(step(13, 2), again))
    copies = [op.line for op in ops(tape) if isinstance(op, Copy)]
    assert copies == [6]


def test_without_the_copys_line_the_newcomer_cannot_be_followed() -> None:
    events = [e for e in recovery() if not isinstance(e, StateCopied)]
    (problem,) = tape_of(*events).problems
    assert "learner-1 (life 2)" in problem
    assert "does not say when it was copied" in problem


def spoilt(t: int, update: str) -> Tampered:
    return Tampered(t_ns=t, unit="learner-0", incarnation=1, fragment=0, step=2, update=update)


@pytest.mark.parametrize(
    ("told", "update"),
    [
        ([(24, "scale")], "scale"),
        ([(22, "scale"), (24, "")], ""),  # read again after the same step, and sound
        ([(24, "scale"), (26, "nan")], "scale"),  # which came after the merge
    ],
)
def test_which_payload_was_spoilt_is_known(told: list[tuple[int, str]], update: str) -> None:
    tape = tape_of(*SOUND, *(spoilt(t, how) for t, how in told))
    first = next(op for op in ops(tape) if isinstance(op, Answer))
    assert first.update == update


Edit = Callable[[list[AnyEvent]], None]


def without(index: int) -> Edit:
    def edit(events: list[AnyEvent]) -> None:
        del events[index]

    return edit


def repeated(index: int) -> Edit:
    def edit(events: list[AnyEvent]) -> None:
        events.append(events[index])

    return edit


def swapped(a: int, b: int) -> Edit:
    def edit(events: list[AnyEvent]) -> None:
        events[a], events[b] = events[b], events[a]

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (without(0), "no line says with what state it began"),
        (without(2), "step 3 comes after step 1"),
        (without(3), "fragment 0 goes from version 0 to 2 in line 8"),
        (without(5), "its own lines say version 0 since step 0"),
        (without(6), "its step 4, which was merged, is in no line"),
        (repeated(3), "line 10 commits version 1 of fragment 0 after version 2"),
        (swapped(4, 5), "it speaks of local step 3 after step 2"),
    ],
)
def test_a_missing_or_moved_line_is_named(edit: Edit, said: str) -> None:
    events = list(SOUND)
    edit(events)
    problems = tape_of(*events).problems
    assert any(said in problem for problem in problems), problems


def test_an_unknown_version_ends_the_life_that_has_it() -> None:
    tape = tape_of(*SOUND, adopted(50, 1, 7, 4), step(60, 5))
    (problem,) = tape.problems
    assert "version 7 of fragment 1" in problem
    assert tape.steps == 4


def test_an_old_journal_says_which_life_it_does_not_tell_of() -> None:
    old = joined(1, source="syncer", clock=3, versions=())
    (problem,) = tape_of(old, step(10, 1)).problems
    assert "which versions its state holds" in problem
    # A first life needs no versions: there is only one with which a run begins.
    assert tape_of(joined(1, versions=()), step(10, 1)).problems == ()


def test_the_number_that_chose_the_data() -> None:
    ready = UnitReady(t_ns=5, unit="learner-0", incarnation=3)
    events = (ready, joined(6, life=3), step(10, 1, life=3))
    assert tape_of(*events).learners[0].data == 3
    # In virtual time a life that was killed before it was ready has drawn no data.
    assert tape_of(*events, runtime="simulated").learners[0].data == 1


@pytest.mark.parametrize(
    ("own", "events", "said"),
    [
        ({"target": "spmd"}, (), "writes no tape"),
        ({"params": {"error_feedback": True}}, (), "error_feedback"),
        (
            {},
            (Resumed(t_ns=1, unit="syncer", incarnation=1, run="before", marker=8, step=8),),
            "checkpoint of run before",
        ),
    ],
)
def test_runs_without_a_tape(own: dict[str, Any], events: tuple[AnyEvent, ...], said: str) -> None:
    with pytest.raises(NoTapeError, match=said):
        tape_of(*events, **own)


def test_nothing_at_all_is_no_tape() -> None:
    with pytest.raises(NoTapeError, match="first line"):
        build([])


def test_tapes_are_plain_values() -> None:
    tape = tape_of(*SOUND)
    assert replace(tape, cut=True) != tape
    assert tape_of(*SOUND) == tape
