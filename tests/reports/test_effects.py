"""Evidence of each fault is looked for in the victim's own behaviour, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from faults import FAULTS
from harness import events as ev
from reports.build import analyse
from reports.effects import EVIDENCE, FaultFact, judge_faults
from reports.history import fold
from tests.reports.builder import (
    MS,
    SECOND,
    Cluster,
    Cut,
    Ghost,
    Kill,
    Pause,
    Scripted,
    Straggle,
    among,
    change,
    journal,
    replace,
)


def fact_of(events: list[ev.AnyEvent]) -> FaultFact:
    (fact,) = judge_faults(fold(journal(events)))
    return fact


def test_every_known_kind_has_its_evidence() -> None:
    assert set(FAULTS) - {"noop"} <= set(EVIDENCE)


@pytest.mark.parametrize(
    ("fault", "what", "at_s", "says"),
    [
        (Kill("learner-1", 4.03), "exit", 4.03, "its process ended with signal 9"),
        (Pause("learner-1", 4.0, 1.5), "stopped", 4.0, "no step ended for 1.50 s"),
        # Less than three steps: only the one that it hit tells of it.
        (Pause("learner-1", 4.03, 0.25), "stopped", 4.029, "a step took 0.25 s more than 0.10 s"),
        (Straggle("learner-1", 4.0, 1.5), "slowed", 4.0, "took 0.300 s instead of 0.100 s"),
        (Cut("learner-1", 4.0, 2.0), "link", 5.0, "syncer lost its link to learner-1: silent"),
        # Shorter than the silence that would be noticed: only the missing merges show it.
        (
            Cut("learner-1", 4.0, 0.8, notice_s=50),
            "unheard",
            4.05,
            "left out of 8 of 8 merges, in 38 before",
        ),
    ],
    ids=lambda v: str(v)[:16],
)
def test_each_kind_shows(fault: Scripted, what: str, at_s: float, says: str) -> None:
    events = Cluster(faults=[fault]).events()
    effect = fact_of(events).effect
    assert effect is not None
    assert effect.what == what
    assert effect.at_ns == round(at_s * SECOND)
    assert says in effect.how
    assert effect.lines
    assert all(1 <= line <= len(events) for line in effect.lines)


@pytest.mark.parametrize("kind", sorted(EVIDENCE))
def test_a_fault_that_did_nothing_shows_nothing(kind: str) -> None:
    """The same calm journal for every kind: asking for a fault is never evidence of it."""
    fact = fact_of(Cluster(faults=[Ghost("learner-1", 4.0, 2.0, kind)]).events())
    assert fact.executed
    assert fact.effect is None
    assert fact.why_not == ""


@pytest.mark.parametrize("kind", sorted(EVIDENCE))
def test_what_happens_to_another_unit_is_no_evidence(kind: str) -> None:
    faults: list[Scripted] = [Ghost("learner-1", 4.0, 2.0, kind), Kill("learner-2", 4.03)]
    facts = judge_faults(fold(journal(Cluster(faults=faults).events())))
    assert facts[0].effect is None
    assert facts[1].effect is not None


def latent(events: list[ev.AnyEvent], pull_ms: int) -> list[ev.AnyEvent]:
    def slow(m: ev.Merged) -> ev.Merged:
        if not 4 * SECOND < m.t_ns < 6 * SECOND:
            return m
        parts = [
            replace(p, pull_ns=pull_ms * MS) if p.unit == "learner-1" else p  # type: ignore[type-var]
            for p in m.contributions
        ]
        return replace(m, contributions=tuple(parts))

    return change(events, ev.Merged, slow, None)


def test_latency_shows_in_slower_pulls() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0)]).events()
    effect = fact_of(latent(events, 42)).effect
    assert effect is not None
    assert effect.what == "pulls"
    assert "a pull took 42.0 ms instead of 2.0 ms" in effect.how
    assert fact_of(latent(events, 2)).effect is None


def test_latency_shows_in_round_trips_of_an_idle_link() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0)]).events()
    beats = [
        ev.Heard(
            t_ns=i * 500 * MS,
            unit="learner-1",
            incarnation=1,
            peer="syncer",
            rtt_ns=(90 if 4.0 <= i / 2 <= 6.0 else 1) * MS,
        )
        for i in range(2, 20)
    ]
    effect = fact_of(among(events, *beats)).effect
    assert effect is not None
    assert "a round trip took 90.0 ms instead of 1.0 ms" in effect.how


def test_a_poisoned_update_shows_when_it_is_refused() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "corrupt_update")]).events()
    refusal = ev.UpdateRefused(
        t_ns=5 * SECOND,
        unit="syncer",
        incarnation=1,
        sender="learner-1",
        sender_incarnation=1,
        fragment=1,
        step=49,
        why="non-finite: 100 of 100 elements",
    )
    effect = fact_of(among(events, refusal)).effect
    assert effect is not None
    assert effect.how == "its update of fragment 1 was refused: non-finite: 100 of 100 elements"
    other = replace(refusal, sender="learner-2")
    assert fact_of(among(events, other)).effect is None


def test_throttling_shows_in_compute_even_when_pacing_hides_it() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "throttle")]).events()

    def busy(s: ev.Step) -> ev.Step:
        slow = s.unit == "learner-1" and 4 * SECOND <= s.began_at_ns < 6 * SECOND
        return replace(s, compute_ns=70 * MS) if slow else s

    effect = fact_of(change(events, ev.Step, busy, None)).effect
    assert effect is not None
    assert "a step's compute took 0.070 s instead of 0.020 s" in effect.how
    # For a straggler compute is no evidence: its emulated chip must have slowed down.
    straggler = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "straggle")]).events()
    assert fact_of(change(straggler, ev.Step, busy, None)).effect is None


def test_a_fault_on_a_dead_unit_is_explained() -> None:
    faults: list[Scripted] = [
        Kill("learner-1", 4.03, down_s=None),
        Ghost("learner-1", 6.0, 1.0, "partition"),
    ]
    report = analyse(fold(journal(Cluster(faults=faults).events()))).report
    row = report.faults.rows[1]
    assert not row.effective
    assert row.evidence == "the unit was down for as long as the fault lasted"
    checks = {i.name: i for i in report.invariants}
    assert checks["faults-real"].valid is False
    assert "f2 (partition on learner-1) never took effect" in checks["faults-real"].why


def test_the_do_nothing_fault_is_a_control() -> None:
    report = analyse(
        fold(journal(Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "noop")]).events()))
    ).report
    assert report.verdict.outcome == "passed"
    assert report.faults.effective == 0
    assert report.healing == []


def test_a_paused_syncer_shows_in_missing_merges() -> None:
    common: dict[str, Any] = {"fault": "f1", "kind": "pause", "unit": "syncer"}
    hold = (ev.Hold(unit="syncer", resource="frozen", value=True),)
    pause: list[ev.AnyEvent] = [
        ev.FaultPlanned(t_ns=0, planned_at_ns=4 * SECOND, for_ns=2 * SECOND, **common),
        ev.FaultAsked(t_ns=4 * SECOND, holds=hold, **common),
        ev.FaultExecuted(t_ns=4 * SECOND + MS, **common),
        ev.FaultEnded(t_ns=6 * SECOND, **common),
    ]
    quiet = [
        e
        for e in Cluster().events()
        if not (isinstance(e, ev.Merged | ev.Adopted) and 4 * SECOND < e.t_ns < 6 * SECOND)
    ]
    effect = fact_of(among(quiet, *pause)).effect
    assert effect is not None
    assert effect.what == "stopped"
    busy = Cluster().events()
    assert fact_of(among(busy, *pause)).effect is None


# --- too little to be told from unrest, and evidence of the wrong kind ---------------------------


def asked(events: list[ev.AnyEvent], **params: Any) -> list[ev.AnyEvent]:
    """The events with parameters of the first planned fault."""
    return change(events, ev.FaultPlanned, lambda f: replace(f, params=params))


def beats(rtt_ms: float, until_ms: float, count: int = 20) -> list[ev.AnyEvent]:
    """Round trips of learner-1: ``rtt_ms`` before 4 s and ``until_ms`` from then to 6 s."""
    return [
        ev.Heard(
            t_ns=i * 500 * MS,
            unit="learner-1",
            incarnation=1,
            peer="syncer",
            rtt_ns=round((until_ms if 4.0 <= i / 2 <= 6.0 else rtt_ms) * MS),
        )
        for i in range(20 - count, 20)
    ]


@pytest.mark.parametrize(
    ("kind", "params", "rtt_ms", "shows"),
    [
        ("latency", {}, 0.9, False),
        ("latency", {"latency_ms": 0.1}, 0.9, False),
        ("latency", {"latency_ms": 80.0}, 60.0, False),
        ("latency", {"latency_ms": 80.0}, 160.6, True),
        ("latency", {"latency_ms": 2.0}, 4.6, True),
        ("bandwidth", {"kb_s": 1e9}, 0.9, False),
        # A kilobyte at a gigabyte a second: whatever this is, that is not why.
        ("bandwidth", {"kb_s": 1e6}, 90.0, False),
        ("bandwidth", {"kb_s": 60.0}, 25.0, True),
        ("bandwidth", {"kb_s": 60.0}, 4.0, False),
        ("cut", {"after_bytes": 10**12}, 90.0, False),
        ("reset", {}, 90.0, False),
        ("stall", {}, 0.9, False),
        ("stall", {}, 900.0, True),
    ],
)
def test_slower_answers_count_when_the_fault_explains_them(
    kind: str, params: dict[str, Any], rtt_ms: float, shows: bool
) -> None:
    events = asked(Cluster(faults=[Ghost("learner-1", 4.0, 2.0, kind)]).events(), **params)
    assert (fact_of(among(events, *beats(0.6, rtt_ms))).effect is not None) is shows


def test_slower_answers_need_some_on_both_sides() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0)]).events()
    assert fact_of(among(events, *beats(0.6, 90.0))).effect is not None
    for few in (13, 14):  # 0 and 2 before 4 s
        assert fact_of(among(events, *beats(0.6, 90.0, few)[:-7])).effect is None
    assert fact_of(among(events, *beats(0.6, 90.0)[:10])).effect is None


def refusal(why: str, at_s: float = 5.0) -> ev.UpdateRefused:
    return ev.UpdateRefused(
        t_ns=round(at_s * SECOND),
        unit="syncer",
        incarnation=1,
        sender="learner-1",
        sender_incarnation=1,
        fragment=1,
        step=49,
        why=why,
    )


WORDS = ["non-finite", "outlier", "checksum", "truncated", "stale", "duplicate", "late", "fenced"]


@pytest.mark.parametrize(
    ("kind", "how", "own"),
    [
        ("corrupt_update", "nan", {"non-finite"}),
        ("corrupt_update", "inf", {"non-finite"}),
        ("corrupt_update", "scale", {"non-finite", "outlier"}),
        ("corrupt_update", "bitflip", {"checksum"}),
        ("truncated_update", "", {"truncated"}),
        ("stale_update", "", {"stale", "duplicate"}),
        ("duplicate_update", "", {"stale", "duplicate"}),
    ],
)
def test_only_its_own_refusal_shows_a_payload_fault(kind: str, how: str, own: set[str]) -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, kind)]).events()
    events = asked(events, **({"how": how} if how else {}))
    shows = {w for w in WORDS if fact_of(among(events, refusal(f"{w}: so"))).effect is not None}
    assert shows == own
    down = ev.LinkDown(t_ns=5 * SECOND, unit="syncer", incarnation=1, peer="learner-1", why="x")
    assert fact_of(among(events, down)).effect is None


def test_a_trainer_without_numbers_cannot_be_spoilt_and_that_is_said() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "corrupt_update")]).events()
    scripted = change(events, ev.RunStarted, lambda r: replace(r, params={"trainer": "scripted"}))
    assert "hold no numbers" in fact_of(scripted).why_not


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (Ghost("learner-1", 4.1, 1.0, "straggle"), Pause("learner-1", 4.0, 2.5)),
        (Ghost("learner-1", 4.1, 1.0, "hang"), Pause("learner-1", 4.0, 2.5)),
        (Ghost("learner-1", 4.0, 1.5, "hang"), Kill("learner-1", 4.05)),
        (Ghost("learner-1", 4.0, 1.5, "straggle"), Kill("learner-1", 4.05)),
        (Ghost("learner-1", 4.0, 1.5, "pause"), Kill("learner-1", 4.05)),
        (Ghost("learner-1", 4.1, 1.5, "latency"), Cut("learner-1", 4.0, 2.0)),
        (Ghost("learner-1", 4.1, 1.5, "bandwidth"), Cut("learner-1", 4.0, 2.0)),
        (Ghost("learner-1", 4.1, 1.5, "cut"), Cut("learner-1", 4.0, 2.0)),
        (Ghost("learner-1", 4.0, 2.0, "cut"), Kill("learner-1", 4.05)),
        (Ghost("learner-1", 4.0, 2.0, "partition"), Kill("learner-1", 4.05)),
        (Ghost("learner-1", 4.0, 2.0, "latency"), Kill("learner-1", 4.05)),
    ],
    ids=lambda f: f"{f.kind}",
)
@pytest.mark.parametrize("turned", [False, True])
def test_what_a_stronger_fault_explains_is_no_evidence(
    weak: Scripted, strong: Scripted, turned: bool
) -> None:
    faults = [strong, weak] if turned else [weak, strong]
    facts = judge_faults(fold(journal(Cluster(faults=faults).events())))
    by_kind = {f.window.kind: f for f in facts}
    hidden, real = by_kind[weak.kind], by_kind[strong.kind]
    assert real.effect is not None
    assert hidden.effect is None
    assert hidden.why_not == f"hidden by {real.window.fault}"


def test_what_shows_outside_the_shadow_counts() -> None:
    faults: list[Scripted] = [
        Straggle("learner-1", 3.0, 5.0),
        Pause("learner-1", 5.0, 1.0),
    ]
    slow, frozen = judge_faults(fold(journal(Cluster(faults=faults).events())))
    assert slow.effect is not None
    assert "a step took 0.300 s instead of 0.100 s" in slow.effect.how
    assert frozen.effect is not None
    # The same on another unit casts no shadow.
    faults = [Cut("learner-1", 4.0, 2.0), Kill("learner-2", 3.95)]
    assert all(f.effect for f in judge_faults(fold(journal(Cluster(faults=faults).events()))))


def test_the_syncers_death_explains_a_lost_link_of_a_learner() -> None:
    common: dict[str, Any] = {"fault": "f9", "kind": "kill", "unit": "syncer"}
    at = 4 * SECOND + 100 * MS
    deed: list[ev.AnyEvent] = [
        ev.FaultPlanned(t_ns=0, planned_at_ns=at, **common),
        ev.FaultAsked(t_ns=at, **common),
        ev.FaultExecuted(t_ns=at, **common),
        ev.UnitExited(t_ns=at, unit="syncer", pid=10, signal=9),
        ev.LinkDown(t_ns=at + MS, unit="learner-1", incarnation=1, peer="syncer", why="closed"),
    ]
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "cut")]).events()
    cut = judge_faults(fold(journal(among(events, *deed))))[0]
    assert cut.effect is None
    assert cut.why_not == "hidden by f9"


def test_a_stale_update_after_a_cut_link_is_the_links_affair() -> None:
    faults: list[Scripted] = [
        Ghost("learner-1", 4.0, 3.0, "stale_update"),
        Cut("learner-1", 4.5, 1.5),
    ]
    events = Cluster(faults=faults).events()
    stale = refusal("stale: its base is 96 steps old, the bound is 16", 6.1)
    fact = judge_faults(fold(journal(among(events, stale))))[0]
    assert (fact.effect, fact.why_not) == (None, "hidden by f2")
    before = replace(stale, t_ns=round(4.3 * SECOND))
    assert judge_faults(fold(journal(among(events, before))))[0].effect is not None
    twice = refusal("duplicate: request 7 was answered before", 6.1)
    assert judge_faults(fold(journal(among(events, twice))))[0].effect is not None


def noted(what: str, at_s: float, unit: str = "learner-1", detail: str = "said") -> ev.UnitNote:
    return ev.UnitNote(
        t_ns=round(at_s * SECOND), unit=unit, incarnation=2, what=what, detail=detail
    )


def with_line(events: list[ev.AnyEvent], line: ev.Event) -> list[ev.AnyEvent]:
    at = next(i for i, e in enumerate(events) if e.t_ns > line.t_ns)
    return [*events[:at], line, *events[at:]]


@pytest.mark.parametrize("kind", ["lose_checkpoint", "corrupt_checkpoint", "torn_write"])
def test_a_death_alone_is_no_proof_of_damage(kind: str) -> None:
    events = Cluster(faults=[Kill("learner-1", 4.0, kind=kind)]).events()
    fact = fact_of(events)
    assert fact.effect is None
    assert fact.why_not == "its next life had no need of what was damaged"
    shown = fact_of(with_line(events, noted("state-damaged", 5.4, detail="k: wrong digest")))
    assert shown.effect is not None
    assert shown.effect.what == "exit"
    assert shown.effect.at_ns == 4 * SECOND
    assert shown.effect.how.endswith("then k: wrong digest")
    assert len(shown.effect.lines) == 2
    of_another = fact_of(with_line(events, noted("state-damaged", 5.4, "learner-2")))
    assert of_another.effect is None


def test_a_rollback_shows_damage() -> None:
    events = Cluster(faults=[Kill("learner-1", 4.0, kind="lose_checkpoint")]).events()
    back = ev.RolledBack(
        t_ns=round(5.4 * SECOND),
        unit="learner-1",
        incarnation=2,
        fragment=1,
        version=9,
        before=7,
        clock=40,
        why="gone",
    )
    effect = fact_of(with_line(events, back)).effect
    assert effect is not None
    assert "fragment 1 went from version 7 to 9: gone" in effect.how


def test_only_the_kernel_runs_a_unit_out_of_memory() -> None:
    events = Cluster(faults=[Kill("learner-1", 4.0, kind="oom")]).events()
    assert fact_of(events).effect is None, "a SIGKILL from anybody else"
    died = change(events, ev.UnitExited, lambda e: replace(e, oom=True), 0)
    effect = fact_of(died).effect
    assert effect is not None
    assert effect.what == "exit"


def test_a_full_disk_shows_in_the_units_own_words() -> None:
    events = Cluster(faults=[Ghost("learner-1", 4.0, 2.0, "disk_full")]).events()
    assert fact_of(events).effect is None
    for line in (
        noted("disk-full", 4.5),
        noted("merge-failed", 4.5, detail="OSError: [Errno 28] No space left on device"),
    ):
        effect = fact_of(with_line(events, line)).effect
        assert effect is not None
        assert (effect.what, effect.at_ns) == ("space", round(4.5 * SECOND))
    assert fact_of(with_line(events, noted("disk-full", 7.0))).effect is None, "too late"


def test_a_killed_proxy_is_seen_to_end_and_explains_broken_links() -> None:
    events = Cluster(
        faults=[Ghost("proxy", 4.0, 0.0, "kill_proxy"), Ghost("learner-1", 4.1, 1.0, "cut")]
    ).events()
    down = ev.LinkDown(
        t_ns=round(4.2 * SECOND), unit="syncer", incarnation=1, peer="learner-1", why="reset"
    )
    broken = with_line(events, down)
    proxy, cut = judge_faults(fold(journal(broken)))
    assert proxy.effect is None
    assert "hidden by" in cut.why_not
    ended = ev.ProxyChanged(t_ns=round(4.05 * SECOND), what="proxy server ended (signal 9)")
    proxy, _ = judge_faults(fold(journal(with_line(broken, ended))))
    assert proxy.effect is not None
    assert proxy.effect.what == "proxy"
