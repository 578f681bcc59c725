"""Durable state is lost or damaged while the syncer is dead, disks are full, memory runs out."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec import structs

from harness.events import FaultEnded, FaultExecuted, Merged, RolledBack, Step, UnitExited, UnitNote
from harness.journal import JournalText
from reports.build import analyse
from reports.history import fold
from reports.html import render
from targets.diloco.rescue import EPOCH
from tests.simulation.helpers import Story, experiment, fault

DAMAGE = ("corrupt_checkpoint", "torn_write")
TRAINERS = ("scripted", "quadratic")
S = 1_000_000_000


def sound(story: Story) -> Story:
    """No promise is broken, every fault showed, and no version comes twice."""
    assert story.violations() == []
    facts = {f.window.fault: f for f in story.analysis.facts}
    assert [name for name, f in facts.items() if f.effect is None] == []
    seen = [(e.fragment, e.version) for e in story.of(Merged)]
    seen += [(e.fragment, e.version) for e in story.of(RolledBack)]
    assert len(seen) == len(set(seen))
    return story


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_the_newest_state_costs_one_version(kind: str, trainer: str) -> None:
    story = sound(Story(experiment(fault(kind, "syncer", 6), trainer=trainer)))
    (back,) = story.of(RolledBack)
    assert not back.emptied
    died = story.of(UnitExited, "syncer")[0].t_ns
    newest = max(
        m.version for m in story.of(Merged) if m.fragment == back.fragment and m.t_ns < died
    )
    assert back.version == newest + 1
    assert any(m.version == newest + 2 and m.fragment == back.fragment for m in story.of(Merged))


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("blocking", [False, True])
def test_a_lost_disk_is_made_up_for_by_what_learners_hold(trainer: str, blocking: bool) -> None:
    own: dict[str, Any] = {"trainer": trainer, "blocking": blocking, "quorum": 4 if blocking else 1}
    story = sound(Story(experiment(fault("lose_checkpoint", "syncer", 6), **own)))
    died = story.of(UnitExited, "syncer")[0].t_ns
    backs = story.of(RolledBack)
    assert {b.fragment for b in backs} == {0, 1, 2, 3}
    for back in backs:
        newest = max(
            m.version for m in story.of(Merged) if m.fragment == back.fragment and m.t_ns < died
        )
        assert (back.version, back.before) == (EPOCH, newest), "nothing was lost"
    merged = [m for m in story.of(Merged) if m.t_ns > died]
    assert {c.unit for m in merged for c in m.contributions} == {f"learner-{i}" for i in range(4)}
    if not blocking:
        back_ns = backs[0].t_ns
        assert all(
            len([s for s in story.of(Step, f"learner-{i}") if died < s.t_ns < back_ns]) >= 3
            for i in range(4)
        ), "learners train on meanwhile"


def test_what_nobody_who_is_there_holds_is_not_made_up_for_and_comes_back_as_old() -> None:
    """The only learner that was heard lately is cut off when the disk is lost."""
    cut = [fault("partition", f"learner-{i}", 4, 8) for i in (1, 2, 3)]
    away = fault("partition", "learner-0", 9.5, 12)
    story = Story(experiment(*cut, away, fault("lose_checkpoint", "syncer", 9.7)))
    assert story.violations() == []
    answers = {a.check.name: a.finding.valid for a in story.analysis.answers}
    assert answers["versions"] is answers["one-author"] is answers["tokens-once"] is True
    seen = [(e.fragment, e.version) for e in story.of(Merged)]
    assert len(seen) == len(set(seen))
    late = [m for m in story.of(Merged) if m.t_ns > story.when("f5", FaultExecuted) + 14 * S]
    assert any(c.unit == "learner-0" for m in late for c in m.contributions)


LEARNERS = [f"learner-{i}" for i in range(4)]


@pytest.mark.parametrize("after_s", [0.0, 0.4, 0.7])
@pytest.mark.parametrize("kind", DAMAGE)
def test_what_emptied_the_disk_stays_the_cause_until_a_life_has_a_state(
    kind: str, after_s: float
) -> None:
    """Whatever comes upon the empty disk takes no excuse away. All that it can damage is the
    record that a rescue is under way."""
    everybody = {**fault("kill", "", 6.1), "where": LEARNERS}
    lost = fault("lose_checkpoint", "syncer", 6)
    story = Story(experiment(lost, everybody, fault(kind, "syncer", 6 + after_s)))
    assert story.violations() == []
    answers = {a.check.name: a.finding for a in story.analysis.answers}
    assert answers["nothing-lost"].valid is True
    assert "(f1)" in answers["nothing-lost"].why
    effects = {f.window.fault: f.effect for f in story.analysis.facts}
    assert effects["f1"] is not None
    assert "gave nothing back" in effects["f1"].how
    damaged = [n for n in story.of(UnitNote, "syncer") if n.what == "state-damaged"]
    assert all(n.detail.startswith("rescue: ") for n in damaged)
    assert (effects["f3"] is not None) == bool(damaged)
    assert bool(damaged) == (after_s == 0.7), "before that, the next life had not begun"
    assert all(back.emptied for back in story.of(RolledBack))


@pytest.mark.parametrize("after_ms", range(500, 1700, 60))
def test_a_rescue_that_is_cut_short_is_done_again(after_ms: int) -> None:
    """Killed at any instant of it: what was saved anew by then is not all that there was."""
    lost, again = fault("lose_checkpoint", "syncer", 6), fault("kill", "syncer", 6 + after_ms / 1e3)
    story = Story(experiment(lost, again, options={"fsync_ms": [30.0, 90.0]}))
    assert story.violations() == []
    died = story.of(UnitExited, "syncer")[0].t_ns
    before = [m for m in story.of(Merged) if m.t_ns < died]
    newest = {p: max(m.version for m in before if m.fragment == p) for p in range(4)}
    backs = story.of(RolledBack)
    assert {b.fragment for b in backs} == set(newest)
    assert all(b.before >= newest[b.fragment] for b in backs), "every learner is there and has it"


def test_of_two_losses_before_a_life_has_a_state_the_second_is_the_one_that_shows() -> None:
    everybody = {**fault("kill", "", 6.1), "where": LEARNERS}
    losses = [fault("lose_checkpoint", "syncer", at) for at in (6, 6.7)]
    story = Story(experiment(*losses, everybody))
    facts = {f.window.fault: f for f in story.analysis.facts}
    assert facts["f2"].effect is not None
    assert facts["f1"].effect is None
    answers = {a.check.name: a.finding.why for a in story.analysis.answers}
    assert "f2 came before what was damaged could be read" in answers["faults-real"]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_nothing_is_merged_while_the_disk_is_full_and_learners_train_on(trainer: str) -> None:
    story = sound(Story(experiment(fault("disk_full", "syncer", 6, 4), trainer=trainer)))
    begin, end = story.when("f1", FaultExecuted), story.when("f1", FaultEnded)
    assert [m for m in story.of(Merged) if begin + S // 5 < m.t_ns < end] == []
    assert [e for e in story.of(UnitExited) if e.t_ns < end] == [], "it ends nobody"
    for i in range(4):
        assert len([s for s in story.of(Step, f"learner-{i}") if begin < s.t_ns < end]) >= 18
    after = [m for m in story.of(Merged) if m.t_ns > end]
    assert max(c.c_steps for m in after for c in m.contributions) >= 18, "and loses nothing"


@pytest.mark.parametrize("at_ms", range(0, 200, 13))
def test_a_disk_that_fills_up_at_any_instant_of_a_merge(at_ms: int) -> None:
    slow = {"fsync_ms": [30.0, 90.0]}
    table = experiment(fault("disk_full", "syncer", 5 + at_ms / 1000, 2), options=slow)
    sound(Story(table))


@pytest.mark.parametrize("unit", ["syncer", "learner-2"])
def test_out_of_memory_is_told_from_other_deaths(unit: str) -> None:
    story = sound(Story(experiment(fault("oom", unit, 6), fault("kill", unit, 14))))
    first, second, *_ = story.of(UnitExited, unit)
    assert (first.oom, first.signal) == (True, 9)
    assert (second.oom, second.signal) == (False, 9)


@pytest.mark.parametrize("run", range(8))
def test_one_damage_after_the_other(run: int) -> None:
    """Each life finds something else wrong: what an earlier damage left must not be used."""
    draw = Random(run)
    kinds = [*DAMAGE, "lose_checkpoint", "kill"]
    faults = [
        fault(draw.choice(kinds), "syncer", round(2 + 3 * k + draw.uniform(0, 2.5), 3))
        for k in range(9)
    ]
    own: dict[str, Any] = {"trainer": draw.choice(TRAINERS), "quorum": draw.choice((1, 2, 4))}
    if draw.random() < 0.4:
        own |= {"blocking": True, "quorum": 4}
    story = Story(experiment(*faults, **own), run)
    assert story.violations() == []
    seen = [(e.fragment, e.version) for e in story.of(Merged)]
    assert len(seen) == len(set(seen))


def test_state_faults_repeat_byte_for_byte() -> None:
    faults = [
        fault(kind, "syncer", 4 + 5 * i) for i, kind in enumerate((*DAMAGE, "lose_checkpoint"))
    ]
    table = experiment(*faults, fault("disk_full", "syncer", 20, 3))
    assert Story(table, 3).ran.journal == Story(table, 3).ran.journal


def lost_says(events: list[Any]) -> Any:
    analysis = analyse(fold(JournalText(tuple(events), ())))
    return {a.check.name: a.finding.valid for a in analysis.answers}["nothing-lost"]


def test_only_what_was_asked_for_excuses_a_lost_version() -> None:
    events = list(Story(experiment(fault("torn_write", "syncer", 6))).events)
    assert lost_says(events) is True
    nobody_asked = [e for e in events if getattr(e, "kind", "") != "torn_write"]
    assert lost_says(nobody_asked) is False
    further = [
        structs.replace(e, before=e.before - 1) if isinstance(e, RolledBack) else e for e in events
    ]
    assert lost_says(further) is False, "one damage costs one version and no more"


def test_work_that_was_taken_back_is_lost_time_and_lost_tokens() -> None:
    """The disk and everybody go at once at the end: nothing that was trained is anywhere."""
    late = [
        fault("lose_checkpoint", "syncer", 29.9),
        {**fault("kill", "", 29.9), "where": LEARNERS},
    ]
    story = Story(experiment(*late, quiet_tail_s=10.0))
    report = story.analysis.report
    died = story.of(UnitExited, "syncer")[0].t_ns
    before = sum(s.tokens for s in story.of(Step) if s.t_ns <= died)
    counts = report.goodput.tokens
    assert counts.merged is not None
    assert counts.lost is not None
    assert counts.taken_back is not None
    assert counts.died is not None
    assert counts.trained == counts.merged + counts.lost + (counts.in_flight or 0)
    assert counts.taken_back > 0.7 * before
    assert counts.merged < counts.trained - 0.8 * before
    totals = report.goodput.ledger_s
    assert totals["lost"] > 4 * 29 * 0.8, "four learners, nearly thirty seconds"
    assert report.goodput.ratio is not None
    assert report.goodput.ratio < 0.35
    page = render(story.analysis).decode()
    assert "in versions that were lost with the syncer" in page
    assert "died + taken back + in flight" in page
