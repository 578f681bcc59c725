"""Every check holds on a good journal and fails on one that is broken in exactly its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness import events as ev
from reports.build import analyse
from reports.checks import CHECKS, run_checks
from reports.checks.base import Check, Evidence
from reports.history import fold
from reports.schema import Invariant, Report
from tests.reports.builder import (
    MS,
    SECOND,
    Cluster,
    Cut,
    Ghost,
    Kill,
    Pause,
    Straggle,
    among,
    change,
    journal,
    replace,
)

Events = list[ev.AnyEvent]


HOLDING = [
    "tokens-once",
    "quorum",
    "versions",
    "finite",
    "blast-radius",
    "one-author",
    "faults-real",
    "exits-explained",
    "back-in-time",
]


def checks_of(events: Sequence[ev.AnyEvent]) -> dict[str, Invariant]:
    report = analyse(fold(journal(events))).report
    return {i.name: i for i in report.invariants}


def good() -> Events:
    """A kill, a cut link and a straggler among four learners; learner-3 is never hit."""
    faults = [Kill("learner-0", 3.03, 0.4), Cut("learner-1", 4, 2), Straggle("learner-2", 5, 2)]
    return Cluster(learners=4, faults=faults).events()


def part_of(merge: ev.Merged, index: int = 0, **fields: Any) -> ev.Merged:
    parts = list(merge.contributions)
    parts[index] = replace(parts[index], **fields)  # type: ignore[type-var]
    return replace(merge, contributions=tuple(parts))


def merge_number(events: Events, number: int) -> ev.Merged:
    return [e for e in events if isinstance(e, ev.Merged)][number]


def test_a_good_journal_breaks_nothing() -> None:
    found = checks_of(good())
    assert len(found) == len(CHECKS) == 14
    held = [i.name for i in found.values() if i.asked]
    assert held == HOLDING
    for name in held:
        assert found[name].valid is True, (name, found[name].why)
        assert found[name].events or name == "blast-radius"
    for name in ("nothing-lost", "recovered-state", "checkpoints", "replay", "control"):
        assert found[name].valid == "unknown"
        assert not found[name].asked
        assert found[name].why.startswith("not asked: ")


Broken = tuple[str, str, Callable[[Events], Events], str]


def twice(events: Events) -> Events:
    """A contribution reaches back into steps that were merged before."""

    def edit(m: ev.Merged) -> ev.Merged:
        since = m.contributions[-1].since_step - 1
        steps = m.contributions[-1].step - since
        tokens = steps * 64
        return part_of(
            m, -1, since_step=since, c_steps=steps, c_tokens=tokens, weight=tokens**2 / steps
        )

    return change(events, ev.Merged, edit, 41)


def before_its_life(events: Events) -> Events:
    """A new life of a learner takes credit for steps of the one before."""
    index = next(
        i
        for i, m in enumerate(e for e in events if isinstance(e, ev.Merged))
        if any(p.incarnation == 2 for p in m.contributions)
    )
    return change(events, ev.Merged, lambda m: part_of(m, since_step=-2, c_steps=3), index)


def tokens_inflated(events: Events) -> Events:
    def edit(m: ev.Merged) -> ev.Merged:
        p = m.contributions[0]
        return part_of(m, c_tokens=p.c_tokens + 64, weight=(p.c_tokens + 64) ** 2 / p.c_steps)

    return change(events, ev.Merged, edit, 30)


def from_the_future(events: Events) -> Events:
    """A contribution counts steps that the learner never took."""

    def edit(m: ev.Merged) -> ev.Merged:
        p = m.contributions[-1]
        return part_of(m, -1, step=p.step + 500, c_steps=p.c_steps + 500)

    return change(events, ev.Merged, edit, -1)


def too_few(events: Events) -> Events:
    head = events[0]
    assert isinstance(head, ev.RunStarted)
    params = {**head.params, "quorum": 3}
    return [
        replace(head, params=params),
        *change(
            events[1:],
            ev.Merged,
            lambda m: replace(m, quorum=3, contributions=m.contributions[:2]),
            3,
        ),
    ]


def same_twice(events: Events) -> Events:
    return change(
        events,
        ev.Merged,
        lambda m: replace(m, contributions=(*m.contributions, m.contributions[0])),
        3,
    )


def too_old(events: Events) -> Events:
    def old(m: ev.Merged) -> ev.Merged:
        return part_of(m, base_clock=m.clock - 201, base_version=m.version - 2)

    return change(events, ev.Merged, old, -1)


def light(events: Events) -> Events:
    """The weight is c_tokens * c_steps: somebody forgot to square."""
    return change(
        events,
        ev.Merged,
        lambda m: part_of(m, weight=float(m.contributions[0].c_tokens)),
        10,
    )


def ghost_of_the_dead(events: Events) -> Events:
    """learner-0 died at 3.03 s; its first life contributes again at 9 s."""
    dead = merge_number(events, 20).contributions[0]
    assert dead.unit == "learner-0"
    assert dead.incarnation == 1
    index = next(
        i
        for i, e in enumerate(x for x in events if isinstance(x, ev.Merged))
        if e.t_ns > 9 * SECOND
    )
    return change(
        events,
        ev.Merged,
        lambda m: replace(m, contributions=(dead, *m.contributions[1:])),
        index,
    )


def skipped_version(events: Events) -> Events:
    return change(events, ev.Merged, lambda m: replace(m, version=m.version + 1), -1)


def repeated_version(events: Events) -> Events:
    return change(events, ev.Merged, lambda m: replace(m, version=m.version - 1), -1)


def fell_back(events: Events) -> Events:
    return change(events, ev.Adopted, lambda a: replace(a, version=a.version - 2), -1)


def fell_back_after_restart(events: Events) -> Events:
    index = next(
        i
        for i, a in enumerate(e for e in events if isinstance(e, ev.Adopted))
        if a.unit == "learner-0" and a.incarnation == 2
    )
    return change(events, ev.Adopted, lambda a: replace(a, version=1), index)


def from_nowhere(events: Events) -> Events:
    return change(events, ev.Adopted, lambda a: replace(a, version=a.version + 7), -1)


def infinite(events: Events) -> Events:
    return change(events, ev.Merged, lambda m: replace(m, finite=False), 12)


def poison_merged(events: Events) -> Events:
    merge = merge_number(events, 12)
    part = merge.contributions[1]
    refused = ev.UpdateRefused(
        t_ns=merge.t_ns - MS,
        unit="syncer",
        incarnation=1,
        sender=part.unit,
        sender_incarnation=part.incarnation,
        fragment=merge.fragment,
        step=part.step,
        why="non-finite: 3 of 100 elements",
    )
    return among(events, refused)


def bystander_slow(events: Events) -> Events:
    """learner-3 was not hit and lost every fourth step while faults ran."""
    out: Events = []
    for event in events:
        if (
            isinstance(event, ev.Step)
            and event.unit == "learner-3"
            and event.t_ns > 3 * SECOND
            and event.step % 4 == 0
        ):
            continue
        out.append(event)
    return out


def bystander_stopped(events: Events) -> Events:
    return [
        e
        for e in events
        if not (isinstance(e, ev.Step) and e.unit == "learner-3" and e.t_ns > 3 * SECOND)
    ]


def second_author(events: Events) -> Events:
    """A second syncer commits the version that the first one just did."""
    merge = merge_number(events, 50)
    other = replace(merge, t_ns=merge.t_ns + MS, incarnation=2)
    return among(events, other)


def zombie_author(events: Events) -> Events:
    """Incarnation 2 commits, and then incarnation 1 does again."""
    return change(events, ev.Merged, lambda m: replace(m, incarnation=2), 50)


def rolled_back_twice(events: Events) -> Events:
    """A syncer that lost its disk commits a version that it had committed before."""
    merge = [e for e in events if isinstance(e, ev.Merged)][20]
    lost = ev.RolledBack(
        t_ns=merge.t_ns,
        unit=merge.unit,
        incarnation=merge.incarnation,
        fragment=merge.fragment,
        version=merge.version,
        before=merge.version - 1,
        clock=merge.clock,
    )
    at = events.index(merge) + 1
    return [*events[:at], lost, *events[at:]]


def no_effect(events: Events) -> Events:
    return Cluster(learners=4, faults=[Ghost("learner-0", 4, 2)]).events()


def forgotten(events: Events) -> Events:
    """Planned, never executed, never skipped."""
    plan = ev.FaultPlanned(t_ns=0, fault="f9", kind="kill", unit="learner-3", planned_at_ns=SECOND)
    return among(events, plan)


def segfault(events: Events) -> Events:
    crash = ev.UnitExited(t_ns=7 * SECOND, unit="learner-3", signal=11)
    return among(events, crash)


def killed_by_nobody(events: Events) -> Events:
    return [
        e
        for e in events
        if not (
            isinstance(e, ev.FaultExecuted | ev.FaultAsked | ev.FaultPlanned) and e.fault == "f1"
        )
    ]


def wrong_signal(events: Events) -> Events:
    return change(events, ev.UnitExited, lambda e: replace(e, signal=11), 0)


def never_heard_again(events: Events) -> Events:
    """learner-0 came back at 3.93 s and steps, but no merge ever includes it again."""
    long = Cluster(learners=4, faults=[Kill("learner-0", 3.03, 0.4)], window_s=20).events()
    return [
        replace(e, contributions=tuple(p for p in e.contributions if p.incarnation == 1))
        if isinstance(e, ev.Merged)
        else e
        for e in long
    ]


BROKEN: list[Broken] = [
    ("tokens-once", "twice", twice, "entered fragment 0 twice"),
    ("tokens-once", "before its life", before_its_life, "but its life began after 0"),
    ("tokens-once", "inflated", tokens_inflated, "were trained in those steps"),
    ("tokens-once", "future", from_the_future, "but the last one trained is"),
    ("quorum", "too few", too_few, "has 2 contributors, quorum is 3"),
    ("quorum", "same twice", same_twice, "counts learner-0 twice"),
    ("quorum", "too old", too_old, "based on a version 201 steps old, the bound is 200"),
    ("quorum", "light", light, "c_tokens^2/c_steps is"),
    ("quorum", "dead", ghost_of_the_dead, "it had exited 6."),
    ("versions", "skipped", skipped_version, "fragment 0 went from version 58 to 60"),
    ("versions", "repeated", repeated_version, "fragment 0 went from version 58 to 58"),
    ("versions", "fell", fell_back, "fell from version"),
    ("versions", "fell after restart", fell_back_after_restart, "at learner-0 fell from version"),
    ("versions", "from nowhere", from_nowhere, "which no syncer committed"),
    ("finite", "infinite", infinite, "holds a number that is not finite"),
    ("finite", "poison merged", poison_merged, "refused as damaged and merged all the same"),
    ("blast-radius", "slow", bystander_slow, "learner-3 was not hit and fell from 10.00 to"),
    (
        "blast-radius",
        "stopped",
        bystander_stopped,
        "learner-3 was not hit and fell from 10.00 to 0",
    ),
    ("one-author", "second", second_author, "and again by syncer (incarnation 2)"),
    ("one-author", "rolled back", rolled_back_twice, "and again by syncer (incarnation 1)"),
    ("one-author", "zombie", zombie_author, "committed after incarnation 2 had"),
    ("faults-real", "no effect", no_effect, "does not show in the unit's behaviour"),
    ("faults-real", "forgotten", forgotten, "f9 (kill on learner-3) was planned and nothing came"),
    ("exits-explained", "segfault", segfault, "learner-3 ended with signal 11 at 7.00 s"),
    ("exits-explained", "nobody", killed_by_nobody, "learner-0 ended with signal 9 at 3.03 s"),
    ("exits-explained", "signal", wrong_signal, "learner-0 ended with signal 11"),
    ("back-in-time", "never heard", never_heard_again, "was back and not heard for"),
]


@pytest.mark.parametrize(("name", "how", "breaks", "says"), BROKEN, ids=lambda v: str(v)[:20])
def test_a_broken_journal_is_caught_by_its_check(
    name: str, how: str, breaks: Callable[[Events], Events], says: str
) -> None:
    events = breaks(good())
    found = checks_of(events)
    assert found[name].valid is False, found[name].why
    assert says in found[name].why
    # The evidence points at lines that exist.
    assert found[name].events
    assert all(1 <= line <= len(events) for line in found[name].events)


def test_evidence_is_the_line_itself() -> None:
    events = infinite(good())
    (line,) = checks_of(events)["finite"].events
    event = events[line - 1]
    assert isinstance(event, ev.Merged)
    assert not event.finite


def test_a_broken_safety_claim_makes_the_run_deviate() -> None:
    report = analyse(fold(journal(twice(good())))).report
    assert (report.verdict.outcome, report.verdict.exit_status) == ("deviated", 1)
    assert report.verdict.conclusive
    assert report.verdict.reasons[0].startswith("tokens-once: ")


def syncer_restarts(events: Events, version_shift: int) -> Events:
    """The syncer is killed at 5 s and a second life commits from 5.5 s on."""
    out: Events = []
    fault: dict[str, Any] = {"fault": "f9", "kind": "kill", "unit": "syncer"}
    extra: Events = [
        ev.FaultPlanned(t_ns=0, planned_at_ns=5 * SECOND, **fault),
        ev.FaultAsked(t_ns=5 * SECOND - MS, **fault),
        ev.FaultExecuted(t_ns=5 * SECOND, **fault),
        ev.UnitExited(t_ns=5 * SECOND, unit="syncer", pid=10, signal=9),
        ev.UnitSpawned(t_ns=5 * SECOND + 100 * MS, unit="syncer", by="supervisor", pid=11),
        ev.UnitStarted(
            t_ns=5 * SECOND + 200 * MS, unit="syncer", incarnation=2, role="syncer", pid=11
        ),
    ]
    for event in events:
        if isinstance(event, ev.Merged) and event.t_ns > 5 * SECOND:
            event = replace(event, incarnation=2, version=event.version + version_shift)
        elif isinstance(event, ev.Adopted) and event.t_ns > 5 * SECOND:
            event = replace(event, version=event.version + version_shift)
        out.append(event)
    return among(out, *extra)


def test_the_syncers_own_death() -> None:
    base = Cluster(learners=4).events()
    found = checks_of(syncer_restarts(base, 0))
    assert found["nothing-lost"].valid is True, found["nothing-lost"].why
    assert found["versions"].valid is True
    # One version ahead at the change of lives: its line may have died with the syncer.
    assert checks_of(syncer_restarts(base, 1))["versions"].valid is True
    assert "across a restart" in checks_of(syncer_restarts(base, 1))["versions"].why
    assert checks_of(syncer_restarts(base, 2))["versions"].valid is False
    again = checks_of(syncer_restarts(base, -1))["nothing-lost"]
    assert again.valid is False
    assert "was committed again after the syncer died" in again.why


def test_recovered_state_is_compared_digest_by_digest() -> None:
    def copied(digest: str) -> Events:
        return change(
            good(),
            ev.Joined,
            lambda j: replace(
                j,
                source="learner-3",
                inner="learner-3",
                digests={"params": "aa", "moments": digest},
                donor_digests={"params": "aa", "moments": "bb"},
            ),
            -1,
        )

    assert checks_of(copied("bb"))["recovered-state"].valid is True
    found = checks_of(copied("cc"))["recovered-state"]
    assert found.valid is False
    assert "took moments from learner-3 and holds another value" in found.why
    rows = analyse(fold(journal(copied("cc")))).report.healing
    assert rows[0].state_digest_match is False


def test_the_run_ended_before_a_learner_could_be_heard() -> None:
    events = [
        replace(e, contributions=tuple(p for p in e.contributions if p.incarnation == 1))
        if isinstance(e, ev.Merged)
        else e
        for e in Cluster(learners=4, faults=[Kill("learner-0", 8.03, 0.4)]).events()
    ]
    found = checks_of(events)["back-in-time"]
    assert found.valid == "unknown"
    assert found.asked
    report = analyse(fold(journal(events))).report
    assert (report.verdict.outcome, report.verdict.conclusive) == ("deviated", False)
    assert report.verdict.exit_status == 3


def with_a_skip(fault: str) -> Report:
    skip: dict[str, Any] = {"fault": fault, "kind": "kill", "unit": "learner-3"}
    events = among(
        good(),
        ev.FaultPlanned(t_ns=0, planned_at_ns=SECOND, **skip),
        ev.FaultSkipped(t_ns=SECOND, why="no process to kill", **skip),
    )
    return analyse(fold(journal(events))).report


def test_one_arrival_skipped_with_a_reason_is_no_violation_and_is_said() -> None:
    first = next(e for e in good() if isinstance(e, ev.FaultExecuted)).fault
    report = with_a_skip(f"{first}.9")
    assert report.verdict.outcome == "passed"
    assert [(s.fault, s.why) for s in report.faults.skipped] == [
        (f"{first}.9", "no process to kill")
    ]
    assert any("was skipped: no process to kill" in c for c in report.verdict.cautions)
    assert (report.faults.planned, report.faults.executed, report.faults.effective) == (4, 3, 3)


def test_a_fault_of_which_nothing_took_effect_is_never_green() -> None:
    report = with_a_skip("f9")
    assert (report.verdict.outcome, report.verdict.exit_status) == ("no-effect", 3)
    assert (
        "f9 (kill on learner-3) never took effect: no process to kill"
        in (report.verdict.reasons[0])
    )


def test_a_schedule_that_hits_nothing_is_inconclusive() -> None:
    skip: dict[str, Any] = {"fault": "f1", "kind": "kill", "unit": "learner-3"}
    calm = Cluster().events()
    events = among(
        calm,
        ev.FaultPlanned(t_ns=0, planned_at_ns=SECOND, **skip),
        ev.FaultSkipped(t_ns=SECOND, why="the unit is gone", **skip),
    )
    report = analyse(fold(journal(events))).report
    assert (report.verdict.outcome, report.verdict.exit_status) == ("no-effect", 3)
    ghost = analyse(fold(journal(no_effect([])))).report
    assert (ghost.verdict.outcome, ghost.verdict.exit_status) == ("no-effect", 3)


def test_a_crashing_check_is_unknown_and_says_so() -> None:
    def judge(e: Evidence) -> Any:
        raise ZeroDivisionError("division by zero")

    analysis = analyse(fold(journal(good())))
    evidence = Evidence(analysis.history, analysis.facts, analysis.healing, None)  # type: ignore[arg-type]
    crash, sound = run_checks(evidence, (Check("bad", "never", judge), CHECKS[2]))
    assert crash.crashed
    assert crash.finding.valid == "unknown"
    assert crash.finding.asked
    assert "ZeroDivisionError: division by zero" in crash.finding.why
    assert sound.finding.valid is True


def test_pauses_and_two_kills_of_one_unit_are_all_explained() -> None:
    faults = [
        Kill("learner-0", 3.03, 0.3),
        Kill("learner-0", 6.03, 0.3),
        Pause("learner-1", 4, 1),
    ]
    found = checks_of(Cluster(learners=4, faults=faults).events())
    assert not [i for i in found.values() if i.valid is False]
    assert found["exits-explained"].why == "2 exits, each one caused by a fault"
    # Two kills at once explain one death each and no more.
    once = Cluster(learners=4, faults=faults[:1]).events()
    third = ev.UnitExited(t_ns=round(3.5 * SECOND), unit="learner-0", signal=9)
    assert checks_of(among(once, third))["exits-explained"].valid is False


def test_one_death_does_not_make_two_kills_effective() -> None:
    events = Cluster(learners=4, faults=[Kill("learner-0", 3.03, 0.4)]).events()
    twin: dict[str, Any] = {"fault": "f2", "kind": "kill", "unit": "learner-0"}
    at = round(3.02 * SECOND)
    events = among(
        events,
        ev.FaultPlanned(t_ns=0, planned_at_ns=at, **twin),
        ev.FaultAsked(t_ns=at, **twin),
        ev.FaultExecuted(t_ns=at + MS, **twin),
    )
    report = analyse(fold(journal(events))).report
    assert [r.effective for r in report.faults.rows] == [True, False]
    assert report.verdict.outcome == "no-effect"


@pytest.mark.parametrize("why", ["checksum", "truncated", "non-finite", "outlier"])
def test_every_damaged_update_names_its_sender(why: str) -> None:
    merge = merge_number(good(), 12)
    fields: dict[str, Any] = {"unit": "syncer", "incarnation": 1, "sender_incarnation": 1}
    refused = ev.UpdateRefused(
        t_ns=merge.t_ns, sender="learner-3", fragment=0, step=7, why=f"{why}: so", **fields
    )
    finding = checks_of(among(good(), refused))["finite"]
    assert finding.valid is True
    assert "1 damaged updates refused, from learner-3" in finding.why
    # What came too late or twice is sound.
    late = replace(refused, why="late: answers request 3, which is closed")
    assert "learner-3" not in checks_of(among(good(), late))["finite"].why
    part = merge.contributions[1]
    merged = replace(refused, sender=part.unit, fragment=merge.fragment, step=part.step)
    assert checks_of(among(good(), merged))["finite"].valid is False


def test_who_died_and_never_came_back_leaves_the_claim_open() -> None:
    """Also when the run went on for far longer than the bound: that it ever would is not known."""
    for at_s in (4.03, 11.5):
        report = analyse(
            fold(journal(Cluster(faults=[Kill("learner-1", at_s, down_s=None)]).events()))
        ).report
        finding = next(i for i in report.invariants if i.name == "back-in-time")
        assert finding.valid == "unknown"
        assert finding.asked
        assert "learner-1 after f1 (kill) never came back" in finding.why
        assert (report.verdict.outcome, report.verdict.exit_status) == ("deviated", 3)


def test_one_that_stays_away_is_not_hidden_by_one_that_came_back() -> None:
    faults = [Kill("learner-0", 3.03, 0.4), Kill("learner-1", 4.03, down_s=None)]
    report = analyse(fold(journal(Cluster(faults=faults).events()))).report
    assert (report.verdict.outcome, report.verdict.exit_status) == ("deviated", 3)


def test_who_was_killed_again_while_down_is_waited_for_from_its_last_death() -> None:
    faults = [Kill("learner-1", 3.03, 0.4), Kill("learner-1", 3.6, 0.4)]
    report = analyse(fold(journal(Cluster(faults=faults).events()))).report
    assert report.verdict.outcome == "passed", report.verdict.reasons


@pytest.mark.parametrize("at_s", [6.0, 9.0])
def test_a_cluster_that_is_dead_at_the_end_is_never_green(at_s: float) -> None:
    """Nobody hit it at all: it just stops."""
    end = round(at_s * SECOND)
    quiet = [
        e
        for e in Cluster().events()
        if not (isinstance(e, ev.Step | ev.Merged | ev.Adopted) and e.t_ns > end)
    ]
    report = analyse(fold(journal(quiet))).report
    assert report.verdict.exit_status in (1, 3)
    assert any("no learner stepped in the last" in r for r in report.verdict.reasons)


def test_steps_that_nobody_took_are_no_pass() -> None:
    quiet = [e for e in Cluster().events() if not isinstance(e, ev.Step | ev.Merged | ev.Adopted)]
    head = quiet[0]
    assert isinstance(head, ev.RunStarted)
    report = analyse(fold(journal([replace(head, fragments=()), *quiet[1:]]))).report
    assert report.verdict.exit_status in (1, 3)
