"""Durations from a journal: medians, later lives before first ones, steps in the mean."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness import events as ev
from reports.measured import measure

MS = 1_000_000


def life(unit: str, incarnation: int, at_ms: int, *, boot: tuple[int, int, int]) -> list[ev.Event]:
    """A spawn at ``at_ms``, then (until the first line, imports, the rest until ready) in ms."""
    spawn, imports, rest = boot
    who = {"unit": unit, "incarnation": incarnation}
    role = "syncer" if unit == "syncer" else "learner"
    begun = at_ms + spawn
    ready = begun + imports + rest
    return [
        ev.UnitSpawned(t_ns=at_ms * MS, unit=unit, by="supervisor"),
        ev.UnitStarted(t_ns=begun * MS, role=role, **who),
        ev.UnitReady(t_ns=ready * MS, import_ns=imports * MS, compile_ns=rest * MS, **who),
    ]


def steps(unit: str, ends_ms: list[float], *, gap_ms: float = 0.0) -> list[ev.Event]:
    return [
        ev.Step(
            t_ns=round(end * MS),
            unit=unit,
            incarnation=1,
            step=number,
            began_at_ns=round((before + gap_ms) * MS),
            tokens=1,
            nominal_ns=100 * MS,
        )
        for number, (before, end) in enumerate(pairwise(ends_ms), start=1)
    ]


def test_how_units_come_to_life() -> None:
    found = measure(
        [
            *life("syncer", 1, 0, boot=(10, 200, 100)),
            *life("learner-0", 1, 0, boot=(40, 900, 2000)),
            ev.UnitExited(t_ns=9000 * MS, unit="learner-0"),
            *life("learner-0", 2, 9005, boot=(20, 500, 80)),
            ev.Joined(
                t_ns=9705 * MS, unit="learner-0", incarnation=2, source="syncer", clock=1, step=0
            ),
            ev.UnitExited(t_ns=20000 * MS, unit="learner-0"),
            *life("learner-0", 3, 20015, boot=(30, 600, 100)),
        ]
    )
    values = {f.name: (f.ms, f.samples) for f in found.figures}
    assert values["restart"] == (10.0, 2)
    assert values["spawn"] == (25.0, 2), "later lives only: the first ones crowd the host"
    assert values["import"] == (550.0, 2)
    assert values["compile"] == (90.0, 2)
    assert values["first compile"] == (2000.0, 1)
    assert values["syncer boot"] == (300.0, 1)
    assert values["join"] == (100.0, 1)
    assert values["step late"] == (None, 0)


def test_first_lives_serve_for_want_of_others() -> None:
    found = measure(life("learner-0", 1, 0, boot=(40, 900, 2000)))
    assert (found.ms("spawn"), found.ms("import"), found.ms("compile")) == (40.0, 900.0, None)


def test_steps_in_the_mean_without_those_that_a_fault_slowed() -> None:
    ends = [0.0, 100.0, 201.0, 301.0, 601.0, 701.0]
    found = measure(steps("learner-0", ends, gap_ms=3.0))
    # The first has nothing before it, the one of 300 ms is a fault's.
    assert found.ms("step late") == pytest.approx(1 / 3)
    assert found.ms("step gap") == pytest.approx(3.0)
    assert next(f for f in found.figures if f.name == "step late").samples == 3


def test_round_trips_and_detection_are_medians() -> None:
    heard = [
        ev.Heard(t_ns=i, unit="syncer", incarnation=1, peer="learner-0", rtt_ns=rtt * MS)
        for i, rtt in enumerate((1, 2, 50))
    ]
    found = measure(heard, detect_s=[0.001, 0.5, 2.0])
    assert (found.ms("round trip"), found.ms("detect")) == (2.0, 500.0)
    with pytest.raises(KeyError):
        found.ms("nothing of this name")
