"""The plan is pure: it can be asked for everything without anything running."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.select import Candidate
from harness.events import Step, UnitExited
from harness.plan import Due, Plan, Planned, make
from harness.spec import NS, FaultPart, Schedule

UNITS = [
    Candidate("syncer", "syncer"),
    *(Candidate(f"learner-{i}", "learner", "r") for i in range(4)),
]


def part(kind: str, params: dict[str, Any] | None = None, **fields: Any) -> FaultPart:
    return FaultPart(kind=kind, params=params or {}, **fields)


def planned(*parts: FaultPart, seed: int = 1, duration_s: float = 60) -> list[Planned]:
    items, problems = make(parts, UNITS, seed, duration_s)
    assert problems == []
    return items


def drained(plan: Plan) -> list[Due]:
    """Everything that is due, in order, up to the window's end."""
    out: list[Due] = []
    while (at_ns := plan.due_ns()) is not None:
        for due in plan.take(at_ns):
            out.append(due)
            if due.what == "window":
                return out
    return out


def step(clock: int, t_ns: int) -> Step:
    return Step(
        t_ns=t_ns, unit="learner-0", incarnation=1, step=clock, began_at_ns=0, tokens=1, clock=clock
    )


def test_begin_and_end_in_order() -> None:
    items = planned(
        part("pause", where="learner-0", at_s=5, for_s=3), part("kill", where="learner-1", at_s=6)
    )
    plan = Plan(items, 60 * NS, 10 * NS)
    plan.begin(100 * NS)
    dues = [(d.what, d.planned_ns // NS, d.item and d.item.unit) for d in drained(plan)]
    assert dues == [
        ("begin", 105, "learner-0"),
        ("begin", 106, "learner-1"),
        ("end", 108, "learner-0"),
        ("window", 160, None),
    ]
    assert plan.close_window(160 * NS) == []
    assert [d.what for d in plan.take(170 * NS)] == ["tail"]
    assert plan.due_ns() is None


def test_a_fault_without_an_end_lasts_until_the_window_closes() -> None:
    plan = Plan(planned(part("pause", where="learner-0", at_s=5)), 60 * NS, NS)
    plan.begin(0)
    assert [d.what for d in drained(plan)] == ["begin", "window"]


def test_by_progress_whatever_the_clock_says() -> None:
    plan = Plan(planned(part("kill", where="minority", at_step=100)), 60 * NS, NS)
    plan.begin(0)
    plan.observe(step(99, 3 * NS))
    assert plan.take(3 * NS) == []
    plan.observe(step(100, 4 * NS))
    assert [d.what for d in plan.take(4 * NS)] == ["begin", "begin"]
    plan.observe(step(101, 5 * NS))
    assert plan.take(5 * NS) == [], "a fault starts once"


def test_what_never_started_is_handed_back() -> None:
    plan = Plan(planned(part("kill", where="learner-2", at_step=10_000)), 60 * NS, NS)
    plan.begin(0)
    drained(plan)
    assert [i.unit for i in plan.close_window(60 * NS)] == ["learner-2"]


def test_on_an_event_of_another_fault() -> None:
    on = {"event": "unit_exited", "unit": "learner-0", "after_s": 2}
    plan = Plan(planned(part("kill", where="learner-1", on=on)), 60 * NS, NS)
    plan.begin(0)
    plan.observe(UnitExited(t_ns=4 * NS, unit="learner-3"))
    plan.observe(UnitExited(t_ns=5 * NS, unit="learner-0"))
    assert plan.take(6 * NS) == []
    assert [d.planned_ns for d in plan.take(7 * NS)] == [7 * NS]


def test_a_crash_loop_is_several_kills_with_names_of_their_own() -> None:
    items = planned(part("crash_loop", {"times": 3, "every_s": 2.0}, where="learner-0", at_s=1))
    assert [(i.fault, i.at_ns) for i in items] == [("f1.1", NS), ("f1.2", 3 * NS), ("f1.3", 5 * NS)]


def test_a_flapping_link_comes_and_goes_within_its_time() -> None:
    items = planned(part("flap", {"down_s": 1.0, "up_s": 2.0}, where="learner-0", at_s=0, for_s=7))
    plan = Plan(items, 60 * NS, NS)
    plan.begin(0)
    dues = [(d.what, d.planned_ns // NS) for d in drained(plan)]
    assert dues == [
        ("begin", 0),
        ("off", 1),
        ("on", 3),
        ("off", 4),
        ("on", 6),
        ("end", 7),
        ("window", 60),
    ]


def poisson(**fields: Any) -> FaultPart:
    schedule = Schedule(process="poisson", mean_gap_s=2.0, **fields)
    return part("kill", where="one", schedule=schedule)


def test_adding_a_fault_does_not_move_the_others() -> None:
    alone = planned(poisson())
    beside = planned(poisson(), part("pause", where="one", at_s=1), poisson())
    same = [i for i in beside if i.fault.startswith("f1.")]
    assert [(i.fault, i.unit, i.at_ns) for i in alone] == [(i.fault, i.unit, i.at_ns) for i in same]
    other = [(i.unit, i.at_ns) for i in beside if i.fault.startswith("f3.")]
    assert other != [(i.unit, i.at_ns) for i in same]


def test_a_seed_fixes_victims_and_instants() -> None:
    key = [(i.unit, i.at_ns) for i in planned(poisson(), seed=5)]
    assert key == [(i.unit, i.at_ns) for i in planned(poisson(), seed=5)]
    assert key != [(i.unit, i.at_ns) for i in planned(poisson(), seed=6)]


def test_repeat_offenders_are_hit_again() -> None:
    units = {i.unit for i in planned(poisson(offenders=1.0), duration_s=200)}
    assert len(units) == 1
    assert len({i.unit for i in planned(poisson(), duration_s=200)}) == 4


@pytest.mark.parametrize("process", ["fixed", "poisson", "weibull"])
def test_the_mean_gap_is_what_was_asked_for(process: Any) -> None:
    schedule = Schedule(process=process, mean_gap_s=2.0)
    items = planned(part("kill", where="one", schedule=schedule), duration_s=20_000)
    assert 20_000 / len(items) == pytest.approx(2.0, rel=0.06)


@given(st.integers(0, 1000), st.floats(1, 100), st.floats(0.1, 5))
def test_arrivals_lie_inside_the_window(seed: int, duration_s: float, gap_s: float) -> None:
    schedule = Schedule(process="weibull", mean_gap_s=gap_s, from_s=0.5)
    items, problems = make([part("kill", schedule=schedule)], UNITS, seed, duration_s)
    if problems:
        assert problems == [
            f"f1.schedule: seed {seed} draws no arrival in the fault window; another seed, a "
            "longer window or a smaller mean_gap_s helps"
        ]
    times = [i.at_ns for i in items if i.at_ns is not None]
    assert times == sorted(times)
    assert all(0.5 * NS <= t < duration_s * NS for t in times)
