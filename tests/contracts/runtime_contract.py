"""What every runtime must do; run against processes, containers and the simulator.

Each ``check_*`` takes a :class:`Stage`: a way to make a runtime, a target, and which of its units
to act on. The runtime is opened and closed inside the check, so each stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from faults.base import LinkState, Tuning
from harness.errors import FaultSkipped
from harness.events import (
    AnyEvent,
    Event,
    Joined,
    LinkDown,
    LinkUp,
    ResidueFound,
    Step,
    UnitExited,
    UnitSpawned,
    UnitStarted,
)
from harness.runtimes.base import Runtime, opened
from targets.base import Target

NS = 1_000_000_000
SOON_NS = 60 * NS
"""Longest wait, on the runtime's clock, for what must come."""
QUIET_NS = NS
"""How long to watch for what must not come."""

E = TypeVar("E", bound=Event)


@dataclass
class Stage:
    """A runtime to be checked."""

    make: Callable[[], Runtime]
    target: Callable[[], Target]
    victim: str
    """A unit that takes steps."""
    bystander: str
    """Another one."""


class Watch:
    """Polls a runtime and keeps every event."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.seen: list[AnyEvent] = []

    def until(
        self, kind: type[E], where: Callable[[E], bool] = lambda _: True, after: int = 0
    ) -> E:
        """The first event of ``kind`` for which ``where`` holds, from event number ``after``."""
        deadline = self.runtime.clock.now_ns() + SOON_NS
        while True:
            for event in self.seen[after:]:
                if isinstance(event, kind) and where(event):
                    return event
            after = len(self.seen)
            now = self.runtime.clock.now_ns()
            assert now < deadline, f"no such {kind.__name__}; last: {self.seen[-5:]}"
            self.seen += self.runtime.poll(min(deadline, now + NS))

    def steps(self, unit: str, count: int = 3) -> None:
        """Until the unit has taken so many more steps."""
        for _ in range(count):
            self.until(Step, lambda e: e.unit == unit, len(self.seen))

    def during(self, span_ns: int) -> list[AnyEvent]:
        """Everything that comes within a span of time."""
        end, first = self.runtime.clock.now_ns() + span_ns, len(self.seen)
        while self.runtime.clock.now_ns() < end:
            self.seen += self.runtime.poll(end)
        return self.seen[first:]

    def stands_still(self, unit: str) -> bool:
        """Whether the unit begins no step for a while."""
        began = self.runtime.clock.now_ns()
        return not any(
            isinstance(e, Step) and e.unit == unit and e.began_at_ns > began
            for e in self.during(QUIET_NS)
        )


@contextmanager
def watched(stage: Stage) -> Iterator[Watch]:
    """An open runtime with the victim and the bystander at work."""
    runtime = stage.make()
    with opened(runtime, stage.target()):
        watch = Watch(runtime)
        watch.steps(stage.victim)
        watch.steps(stage.bystander)
        yield watch


def check_units_start_work_and_end(stage: Stage) -> None:
    with watched(stage) as watch:
        for unit in (stage.victim, stage.bystander):
            assert watch.runtime.alive(unit)
            assert watch.until(UnitSpawned, lambda e, u=unit: e.unit == u).by == "harness"  # type: ignore[misc]
            assert watch.until(UnitStarted, lambda e, u=unit: e.unit == u).incarnation == 1  # type: ignore[misc]
    watch.seen += watch.runtime.poll(watch.runtime.clock.now_ns())
    ended = {e.unit for e in watch.seen if isinstance(e, UnitExited)}
    assert {stage.victim, stage.bystander} <= ended
    assert_clean(watch.runtime)


def check_events_are_in_order_and_on_the_clock(stage: Stage) -> None:
    with watched(stage) as watch:
        for _ in range(20):
            events = watch.runtime.poll(watch.runtime.clock.now_ns() + NS // 10)
            times = [e.t_ns for e in events]
            assert times == sorted(times)
            assert all(0 <= t <= watch.runtime.clock.now_ns() for t in times)


def check_poll_returns_at_its_time(stage: Stage) -> None:
    with watched(stage) as watch:
        now = watch.runtime.clock.now_ns()
        watch.runtime.poll(now - 1)  # the past: whatever is there, at once
        until = watch.runtime.clock.now_ns() + NS // 20
        while not watch.runtime.clock.now_ns() >= until:
            watch.runtime.poll(until)
        assert watch.runtime.clock.now_ns() - until < SOON_NS


def check_what_a_unit_made_durable_is_lost_between_two_lives(stage: Stage) -> None:
    with watched(stage) as watch:
        if "state" not in watch.runtime.offers:
            pytest.skip("this runtime does not reach durable state")
        for life, damage in enumerate(("lose", "flip", "tear"), start=2):
            first = len(watch.seen)
            watch.runtime.damage(stage.victim, damage)
            died = watch.until(UnitExited, lambda e: e.unit == stage.victim, first)
            assert died.signal == 9
            back = watch.until(UnitStarted, lambda e: e.unit == stage.victim, first)
            assert back.incarnation == life, "the counter of lives is its place's"
            joined = watch.until(Joined, lambda e: e.unit == stage.victim, first)
            if damage == "lose" and not stage.target().fragments():
                assert joined.step == 0
            watch.steps(stage.victim)
    assert_clean(watch.runtime)


def check_the_kernel_ends_a_unit_for_want_of_memory(stage: Stage) -> None:
    with watched(stage) as watch:
        if "memory" not in watch.runtime.offers:
            pytest.skip("this runtime cannot limit memory here")
        first = len(watch.seen)
        watch.runtime.oom(stage.victim)
        died = watch.until(UnitExited, lambda e: e.unit == stage.victim, first)
        assert (died.oom, died.signal) == (True, 9)
        watch.until(UnitStarted, lambda e: e.unit == stage.victim and e.incarnation == 2, first)
        watch.steps(stage.victim)
        watch.runtime.kill(stage.victim)
        killed = watch.until(UnitExited, lambda e: e.unit == stage.victim and not e.oom, first)
        assert killed.signal == 9
    assert_clean(watch.runtime)


def check_a_killed_unit_comes_back_with_a_new_life(stage: Stage) -> None:
    with watched(stage) as watch:
        first = len(watch.seen)
        watch.runtime.kill(stage.victim)
        gone = watch.until(UnitExited, lambda e: e.unit == stage.victim, first)
        assert gone.signal == 9 or gone.code == 137
        back = watch.until(UnitSpawned, lambda e: e.unit == stage.victim, first)
        assert back.by in ("supervisor", "policy")
        life = watch.until(UnitStarted, lambda e: e.unit == stage.victim, first)
        assert life.incarnation == 2
        watch.steps(stage.victim)
        assert not [
            e for e in watch.seen if isinstance(e, UnitExited) and e.unit == stage.bystander
        ]
    assert_clean(watch.runtime)


def check_a_terminated_unit_comes_back(stage: Stage) -> None:
    with watched(stage) as watch:
        first = len(watch.seen)
        watch.runtime.terminate(stage.victim, 5 * NS)
        watch.until(UnitExited, lambda e: e.unit == stage.victim, first)
        watch.until(UnitStarted, lambda e: e.unit == stage.victim, first)
        watch.steps(stage.victim)


def check_a_frozen_unit_stands_still_and_goes_on(stage: Stage) -> None:
    with watched(stage) as watch:
        watch.runtime.apply(stage.victim, "frozen", True)
        watch.runtime.apply(stage.victim, "frozen", True)
        watch.during(QUIET_NS // 10)
        assert watch.runtime.alive(stage.victim)
        assert watch.stands_still(stage.victim)
        watch.steps(stage.bystander)
        watch.runtime.apply(stage.victim, "frozen", False)
        watch.runtime.apply(stage.victim, "frozen", False)
        watch.steps(stage.victim)
        assert not [e for e in watch.seen if isinstance(e, UnitExited)]


def check_a_unit_killed_while_frozen_can_be_thawed(stage: Stage) -> None:
    with watched(stage) as watch:
        first = len(watch.seen)
        watch.runtime.apply(stage.victim, "frozen", True)
        watch.runtime.kill(stage.victim)
        watch.until(UnitExited, lambda e: e.unit == stage.victim, first)
        watch.runtime.apply(stage.victim, "frozen", False)
        watch.steps(stage.victim)


def check_closing_while_frozen_leaves_nothing(stage: Stage) -> None:
    with watched(stage) as watch:
        watch.runtime.apply(stage.victim, "frozen", True)
    assert_clean(watch.runtime)


def check_tuning_reaches_the_unit(stage: Stage) -> None:
    with watched(stage) as watch:
        watch.runtime.apply(stage.victim, "tuning", Tuning(hang=True))
        watch.during(QUIET_NS // 2)
        assert watch.stands_still(stage.victim)
        watch.runtime.apply(stage.victim, "tuning", Tuning())
        watch.steps(stage.victim)


def check_a_cpu_share_can_be_set_and_lifted(stage: Stage) -> None:
    with watched(stage) as watch:
        if "cpu_quota" not in watch.runtime.offers:
            pytest.skip("no CPU quota here")
        for share in (0.5, 0.05, None, None):
            watch.runtime.apply(stage.victim, "cpu_share", share)
        watch.runtime.apply(stage.victim, "cpu_share", 0.5)
        watch.runtime.kill(stage.victim)  # the next life is under the same limit
        watch.until(UnitStarted, lambda e: e.unit == stage.victim and e.incarnation == 2)
        watch.runtime.apply(stage.victim, "cpu_share", None)
        watch.steps(stage.victim)
    assert_clean(watch.runtime)


def check_an_absent_unit_stays_away_until_it_may_come(stage: Stage) -> None:
    with watched(stage) as watch:
        if "absence" not in watch.runtime.offers:
            pytest.skip("units cannot be kept away here")
        first = len(watch.seen)
        watch.runtime.apply(stage.victim, "absent", 2 * NS)
        watch.until(UnitExited, lambda e: e.unit == stage.victim, first)
        watch.runtime.apply(stage.victim, "absent", 2 * NS)
        gone = watch.during(2 * QUIET_NS)
        assert not [e for e in gone if isinstance(e, UnitSpawned) and e.unit == stage.victim]
        assert not watch.runtime.alive(stage.victim)
        watch.runtime.apply(stage.victim, "absent", None)
        watch.until(UnitStarted, lambda e: e.unit == stage.victim and e.incarnation == 2, first)
        watch.steps(stage.victim)
        watch.runtime.kill(stage.victim)  # and it is restarted as ever
        watch.until(UnitStarted, lambda e: e.unit == stage.victim and e.incarnation == 3, first)
    assert_clean(watch.runtime)


def check_closing_while_a_unit_is_absent_leaves_nothing(stage: Stage) -> None:
    with watched(stage) as watch:
        if "absence" not in watch.runtime.offers:
            pytest.skip("units cannot be kept away here")
        watch.runtime.apply(stage.victim, "absent", 2 * NS)
    assert_clean(watch.runtime)


def check_a_silent_link_is_noticed_and_heals(stage: Stage) -> None:
    with watched(stage) as watch:
        silent = LinkState(silent_up=True, silent_down=True)
        if not _has_links(watch, stage):
            with pytest.raises(FaultSkipped):
                watch.runtime.apply(stage.victim, "link", silent)
            return
        first = len(watch.seen)
        watch.runtime.apply(stage.victim, "link", silent)
        watch.until(LinkDown, lambda e: stage.victim in (e.unit, e.peer), first)
        second = len(watch.seen)
        watch.runtime.apply(stage.victim, "link", LinkState())
        watch.until(LinkUp, lambda e: stage.victim in (e.unit, e.peer), second)
    assert_clean(watch.runtime)


def check_closing_with_a_broken_link_leaves_nothing(stage: Stage) -> None:
    with watched(stage) as watch:
        if _has_links(watch, stage):
            watch.runtime.apply(stage.victim, "link", LinkState(stalled=True))
    assert_clean(watch.runtime)


def check_close_is_safe_at_any_time(stage: Stage) -> None:
    never = stage.make()
    never.close()
    never.close()
    with watched(stage) as watch:
        pass
    watch.runtime.close()
    assert_clean(watch.runtime)


def _has_links(watch: Watch, stage: Stage) -> bool:
    return any(stage.victim == u.name and u.links for u in stage.target().units())


def assert_clean(runtime: Runtime) -> None:
    """Nothing of the run is left."""
    assert runtime.residue(0) == ResidueFound(t_ns=0)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
"""Every check by name."""
