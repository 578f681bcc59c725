"""A journal small enough to do every sum by hand.

Two learners, two fragments of 100 and 300 parameters, steps of exactly 1 s and 10 tokens. The
window is 0 to 10 s. learner-1 dies at 4.5 s in its fifth step, is given up at 5.0 s, runs again at
5.5 s, is ready at 6.5 s, has state at 7 s and steps until the end.
"""

from __future__ import annotations

from harness import events as ev
from tests.reports.builder import SECOND


def _s(seconds: float) -> int:
    return round(seconds * SECOND)


def _step(unit: str, incarnation: int, step: int, begins: float) -> ev.Step:
    return ev.Step(
        t_ns=_s(begins + 1),
        unit=unit,
        incarnation=incarnation,
        step=step,
        began_at_ns=_s(begins),
        tokens=10,
        nominal_ns=SECOND,
        compute_ns=SECOND // 4,
        loss=4.0 / (1 + begins),
    )


def _part(
    unit: str, incarnation: int, since: int, step: int, base: tuple[int, int]
) -> ev.Contribution:
    tokens = 10 * (step - since)
    return ev.Contribution(
        unit=unit,
        incarnation=incarnation,
        since_step=since,
        step=step,
        c_steps=step - since,
        c_tokens=tokens,
        weight=tokens**2 / (step - since),
        base_version=base[0],
        base_clock=base[1],
    )


def _merge(
    at: float, clock: int, fragment: int, version: int, *parts: ev.Contribution
) -> list[ev.AnyEvent]:
    out: list[ev.AnyEvent] = [
        ev.Merged(
            t_ns=_s(at),
            unit="syncer",
            incarnation=1,
            clock=clock,
            fragment=fragment,
            version=version,
            quorum=1,
            contributions=parts,
            bytes_in=1000 * clock,
            bytes_out=2000 * clock,
        )
    ]
    return out


def _adopt(at: float, unit: str, inc: int, fragment: int, version: int, step: int) -> ev.Adopted:
    return ev.Adopted(
        t_ns=_s(at),
        unit=unit,
        incarnation=inc,
        fragment=fragment,
        version=version,
        clock=version,
        step=step,
    )


def journal() -> list[ev.AnyEvent]:
    """The events, in order of time."""
    units = (
        ev.UnitInfo(name="syncer", role="syncer"),
        ev.UnitInfo(name="learner-0", role="learner", step_time_ns=SECOND),
        ev.UnitInfo(name="learner-1", role="learner", step_time_ns=SECOND),
    )
    fault = {"fault": "f1", "kind": "kill", "unit": "learner-1"}
    out: list[ev.AnyEvent] = [
        ev.UnitSpawned(t_ns=-30, unit="learner-0", by="harness", pid=1),
        ev.UnitSpawned(t_ns=-30, unit="learner-1", by="harness", pid=2),
        ev.UnitStarted(t_ns=-20, unit="learner-0", incarnation=1, role="learner", pid=1),
        ev.UnitStarted(t_ns=-20, unit="learner-1", incarnation=1, role="learner", pid=2),
        ev.Joined(t_ns=-1, unit="learner-0", incarnation=1, source="initial", clock=0, step=0),
        ev.Joined(t_ns=-1, unit="learner-1", incarnation=1, source="initial", clock=0, step=0),
        ev.SteadyState(t_ns=0, why="by decree"),
        ev.FaultPlanned(t_ns=0, planned_at_ns=_s(4.4), **fault),
        ev.FaultAsked(t_ns=_s(4.45), **fault),
        ev.UnitExited(t_ns=_s(4.5), unit="learner-1", pid=2, signal=9),
        ev.FaultExecuted(t_ns=_s(4.5), **fault),
        ev.LinkDown(t_ns=_s(5.0), unit="syncer", incarnation=1, peer="learner-1", why="silent"),
        ev.UnitSpawned(t_ns=_s(5.5), unit="learner-1", by="supervisor", pid=3),
        ev.UnitStarted(t_ns=_s(5.6), unit="learner-1", incarnation=2, role="learner", pid=3),
        ev.UnitReady(t_ns=_s(6.5), unit="learner-1", incarnation=2),
        ev.Joined(t_ns=_s(7), unit="learner-1", incarnation=2, source="syncer", clock=2, step=0),
        ev.WindowEnded(t_ns=_s(9.5)),
        ev.TailEnded(t_ns=_s(10)),
        ev.ResidueFound(t_ns=_s(10.1)),
        ev.RunEnded(t_ns=_s(10.2), status="completed"),
        *(_step("learner-0", 1, n + 1, n) for n in range(10)),
        *(_step("learner-1", 1, n + 1, n) for n in range(4)),
        *(_step("learner-1", 2, n + 1, 7 + n) for n in range(3)),
        *_merge(
            3.2, 1, 0, 1, _part("learner-0", 1, 0, 3, (0, 0)), _part("learner-1", 1, 0, 3, (0, 0))
        ),
        _adopt(3.25, "learner-0", 1, 0, 1, 3),
        _adopt(3.25, "learner-1", 1, 0, 1, 3),
        *_merge(4.2, 2, 1, 1, _part("learner-0", 1, 0, 4, (0, 0))),
        _adopt(4.25, "learner-0", 1, 1, 1, 4),
        _adopt(4.25, "learner-1", 1, 1, 1, 4),
        *_merge(
            8.2, 3, 0, 2, _part("learner-0", 1, 3, 8, (1, 1)), _part("learner-1", 2, 0, 1, (1, 1))
        ),
        _adopt(8.25, "learner-0", 1, 0, 2, 8),
        _adopt(8.25, "learner-1", 2, 0, 2, 1),
        *_merge(
            9.2, 4, 1, 2, _part("learner-0", 1, 4, 9, (1, 2)), _part("learner-1", 2, 0, 2, (1, 2))
        ),
        _adopt(9.25, "learner-0", 1, 1, 2, 9),
        _adopt(9.25, "learner-1", 2, 1, 2, 2),
    ]
    out.sort(key=lambda e: e.t_ns)
    head = ev.RunStarted(
        t_ns=0,
        schema=1,
        run="by-hand",
        experiment="by-hand",
        seed=1,
        runtime="simulated",
        target="diloco",
        proxy="simulated",
        units=units,
        spec={"gate": {"goodput_min": 0.75}},
        params={"quorum": 1, "sync_every": 2},
        fragments=(100, 300),
    )
    return [head, *out]
