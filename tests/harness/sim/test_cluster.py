"""The simulated cluster through its runtime: life, death, holds, links and disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.base import LinkState, Tuning
from harness.errors import FaultSkipped, SpecError
from harness.events import (
    AnyEvent,
    LinkDown,
    LinkUp,
    UnitEnded,
    UnitExited,
    UnitNote,
    UnitReady,
    UnitSpawned,
    UnitStarted,
    encode,
)
from harness.runtimes.base import RunContext
from harness.runtimes.simulated import SimulatedRuntime
from tests.simulation.pingpong import PingPong

S = 1_000_000_000
MS = 1_000_000
FAST: dict[str, Any] = {
    "spawn_ms": (10, 10),
    "import_ms": (100, 100),
    "cold_compile_ms": (100, 100),
    "compile_ms": (50, 50),
    "syncer_ready_ms": (50, 50),
    "restart_ms": (100, 100),
    "latency_ms": (0.2, 0.4),
    "step_jitter_ms": 0.0,
}


class Sim:
    """A runtime over ping-pong, and everything it has said so far."""

    def __init__(self, path: Path, clients: int = 1, seed: int = 1, **options: Any) -> None:
        self.runtime = SimulatedRuntime(RunContext("r", seed, path, {**FAST, **options}))
        self.target = PingPong(clients)
        self.events: list[AnyEvent] = []
        self.runtime.open(self.target)

    def run(self, until_ns: int) -> list[AnyEvent]:
        """Events up to ``until_ns``; the clock stands there afterwards."""
        fresh: list[AnyEvent] = []
        while self.runtime.clock.now_ns() < until_ns:
            fresh.extend(self.runtime.poll(until_ns))
        self.events.extend(fresh)
        return fresh

    def close(self) -> list[AnyEvent]:
        self.runtime.close()
        fresh = self.runtime.poll(self.runtime.clock.now_ns())
        self.events.extend(fresh)
        return fresh


def notes(events: list[AnyEvent], what: str, unit: str = "") -> list[UnitNote]:
    return [
        e
        for e in events
        if isinstance(e, UnitNote) and e.what == what and (not unit or e.unit == unit)
    ]


def of(events: list[AnyEvent], *kinds: type[AnyEvent]) -> list[AnyEvent]:
    return [e for e in events if isinstance(e, kinds)]


def test_a_unit_comes_to_life_as_a_real_one_does(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    life = [
        e
        for e in sim.events
        if isinstance(e, UnitSpawned | UnitStarted | UnitReady) and e.unit == "client-0"
    ]
    assert [type(e).__name__ for e in life] == ["UnitSpawned", "UnitStarted", "UnitReady"]
    ready = life[-1]
    assert isinstance(ready, UnitReady)
    assert (ready.t_ns, ready.import_ns, ready.compile_ns) == (210 * MS, 100 * MS, 100 * MS)
    assert isinstance(life[0], UnitSpawned)
    assert life[0].by == "harness"
    assert notes(sim.events, "pong")


def test_poll_returns_at_the_deadline_when_nothing_happens(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.runtime.poll(1)
    assert sim.runtime.poll(5 * MS) == []
    assert sim.runtime.clock.now_ns() == 5 * MS


def test_a_killed_unit_comes_back_with_the_next_incarnation(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.kill("client-0")
    assert not sim.runtime.alive("client-0")
    with pytest.raises(FaultSkipped, match="no process"):
        sim.runtime.kill("client-0")
    after = sim.run(3 * S)
    exits = of(after, UnitExited)
    assert [(e.unit, e.code, e.signal) for e in exits] == [("client-0", None, 9)]  # type: ignore[union-attr]
    starts = of(after, UnitStarted)
    assert [(e.unit, e.incarnation) for e in starts] == [("client-0", 2)]  # type: ignore[union-attr]
    spawns = of(after, UnitSpawned)
    assert [e.by for e in spawns] == ["supervisor"]  # type: ignore[union-attr]
    assert notes(after, "disconnected", "server")
    assert notes(after, "pong", "client-0")[-1].incarnation == 2


def test_without_restarts_dead_stays_dead(tmp_path: Path) -> None:
    sim = Sim(tmp_path, restart=False)
    sim.run(1 * S)
    sim.runtime.kill("client-0")
    assert not of(sim.run(5 * S), UnitSpawned)


def test_terminate_lets_the_node_end_itself(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.terminate("client-0", 1 * S)
    after = sim.run(2 * S)
    assert of(after, UnitEnded)
    assert [(e.code, e.signal) for e in of(after, UnitExited)] == [(0, None)]  # type: ignore[union-attr]


def test_terminate_of_a_frozen_unit_kills_after_the_grace(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "frozen", True)
    sim.runtime.terminate("client-0", 500 * MS)
    exits = of(sim.run(2 * S), UnitExited)
    assert [(e.t_ns, e.signal) for e in exits] == [(1500 * MS, 9)]  # type: ignore[union-attr]


def test_a_unit_killed_while_it_imports_dies_of_the_signal(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(50 * MS)
    sim.runtime.terminate("client-0", 1 * S)
    assert [e.signal for e in of(sim.run(60 * MS), UnitExited)] == [15]  # type: ignore[union-attr]


def test_a_frozen_unit_does_nothing_and_then_catches_up(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "frozen", True)
    during = sim.run(1200 * MS)
    assert not [e for e in during if getattr(e, "unit", "") == "client-0"]
    sim.runtime.apply("client-0", "frozen", False)
    after = sim.run(1300 * MS)
    chores = notes(after, "chore", "client-0")
    # The chore in progress had at most 10 ms left and takes what was left.
    assert 0 <= chores[0].t_ns - 1200 * MS <= 10 * MS
    assert notes(after, "pong", "client-0")


def test_a_frozen_unit_notices_late_that_its_peer_was_silent(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("server", "frozen", True)
    sim.run(1250 * MS)
    sim.runtime.apply("client-0", "frozen", True)
    assert not of(sim.run(2 * S), LinkDown)
    sim.runtime.apply("client-0", "frozen", False)
    downs = of(sim.run(2 * S + 1), LinkDown)
    assert [(e.t_ns, e.why) for e in downs] == [(2 * S, "silent")]  # type: ignore[union-attr]


def test_freezing_delays_a_unit_that_is_coming_to_life(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(50 * MS)
    sim.runtime.apply("client-0", "frozen", True)
    assert not [e for e in sim.run(2 * S) if isinstance(e, UnitReady) and e.unit == "client-0"]
    sim.runtime.apply("client-0", "frozen", False)
    assert [e for e in sim.run(3 * S) if isinstance(e, UnitReady) and e.unit == "client-0"]


def test_slow_and_hanging_chips(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    before = len(notes(sim.run(2 * S), "chore"))
    sim.runtime.apply("client-0", "tuning", Tuning(step_factor=4.0))
    slow = len(notes(sim.run(3 * S), "chore"))
    assert slow == pytest.approx(before / 4, abs=1)
    sim.runtime.apply("client-0", "tuning", Tuning(hang=True))
    sim.run(3100 * MS)
    assert not notes(sim.run(4 * S), "chore")
    sim.runtime.apply("client-0", "tuning", Tuning())
    first, *rest = notes(sim.run(5 * S), "chore")
    began = int(first.detail.split()[-1])
    assert began < 3100 * MS, "the step that hung lasted through the hang"
    assert len(rest) == pytest.approx(before, abs=2)


def test_a_small_cpu_share_slows_steps(tmp_path: Path) -> None:
    sim = Sim(tmp_path, compute_share=0.5)
    sim.run(2 * S)
    before = len(notes(sim.run(3 * S), "chore"))
    sim.runtime.apply("client-0", "cpu_share", 0.25)
    sim.run(3100 * MS)
    assert len(notes(sim.run(4100 * MS), "chore")) == pytest.approx(before / 2, abs=2)


@pytest.mark.parametrize("reads", ["silent_up", "silent_down"])
def test_one_way_silence_is_told_to_nobody_and_ends_the_session_when_lifted(
    tmp_path: Path, reads: str
) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(**{reads: True}))
    sim.run(1010 * MS)
    during = sim.run(1250 * MS)
    heard = notes(during, "heard", "server")
    assert bool(heard) == (reads == "silent_down")
    assert not notes(during, "pong")
    assert not of(during, LinkDown)
    downs = of(sim.run(2 * S), LinkDown)
    assert [e.why for e in downs] == ["silent"]  # type: ignore[union-attr]
    sim.runtime.apply("client-0", "link", LinkState())
    assert of(sim.run(4 * S), LinkUp)


def test_lifting_a_silence_ends_the_open_session(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(silent_down=True))
    sim.run(1100 * MS)
    sim.runtime.apply("client-0", "link", LinkState())
    after = sim.run(1 * S + 400 * MS)
    assert [e.why for e in of(after, LinkDown)] == [  # type: ignore[union-attr]
        "connection closed when the silence was lifted"
    ]
    assert of(after, LinkUp)


def test_a_stall_loses_nothing(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(stalled=True))
    sim.run(1010 * MS)
    during = sim.run(1200 * MS)
    assert not notes(during, "heard")
    assert notes(during, "chore")
    sim.runtime.apply("client-0", "link", LinkState())
    sim.run(1500 * MS)
    assert not of(sim.events, LinkDown)
    heard = [int(n.detail.split()[1]) for n in notes(sim.events, "heard")]
    assert heard == list(range(heard[0], heard[0] + len(heard))), "in order, none missing"
    assert heard[-1] > 100


def test_healing_a_stall_by_a_new_link_ends_the_session(tmp_path: Path) -> None:
    sim = Sim(tmp_path, stall_heals="recreate")
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(stalled=True))
    sim.run(1200 * MS)
    sim.runtime.apply("client-0", "link", LinkState())
    assert of(sim.run(1300 * MS), LinkDown)


def test_a_refused_link_is_noticed_at_once_and_dialled_until_it_works(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(refused=True))
    downs = of(sim.run(1010 * MS), LinkDown)
    assert [e.why for e in downs] == ["connection refused"]  # type: ignore[union-attr]
    assert not of(sim.run(2 * S), LinkUp)
    sim.runtime.apply("client-0", "link", LinkState())
    assert of(sim.run(4 * S), LinkUp)


def test_a_reset_meets_the_next_byte(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(reset=True))
    after = sim.run(1200 * MS)
    assert [e.why for e in of(after, LinkDown)] == ["connection reset"]  # type: ignore[union-attr]
    assert not of(after, LinkUp)
    sim.runtime.apply("client-0", "link", LinkState())
    assert of(sim.run(4 * S), LinkUp)


def test_a_cut_ends_every_session_after_so_many_bytes(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(cut_bytes=1000))
    after = sim.run(3 * S)
    assert len(of(after, LinkDown)) >= 2
    assert len(of(after, LinkUp)) >= 2


def test_latency_delays_both_ways(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "link", LinkState(latency_ms=100))
    sim.run(1300 * MS)
    after = sim.run(2 * S)
    sent = {n.detail.split()[0]: n.t_ns for n in notes(sim.events, "chore")}
    delays = [n.t_ns - sent[n.detail.split()[1]] for n in notes(after, "heard")]
    assert min(delays) >= 100 * MS
    assert max(delays) <= 103 * MS


def test_bandwidth_paces_frames_and_queues_them(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    # 120 bytes a frame, one each 10 ms, are 12 kB/s: at 6 kB/s only every other one gets through.
    sim.runtime.apply("client-0", "link", LinkState(bandwidth_kb_s=6.0))
    after = sim.run(2 * S)
    assert len(notes(after, "heard")) == pytest.approx(50, abs=3)
    sim.runtime.apply("client-0", "link", LinkState())
    sim.run(2100 * MS)
    heard = [int(n.detail.split()[1]) for n in notes(sim.events, "heard")]
    assert heard == list(range(heard[0], heard[0] + len(heard)))


def test_off_the_network_nothing_is_lost_if_nobody_gives_up(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "network", False)
    sim.run(1010 * MS)
    assert not notes(sim.run(1200 * MS), "heard")
    sim.runtime.apply("client-0", "network", True)
    sim.run(1400 * MS)
    assert not of(sim.events, LinkDown)


def test_a_unit_that_dials_nobody_has_no_link_to_break(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    with pytest.raises(FaultSkipped, match="opens no link"):
        sim.runtime.apply("server", "link", LinkState(refused=True))


def test_what_was_saved_survives_every_crash(tmp_path: Path) -> None:
    sim = Sim(tmp_path, clients=3)
    for kill in range(1, 8):
        sim.run(kill * S)
        sim.runtime.kill("server")
    sim.run(9 * S)
    promised = 0
    for event in sim.events:
        if isinstance(event, UnitNote) and event.what == "saved":
            promised = int(event.detail)
        if isinstance(event, UnitNote) and event.what == "resumed":
            # A write in progress may survive although nobody was told: one more at the most.
            assert int(event.detail) - promised in (0, 1)
    assert len(notes(sim.events, "resumed")) == 8


def test_a_lying_disk_loses_what_it_had_promised(tmp_path: Path) -> None:
    sim = Sim(tmp_path, clients=3, disk="lying", unsynced_ms=200.0)
    sim.run(2 * S)
    promised = int(notes(sim.events, "saved")[-1].detail)
    note = sim.runtime.kill("server")
    assert "lost" in note
    resumed = notes(sim.run(4 * S), "resumed")
    assert int(resumed[0].detail) < promised


def test_a_skewed_clock_moves_what_the_node_sees_but_not_the_journal(tmp_path: Path) -> None:
    sim = Sim(tmp_path, clock_skew_ms={"client-0": 5000.0}, clock_drift_ppm={"client-0": 200.0})
    sim.run(2 * S)
    node: Any = sim.target.nodes["client-0"]
    assert node.heard > 6 * S
    times = [e.t_ns for e in sim.events]
    assert times == sorted(times)
    assert max(times) <= 2 * S


def test_close_thaws_heals_and_stops_everything(tmp_path: Path) -> None:
    sim = Sim(tmp_path, clients=2)
    sim.run(1 * S)
    sim.runtime.apply("client-0", "frozen", True)
    sim.runtime.apply("client-1", "tuning", Tuning(hang=True))
    after = sim.close()
    assert [e.code for e in of(after, UnitExited)] == [0, 0, 0]  # type: ignore[union-attr]
    assert sim.runtime.residue(0).processes == ()
    sim.runtime.close()
    assert sim.runtime.poll(10 * S) == []


def test_a_node_that_raises_is_a_crash_with_its_reason(tmp_path: Path) -> None:
    sim = Sim(tmp_path)
    sim.run(1 * S)

    def broken(*_: Any) -> Any:
        raise ValueError("planted")

    sim.target.nodes["client-0"].handle = broken  # type: ignore[method-assign, assignment]
    after = sim.run(1100 * MS)
    assert [n.detail for n in notes(after, "crash")] == ["ValueError: planted"]
    assert [e.code for e in of(after, UnitExited)] == [1]  # type: ignore[union-attr]
    assert "planted" in (tmp_path / "units" / "client-0.log").read_text()


def test_wrong_options_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="restart_ms") as caught:
        Sim(tmp_path, restart_ms=(5, 1), disk="soft", lose_in_flight=3.0)
    assert len(caught.value.problems) == 3
    with pytest.raises(SpecError, match="wrong_name"):
        Sim(tmp_path, wrong_name=1)


def test_the_same_seed_gives_the_same_events_and_another_seed_others(tmp_path: Path) -> None:
    def story(seed: int) -> bytes:
        sim = Sim(tmp_path, clients=3, seed=seed, restart_ms=(10, 500), step_jitter_ms=2.0)
        sim.run(1 * S)
        sim.runtime.kill("client-1")
        sim.runtime.apply("client-2", "frozen", True)
        sim.run(2 * S)
        sim.runtime.apply("client-2", "frozen", False)
        sim.run(3 * S)
        sim.close()
        return b"".join(encode(e) for e in sim.events)

    assert story(1) == story(1)
    assert story(1) != story(2)
