"""Syncer and learners together, in virtual time: what breaks, and how it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from harness import events as ev
from targets.diloco import messages as m
from tests.targets.diloco.pump import MS, Pump, audit, params_of, token_books


def started(**params: Any) -> Pump:
    """A cluster in its stride after one second."""
    pump = Pump(params_of(**params)).start().run(1000)
    assert len(pump.of(ev.Joined)) == pump.params.learners
    assert pump.of(ev.Merged)
    return pump


def check(pump: Pump) -> None:
    audit(pump.notes, pump.params.fragments)
    for book in token_books(pump):
        assert book["trained"] == book["merged"] + book["lost"] + book["in_flight"]
        assert min(book.values()) >= 0


def parts(pump: Pump, unit: str, since_ns: int = 0, life: int | None = None) -> list[Any]:
    return [
        c
        for merged in pump.of(ev.Merged, since_ns)
        for c in merged.contributions
        if c.unit == unit and (life is None or c.incarnation == life)
    ]


# --- calm ---------------------------------------------------------------------------------------


def test_calm_with_grace_everybody_is_heard() -> None:
    pump = started().run(4000)
    check(pump)
    late = pump.of(ev.Merged, 1000 * MS)
    assert len(late) >= 35  # a step of 100 ms: ten merges a second
    assert all(len(merged.contributions) == 4 for merged in late)
    assert pump.of(ev.UpdateRefused) == pump.of(ev.LinkDown) == []


def test_calm_racing_hardly_anybody_is_heard() -> None:
    """K=1 without grace: t runs M times as fast and a merge has about one contributor."""
    racing = started(grace=False, fragments=8, sync_every=8)
    racing.run(4000)
    check(racing)
    late = racing.of(ev.Merged, 1000 * MS)
    assert sum(len(merged.contributions) for merged in late) < 2 * len(late)
    calm = started(fragments=8, sync_every=8).run(4000)
    ratio = [
        sum(b["merged"] for b in token_books(p)) / sum(b["trained"] for b in token_books(p))
        for p in (racing, calm)
    ]
    assert ratio[0] < ratio[1]


def test_k_of_all_merges_everybody_every_time() -> None:
    pump = started(quorum=4, grace=False).run(3000)
    check(pump)
    assert all(len(merged.contributions) == 4 for merged in pump.of(ev.Merged))


def test_fragments_fewer_than_the_cycle() -> None:
    pump = started(fragments=3, sync_every=8).run(4000)
    check(pump)
    assert {merged.clock % 8 for merged in pump.of(ev.Merged)} == {0, 2, 5}


def test_same_inputs_same_notes() -> None:
    def once() -> list[Any]:
        pump = started(quorum=2).run(300)
        pump.kill("learner-1")
        pump.run(300)
        pump.spawn("learner-1")
        return pump.run(2000).notes

    assert once() == once()


# --- stragglers and the grace window -----------------------------------------------------------


def test_the_window_waits_for_a_straggler_but_at_most_a_step() -> None:
    pump = Pump(params_of(), step_ms={"learner-3": 150}).start().run(6000)
    check(pump)
    late = pump.of(ev.Merged, 3000 * MS)
    assert any(merged.grace_ns > 20 * MS for merged in late)
    assert all(merged.grace_ns <= 160 * MS for merged in late)
    heard = len(parts(pump, "learner-3", 3000 * MS))
    assert heard > 0.5 * len(late)


def test_a_hung_learner_holds_each_window_to_its_limit_and_no_longer() -> None:
    pump = started()
    pump.step_ms["learner-2"] = 10**6
    pump.run(3000)
    check(pump)
    late = pump.of(ev.Merged, 2000 * MS)
    assert len(late) > 4
    assert all(merged.grace_ns == merged.grace_limit_ns for merged in late)
    assert all(merged.excluded["learner-2"].startswith("no report since step") for merged in late)
    assert pump.of(ev.LinkDown) == []  # its heartbeats go on


# --- death and return --------------------------------------------------------------------------


def test_a_killed_learner_does_not_hold_up_the_others_and_comes_back() -> None:
    pump = started()
    pump.kill("learner-1")
    died = pump.now
    pump.run(1000)
    alone = pump.of(ev.Merged, died + 300 * MS)
    assert len(alone) >= 6
    assert all(merged.excluded["learner-1"].startswith("no link") for merged in alone)
    pump.spawn("learner-1")
    pump.run_until(
        lambda: bool(parts(pump, "learner-1", died, life=2)), 1000, "learner-1 is merged again"
    )
    joined = pump.of(ev.Joined, died, unit="learner-1")[0]
    assert (joined.source, joined.incarnation) == ("syncer", 2)
    assert joined.clock == max(n.clock for n in pump.of(ev.Merged) if n.t_ns <= joined.t_ns)
    check(pump)


def test_all_learners_die_and_come_back() -> None:
    pump = started(quorum=2)
    for name in pump.learners:
        pump.kill(name)
    died = pump.now
    pump.run(2000)
    assert pump.of(ev.Merged, died + 100 * MS) == []
    for name in pump.learners:
        pump.spawn(name)
    pump.run(2000)
    assert {c.unit for m_ in pump.of(ev.Merged, died + 100 * MS) for c in m_.contributions} == set(
        pump.learners
    )
    check(pump)


def test_a_learner_that_restarts_again_and_again() -> None:
    pump = started()
    for _ in range(6):
        pump.kill("learner-0")
        pump.run(30)
        pump.spawn("learner-0")
        pump.run(170)
    pump.run(1000)
    assert parts(pump, "learner-0", life=7)
    check(pump)


def test_the_syncer_dies_and_goes_on_where_it_was() -> None:
    pump = started()
    pump.kill("syncer")
    died = pump.now
    pump.run(700)
    assert len(pump.of(ev.Step, died)) > 20  # nobody waits for it
    before = pump.of(ev.Merged)[-1]
    pump.spawn("syncer")
    pump.run(2000)
    after = pump.of(ev.Merged, died)[0]
    assert after.incarnation == 2
    assert after.clock > before.clock
    check(pump)


def test_asked_to_stop_units_end_in_good_order() -> None:
    pump = started()
    for name in (*pump.learners, "syncer"):
        pump.stop(name)
    pump.run(600)
    assert all(not unit.alive and unit.stopped.code == 0 for unit in pump.units.values())  # type: ignore[union-attr]
    assert len(pump.of(ev.UnitEnded)) == 5


# --- links -------------------------------------------------------------------------------------


def test_a_broadcast_that_was_lost_does_not_merge_twice() -> None:
    pump = started(learners=2)

    def lose(sender: str, message: Any) -> list[Any]:
        return [] if isinstance(message, m.Fragment) else [message]

    pump.tamper = lose
    pump.run_until(lambda: bool(parts(pump, "learner-1", 1000 * MS)), 500, "one more part")
    pump.tamper = lambda sender, message: [message]
    lost = pump.of(ev.Merged)[-1]
    assert "learner-1" in [c.unit for c in lost.contributions]
    pump.cut("learner-0")
    pump.cut("learner-1")
    back = pump.now
    pump.run(1500)
    adopted = pump.of(ev.Adopted, back, unit="learner-1", fragment=lost.fragment)
    assert adopted[0].version >= lost.version
    assert adopted[0].t_ns - back < 200 * MS  # sent again with the welcome, not a cycle later
    assert pump.of(ev.UpdateRefused) == []
    check(pump)  # the audit fails on any step that is merged twice


def test_a_lost_broadcast_without_a_reconnect_heals_too() -> None:
    """The duplicate is refused, and the refusal brings the fragment that was missed."""
    pump = started(learners=2, quorum=2)
    lost: list[Any] = []

    def lose_one(sender: str, message: Any) -> list[Any]:
        if isinstance(message, m.Fragment) and len(lost) < 2:
            lost.append(message)
            return []
        return [message]

    pump.tamper = lose_one
    pump.run(3000)
    refused = pump.of(ev.UpdateRefused)
    assert {r.why.split(":")[0] for r in refused} == {"duplicate"}
    last = pump.of(ev.Merged)[-1]
    assert last.t_ns > pump.now - 300 * MS  # K of all goes on
    check(pump)


def test_a_frozen_learners_late_push_is_refused() -> None:
    pump = started(pull_ms_max=200)
    held: list[Any] = []

    def hold(sender: str, message: Any) -> list[Any]:
        if sender == "learner-1" and isinstance(message, m.Push):
            held.append(message)
            return []
        return [message]

    pump.tamper = hold
    pump.run_until(lambda: bool(held), 500, "a push of learner-1")
    pump.tamper = lambda sender, message: [message]
    pump.freeze("learner-1")
    pump.run(800)
    assert any(
        "late: no push within 200 ms" in merged.excluded.get("learner-1", "")
        for merged in pump.of(ev.Merged, 1000 * MS)
    )
    pump.thaw("learner-1")
    late = held[0]
    unit = pump.units["learner-1"]
    pump._transmit(unit, "syncer", late)
    pump.run(50)
    (refused,) = [r for r in pump.of(ev.UpdateRefused) if r.sender == "learner-1"]
    assert refused.why.startswith("late: answers request")
    pump.run(1500)
    check(pump)


def test_a_learner_frozen_beyond_the_silence_bound_is_dropped_and_resumes_its_own_state() -> None:
    pump = started()
    pump.freeze("learner-2")
    froze = pump.now
    pump.run(3000)
    (down,) = pump.of(ev.LinkDown, unit="syncer", peer="learner-2")
    assert 1400 * MS <= down.t_ns - froze <= 1800 * MS
    pump.thaw("learner-2")
    thawed = pump.now
    pump.run_until(lambda: bool(parts(pump, "learner-2", thawed)), 2000, "merged again")
    assert pump.of(ev.Joined, froze) == []  # E.3.1: no transfer, the cycle refreshes it
    check(pump)


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
def test_a_silent_link_is_noticed_and_made_anew(up: bool, down: bool) -> None:
    pump = started()
    pump.silence("learner-0", up=up, down=down)
    began = pump.now
    pump.run(3000)
    noticed = pump.of(ev.LinkDown, began)
    assert {n.unit for n in noticed} >= {"syncer" if up else "learner-0"}
    assert all(n.t_ns - began <= 2000 * MS for n in noticed[:1])
    assert len(pump.of(ev.Step, began, unit="learner-0")) >= 28  # it trains on
    pump.heal("learner-0")
    healed = pump.now
    pump.run_until(lambda: bool(parts(pump, "learner-0", healed)), 2500, "merged again")
    check(pump)


def test_refused_connections_are_dialled_again() -> None:
    pump = started()
    pump.wires["learner-3"].refused = True
    pump.cut("learner-3")
    pump.run(1000)
    pump.heal("learner-3")
    healed = pump.now
    pump.run_until(lambda: bool(parts(pump, "learner-3", healed)), 1000, "merged again")
    check(pump)


def test_everybody_loses_the_link_at_once_k_of_all() -> None:
    pump = started(quorum=4, grace=False)
    for name in pump.learners:
        pump.silence(name)
    pump.run(3000)
    for name in pump.learners:
        pump.heal(name)
    healed = pump.now
    pump.run(3000)
    assert len(pump.of(ev.Merged, healed)) > 15
    check(pump)


def test_slow_links_still_merge() -> None:
    pump = Pump(params_of(), latency_ms=60).start().run(5000)
    check(pump)
    assert len(pump.of(ev.Merged)) > 10
    assert all(heard.rtt_ns == 120 * MS for heard in pump.of(ev.Heard))


# --- pulls and payloads ------------------------------------------------------------------------


def test_too_few_fragments_returns_to_the_same_step() -> None:
    pump = started(quorum=3, learners=3, pull_ms_max=200)
    dropped: list[Any] = []

    def drop(sender: str, message: Any) -> list[Any]:
        if sender == "learner-2" and isinstance(message, m.Push) and len(dropped) < 2:
            dropped.append(message)
            return []
        return [message]

    pump.tamper = drop
    before = pump.now
    pump.run(2000)
    again = [n for n in pump.of(ev.UnitNote, before) if n.what == "collect-again"]
    assert len(again) == 2
    assert "learner-2: late: no push within 200 ms" in again[0].detail
    check(pump)  # no global step is skipped or repeated


def test_a_poisoned_learner_is_named_and_the_others_merge() -> None:
    pump = started()
    pump.poison["learner-1"] = "12 NaN values"
    before = pump.now
    pump.run(1000)
    refused = pump.of(ev.UpdateRefused, before)
    assert refused
    assert {(r.sender, r.why) for r in refused} == {("learner-1", "non-finite: 12 NaN values")}
    assert not parts(pump, "learner-1", before + 100 * MS)
    pump.poison.clear()
    healed = pump.now
    pump.run_until(lambda: bool(parts(pump, "learner-1", healed)), 1000, "merged again")
    check(pump)


def test_duplicated_pushes_count_once() -> None:
    pump = started()
    pump.tamper = lambda sender, message: (
        [message, message] if isinstance(message, m.Push) else [message]
    )
    pump.run(1500)
    assert {r.why.split(":")[0] for r in pump.of(ev.UpdateRefused)} == {"duplicate"}
    check(pump)


def test_another_layout_ends_the_learner_and_the_run_goes_on() -> None:
    pump = Pump(params_of())
    pump.start("syncer", "learner-0", "learner-1", "learner-2")
    pump.layout = "other"
    pump.start("learner-3").run(1500)
    (ended,) = pump.of(ev.UnitEnded)
    assert (ended.unit, "layout" in ended.why) == ("learner-3", True)
    assert len(pump.of(ev.Merged)) > 5
    check(pump)


# --- blocking ----------------------------------------------------------------------------------


def blocking(**params: Any) -> Pump:
    settings = {"quorum": 4, "grace": False, "blocking": True}
    return Pump(params_of(**{**settings, **params}), step_ms={"learner-3": 130}).start()


@pytest.mark.parametrize(("fragments", "sync_every"), [(1, 1), (1, 6), (4, 4), (3, 8)])
def test_blocking_keeps_learners_in_step(fragments: int, sync_every: int) -> None:
    pump = blocking(fragments=fragments, sync_every=sync_every).run(5000)
    check(pump)
    merges = pump.of(ev.Merged)
    assert len(merges) >= 4
    for merged in merges:
        assert [c.step for c in merged.contributions] == [merged.clock] * 4
    assert pump.of(ev.Waited)
    for book in token_books(pump):
        assert book["lost"] == 0


def test_blocking_waits_for_a_dead_learner_and_then_goes_on() -> None:
    pump = blocking(fragments=2, sync_every=2).run(1000)
    pump.kill("learner-1")
    died = pump.now
    pump.run(2000)
    assert pump.of(ev.Merged, died + 200 * MS) == []
    pump.spawn("learner-1")
    back = pump.now
    pump.run(2000)
    assert len(pump.of(ev.Merged, back)) > 5
    waited = [w for w in pump.of(ev.Waited, died) if w.unit == "learner-0"]
    assert sum(w.t_ns - w.began_at_ns for w in waited) > 1500 * MS
    check(pump)


def test_blocking_survives_a_lost_broadcast_and_a_lost_report() -> None:
    for lost in (m.Fragment, m.Report, m.Pull, m.Push):
        pump = blocking(fragments=2, sync_every=2, pull_ms_max=200).run(1000)

        def lose(sender: str, message: Any, lost: type[Any] = lost) -> list[Any]:
            return [] if isinstance(message, lost) else [message]

        pump.tamper = lose
        pump.run(150)
        pump.tamper = lambda sender, message: [message]
        for name in pump.learners:
            pump.cut(name)
        back = pump.now
        pump.run(2000)
        assert len(pump.of(ev.Merged, back)) > 5, lost
        check(pump)
