"""Lockstep targets in reports: what is rolled back is lost, and which exits are explained.

Two workers, steps of 1 s, the window is 0 to 12 s. worker-1 is killed at 4.5 s; the world goes on
at 8 s from step 3.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness import events as ev
from harness.journal import JournalText
from reports.build import Analysis, analyse
from reports.history import fold
from tests.reports.builder import SECOND

L: dict[str, Any] = {"unit": "launcher", "incarnation": 1}
FAULT: dict[str, Any] = {"fault": "f1", "kind": "kill", "unit": "worker-1"}


def s(seconds: float) -> int:
    return round(seconds * SECOND)


def step(unit: str, incarnation: int, number: int, begins: float) -> ev.Step:
    return ev.Step(
        t_ns=s(begins + 1),
        unit=unit,
        incarnation=incarnation,
        step=number,
        began_at_ns=s(begins),
        tokens=10,
        nominal_ns=SECOND,
    )


def life(unit: str, incarnation: int, began: float, pid: int, by: str) -> list[ev.AnyEvent]:
    return [
        ev.UnitSpawned(t_ns=s(began), unit=unit, by=by, pid=pid),
        ev.UnitStarted(t_ns=s(began), unit=unit, incarnation=incarnation, role="learner", pid=pid),
        ev.UnitReady(t_ns=s(began), unit=unit, incarnation=incarnation),
    ]


def formed(t: float, world: int, at_step: int) -> ev.WorldFormed:
    members = ("worker-0", "worker-1")
    return ev.WorldFormed(t_ns=s(t), world=world, members=members, step=at_step, **L)


def journal() -> list[ev.AnyEvent]:
    units = (
        ev.UnitInfo(name="launcher", role="syncer"),
        ev.UnitInfo(name="worker-0", role="learner", step_time_ns=SECOND),
        ev.UnitInfo(name="worker-1", role="learner", step_time_ns=SECOND),
    )
    first = ev.RunStarted(
        t_ns=s(-1),
        schema=1,
        run="r",
        experiment="x",
        seed=1,
        runtime="simulated",
        target="spmd",
        proxy="simulated",
        units=units,
        spec={},
        params={"learners": 3},
    )
    out: list[ev.AnyEvent] = [
        *life("worker-0", 1, -0.5, 1, "harness"),
        *life("worker-1", 1, -0.5, 2, "harness"),
        formed(-0.1, 1, 0),
        ev.SteadyState(t_ns=0, why="by decree"),
        ev.FaultPlanned(t_ns=s(4.4), planned_at_ns=s(4.4), **FAULT),
        ev.FaultAsked(t_ns=s(4.4), **FAULT),
        ev.FaultExecuted(t_ns=s(4.5), **FAULT),
        ev.UnitExited(t_ns=s(4.5), unit="worker-1", pid=2, signal=9),
        ev.LinkDown(t_ns=s(4.5), peer="worker-1", why="closed", **L),
        ev.WorldEnded(t_ns=s(4.5), world=1, because="worker-1", why="closed", **L),
        ev.UnitExited(t_ns=s(4.6), unit="worker-0", pid=1, code=75),
        *life("worker-0", 2, 5, 3, "supervisor"),
        *life("worker-1", 2, 5, 4, "supervisor"),
        formed(8, 2, 3),
        ev.WindowEnded(t_ns=s(11)),
        ev.TailEnded(t_ns=s(12)),
        ev.ResidueFound(t_ns=s(12.1)),
        ev.RunEnded(t_ns=s(12.2), status="completed"),
    ]
    for unit in ("worker-0", "worker-1"):
        out += [step(unit, 1, n + 1, n) for n in range(4)]
        out += [step(unit, 2, n + 4, 8 + n) for n in range(4)]
    return [first, *sorted(out, key=lambda e: e.t_ns)]


def analysed(events: list[ev.AnyEvent]) -> Analysis:
    return analyse(fold(JournalText(events=tuple(events), problems=(), lines=())))


def changed(kind: type[Any], **fields: Any) -> list[ev.AnyEvent]:
    return [msgspec.structs.replace(e, **fields) if isinstance(e, kind) else e for e in journal()]


def exits(analysis: Analysis) -> Any:
    return next(a.finding for a in analysis.answers if a.check.name == "exits-explained")


def test_what_a_new_world_went_back_behind_is_lost() -> None:
    analysis = analysed(journal())
    for one in analysis.ledger.learners:
        totals = one.totals()
        # Steps 1 to 3 and 4 to 7; step 4 of the first life is gone, and so is what ran then.
        assert totals["useful"] == s(3 + 4)
        assert totals["lost"] == s(1.6 if one.unit == "worker-0" else 1.5)
    assert analysis.report.goodput.ratio == pytest.approx(14 / 24)


def test_a_world_that_goes_on_where_it_was_loses_no_step() -> None:
    events = [formed(8, 2, 4) if e == formed(8, 2, 3) else e for e in journal()]
    assert [one.totals()["useful"] for one in analysed(events).ledger.learners] == [s(8), s(8)]


def test_a_living_unit_is_rolled_back_too() -> None:
    events = [*journal(), formed(12, 3, 5)]
    assert [one.totals()["useful"] for one in analysed(events).ledger.learners] == [s(5), s(5)]


def test_members_end_together_and_that_is_explained() -> None:
    analysis = analysed(journal())
    finding = exits(analysis)
    assert finding.valid is True, finding.why
    assert "1 of them ended with the world" in finding.why
    assert analysis.report.verdict.outcome == "passed", analysis.report.verdict.reasons
    blast = next(a for a in analysis.answers if a.check.name == "blast-radius")
    assert not blast.finding.asked


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(changed(ev.WorldEnded, because="worker-0"), id="nobody hit the culprit"),
        pytest.param(changed(ev.WorldEnded, world=9), id="another world ended"),
        pytest.param(changed(ev.WorldEnded, planned=True), id="planned for a member"),
        pytest.param(
            [e for e in journal() if not isinstance(e, ev.WorldEnded)], id="no world ended"
        ),
        pytest.param(
            [
                msgspec.structs.replace(e, code=1) if isinstance(e, ev.UnitExited) and e.code else e
                for e in journal()
            ],
            id="another exit code",
        ),
    ],
)
def test_an_end_without_a_reason_is_a_failure(events: list[ev.AnyEvent]) -> None:
    finding = exits(analysed(events))
    assert finding.valid is False
    assert "worker-0 ended" in finding.why


def test_an_unknown_culprit_needs_some_fault() -> None:
    assert exits(analysed(changed(ev.WorldEnded, because=""))).valid is True
    late = changed(ev.WorldEnded, because="", t_ns=s(4.3))
    assert exits(analysed(late)).valid is False


def test_a_worker_is_healed_by_its_first_step() -> None:
    (row,) = analysed(journal()).healing
    assert (row.ready_ns, row.reintegrate_ns, row.detect_ns) == (s(4.5), s(4.5), 0)
