"""Lives, windows and links from journals that are whole, torn, cut or out of order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness import events as ev
from harness.errors import JournalError
from reports.build import analyse
from reports.history import fold, read_history
from tests.reports import hand
from tests.reports.builder import SECOND, Cluster, Cut, Kill, journal, replace, write


def test_lives_of_a_killed_learner() -> None:
    history = fold(journal(hand.journal()))
    first, second = history.lives["learner-1"]
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert first.ended_ns == round(4.5 * SECOND)
    assert first.numbers == [1, 2, 3, 4]
    assert second.by == "supervisor"
    assert second.begin_ns == round(5.5 * SECOND)
    assert second.ready_ns == round(6.5 * SECOND)
    assert second.ended_ns is None
    assert history.life_at("learner-1", 5 * SECOND) is None
    assert history.life_at("learner-1", 6 * SECOND) is second


def test_order_of_lines_does_not_matter() -> None:
    events = Cluster(faults=[Kill("learner-1", 3.03), Cut("learner-2", 5, 2)]).events()
    head, *rest = events
    mixed = list(rest)
    random.Random(3).shuffle(mixed)
    one = analyse(fold(journal(events))).report
    other = analyse(fold(journal([head, *mixed]))).report
    assert one.goodput == other.goodput
    assert [h.reintegrate_s for h in one.healing] == [h.reintegrate_s for h in other.healing]


def test_spawn_told_after_the_units_first_line() -> None:
    # A container engine may report a start after the unit's own output has arrived.
    events = [e for e in hand.journal() if not isinstance(e, ev.UnitSpawned)]
    late = ev.UnitSpawned(t_ns=round(5.7 * SECOND), unit="learner-1", by="policy", pid=3)
    history = fold(journal(sorted([*events, late], key=lambda e: e.t_ns)))
    first, second = history.lives["learner-1"]
    assert first.incarnation == 1
    assert (second.incarnation, second.by) == (2, "policy")
    assert second.begin_ns == round(5.6 * SECOND)


def test_exit_without_event_ends_with_the_last_sign_of_life() -> None:
    events = [e for e in hand.journal() if not isinstance(e, ev.UnitExited)]
    first = fold(journal(events)).lives["learner-1"][0]
    assert first.exit is None
    assert first.ended_ns == round(4.25 * SECOND)


def test_a_journal_cut_at_every_line_still_gives_a_report_that_says_so(tmp_path: Path) -> None:
    events = Cluster(
        learners=2, faults=[Kill("learner-1", 2.03, 0.3), Cut("learner-0", 3, 1)], window_s=4
    ).events()
    lines = [ev.encode(e) for e in events]
    for keep in range(1, len(lines)):
        (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:keep]))
        report = analyse(read_history(tmp_path)).report
        assert report.verdict.outcome == "harness-error", keep
        assert report.verdict.exit_status == 4
        assert not report.verdict.conclusive
        assert not report.run.complete
        assert f"ends after line {keep} " in report.verdict.reasons[0]
        assert not [i for i in report.invariants if i.valid is False], keep


def test_a_torn_last_line_is_named(tmp_path: Path) -> None:
    events = Cluster(learners=2, window_s=3).events()
    lines = [ev.encode(e) for e in events[:200]]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines) + b'{"event":"step","t_n')
    report = analyse(read_history(tmp_path)).report
    assert any("torn last line 201" in note for note in report.run.notes)
    assert any("cut short" in reason for reason in report.verdict.reasons)


def test_an_unreadable_line_in_the_middle_is_skipped_and_named(tmp_path: Path) -> None:
    events = Cluster(learners=2, window_s=3).events()
    lines = [ev.encode(e) for e in events]
    heard = ev.encode(ev.Heard(t_ns=5, unit="syncer", incarnation=1, peer="learner-0", rtt_ns=9))
    lines.insert(40, b"\x00\xff garbage\n")
    lines.insert(41, heard)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines))
    history = read_history(tmp_path)
    assert any("unreadable line 41" in p for p in history.problems)
    # Evidence points at lines of the file, not at positions among the readable ones.
    assert history.heard[0].line == 42


def test_no_first_line_is_a_problem_and_not_a_crash() -> None:
    history = fold(journal(Cluster(learners=2, window_s=3).events()[1:]))
    assert history.run.run == "unknown"
    assert history.learners == ["learner-0", "learner-1"]
    assert "lacks its first line" in history.problems[0]


def test_no_journal_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot read journal"):
        read_history(tmp_path)
    (tmp_path / "journal.jsonl").write_bytes(b"")
    with pytest.raises(JournalError, match="holds no event"):
        read_history(tmp_path)


def test_unknown_kinds_are_counted_and_told(tmp_path: Path) -> None:
    events = Cluster(learners=2, window_s=3).events()
    events.insert(9, ev.Unknown(t_ns=7, kind="from_the_future", fields={"x": 1}))
    write(tmp_path, events)
    report = analyse(read_history(tmp_path)).report
    assert any("from_the_future" in c for c in report.verdict.cautions)
    assert report.verdict.outcome == "passed"


def test_steps_between_leaves_out_only_what_is_outside() -> None:
    history = fold(journal(Cluster(faults=[Kill("learner-1", 3.03)]).events()))
    since, until = 3 * SECOND, 6 * SECOND
    for unit in history.learners:
        steps = list(history.steps(unit))
        inside = [s for s in steps if s.event.t_ns >= since and s.event.began_at_ns < until]
        assert list(history.steps_between(unit, since, until)) == inside
        assert 0 < len(inside) < len(steps)


def test_steps_between_gives_all_steps_of_a_journal_out_of_order() -> None:
    head, *rest = hand.journal()
    first = next(i for i, e in enumerate(rest) if isinstance(e, ev.Step))
    step = rest[first]
    assert isinstance(step, ev.Step)
    long = replace(step, began_at_ns=step.began_at_ns - SECOND // 2, step=step.step + 40)
    history = fold(journal([head, *rest, long]))
    unit = step.unit
    assert list(history.steps_between(unit, 100 * SECOND, 0)) == list(history.steps(unit))
