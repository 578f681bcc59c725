"""The pacer against a clock that moves only when the test or the sleeper says so."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from faults.base import Tuning
from targets.diloco.accelerator import HANG_POLL_NS, Paced, Pacer, StopSleeper

MS = 1_000_000
P = 100 * MS


@dataclass
class Bench:
    """A fake clock that is its own sleeper, and a pacer on it."""

    nominal_ns: int = P
    now_ns: int = 1_000 * MS
    tuning: Tuning = field(default_factory=Tuning)
    jitter_ns: int = 0
    """Every sleep ends so much too late."""
    stop_at_ns: int | None = None
    heal_hang_at_ns: int | None = None
    pacer: Pacer = field(init=False)

    def __post_init__(self) -> None:
        self.pacer = Pacer(self.nominal_ns, lambda: self.now_ns, self, lambda: self.tuning)

    def until(self, deadline_ns: int) -> bool:
        if self.stop_at_ns is not None and deadline_ns >= self.stop_at_ns:
            self.now_ns = max(self.now_ns, self.stop_at_ns)
            return False
        if deadline_ns > self.now_ns:
            self.now_ns = deadline_ns + self.jitter_ns
        if self.heal_hang_at_ns is not None and self.now_ns >= self.heal_hang_at_ns:
            self.tuning = Tuning()
        return True

    def step(self, compute_ms: float) -> Paced:
        began = self.pacer.begin()
        self.now_ns += round(compute_ms * MS)
        return self.pacer.end(began)


def test_a_step_takes_its_nominal_time() -> None:
    bench = Bench()
    paced = bench.step(10)
    assert paced.ended_at_ns - paced.began_at_ns == P
    assert paced.compute_ns == 10 * MS
    assert (paced.overrun, paced.late_ns, paced.stopped) == (False, 0, False)


def test_jitter_and_work_between_steps_do_not_add_up() -> None:
    bench = Bench(jitter_ns=3 * MS)
    start = bench.now_ns
    for _ in range(50):
        bench.step(10)
        bench.now_ns += 5 * MS  # a report is sent, a fragment taken
    assert bench.now_ns == start + 50 * P + 3 * MS + 5 * MS
    assert bench.pacer.overruns == 0


@pytest.mark.parametrize("compute_ms", [130, 250])
def test_a_late_step_moves_the_deadlines_and_nothing_is_made_up(compute_ms: int) -> None:
    bench = Bench()
    bench.step(10)
    late = bench.step(compute_ms)
    assert late.late_ns == (compute_ms - 100) * MS
    assert late.ended_at_ns - late.began_at_ns == compute_ms * MS
    following = bench.step(10)
    assert following.ended_at_ns - late.ended_at_ns == P


def test_overruns_count_compute_against_the_nominal_time_only() -> None:
    bench = Bench(tuning=Tuning(step_factor=3.0))
    slowed = bench.step(150)
    assert slowed.overrun
    assert slowed.late_ns == 0
    assert slowed.ended_at_ns - slowed.began_at_ns == 3 * P
    bench.step(90)
    assert (bench.pacer.steps, bench.pacer.overruns) == (2, 1)


def test_compute_of_exactly_the_nominal_time_is_no_overrun() -> None:
    assert not Bench().step(100).overrun


def test_step_factor_stretches_and_heals_with_the_next_step() -> None:
    bench = Bench(tuning=Tuning(step_factor=2.5))
    slow = bench.step(10)
    assert slow.ended_at_ns - slow.began_at_ns == 250 * MS
    bench.tuning = Tuning()
    healed = bench.step(10)
    assert healed.ended_at_ns - healed.began_at_ns == P


def test_back_to_back_steps_leave_no_time_unexplained() -> None:
    bench = Bench(jitter_ns=2 * MS)
    last = bench.step(10)
    for work_ms in (0, 3, 7, 45):
        bench.now_ns += work_ms * MS  # sending a report, taking a fragment
        paced = bench.step(10)
        assert paced.began_at_ns == last.ended_at_ns
        last = paced
    bench.now_ns += 80 * MS  # idle: blocked on something else, which is not a step
    assert bench.step(10).began_at_ns == last.ended_at_ns + 80 * MS


def test_an_idle_learner_starts_anew() -> None:
    bench = Bench()
    bench.step(10)
    bench.now_ns += 250 * MS  # blocked on a merge
    paced = bench.step(10)
    assert paced.ended_at_ns - paced.began_at_ns == P


def test_a_freeze_during_the_wait_is_not_caught_up() -> None:
    bench = Bench(jitter_ns=5_000 * MS)
    frozen = bench.step(10)
    assert frozen.ended_at_ns - frozen.began_at_ns == P + 5_000 * MS
    bench.jitter_ns = 0
    paced = bench.step(10)
    assert paced.ended_at_ns - frozen.ended_at_ns == P


def test_a_hang_holds_the_step_until_it_is_lifted() -> None:
    bench = Bench(tuning=Tuning(hang=True))
    bench.heal_hang_at_ns = bench.now_ns + 2_000 * MS
    hung = bench.step(10)
    held = hung.ended_at_ns - hung.began_at_ns
    assert 2_000 * MS <= held <= 2_000 * MS + HANG_POLL_NS
    assert not hung.overrun
    following = bench.step(10)
    assert following.ended_at_ns - hung.ended_at_ns == P


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(hang=True), Tuning(step_factor=1e6)])
def test_a_stop_cuts_any_wait_short(tuning: Tuning) -> None:
    bench = Bench(tuning=tuning)
    bench.stop_at_ns = bench.now_ns + 60 * MS
    paced = bench.step(10)
    assert paced.stopped
    assert paced.ended_at_ns == bench.stop_at_ns


def test_an_unpaced_step_takes_what_its_compute_takes() -> None:
    bench = Bench(nominal_ns=0)
    paced = bench.step(7)
    assert paced.ended_at_ns - paced.began_at_ns == 7 * MS
    assert not paced.overrun
    bench.tuning = Tuning(step_factor=4.0)
    paced = bench.step(7)
    assert paced.ended_at_ns - paced.began_at_ns == 28 * MS


def test_misuse_is_refused() -> None:
    with pytest.raises(RuntimeError, match="never began"):
        Bench().pacer.end(0)
    with pytest.raises(ValueError, match="negative"):
        Bench(nominal_ns=-1)


def test_the_real_sleeper_is_woken_by_the_stop_event() -> None:
    stop = threading.Event()
    sleeper = StopSleeper(stop, now=lambda: 0)
    assert sleeper.until(0)  # a deadline that has passed
    answers: list[bool] = []
    hour = 3_600 * 1_000 * MS
    thread = threading.Thread(target=lambda: answers.append(sleeper.until(hour)), daemon=True)
    thread.start()
    stop.set()
    thread.join(timeout=30)
    assert answers == [False], "the sleeper did not return within 30 s of the stop"
    assert not sleeper.until(0), "a stop is seen although there is nothing to wait for"
