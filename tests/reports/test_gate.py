"""Gates: direction, unknown values, names that do not exist."""

from __future__ import annotations

from typing import Any

import pytest

from harness import events as ev
from reports.build import analyse
from reports.gate import GATES
from reports.history import fold
from reports.schema import Report
from tests.reports.builder import Cluster, Kill, journal, replace
from tests.reports.test_quality import reached, told, with_control


def report_of(gate: dict[str, Any], loss: float | None = 5.0) -> Report:
    cluster = Cluster(faults=[Kill("learner-1", 4.03, 0.5)], loss_from=loss)
    events = cluster.events()
    if gate.keys() & {"loss_gap_max", "accuracy_min"}:  # accuracy 0.5, and a control 5.3 % better
        events = told(events, (4.0, 3.0, 2.5, 2.2, 2.0))
    if "loss_gap_max" in gate:
        events = with_control(events, (1, 9.0), (reached(events)[-1], 1.9))
    head, *rest = events
    assert isinstance(head, ev.RunStarted)
    spec = {**head.spec, "gate": gate}
    return analyse(fold(journal([replace(head, spec=spec), *rest]))).report


@pytest.mark.parametrize(
    ("name", "easy", "hard"),
    [
        ("goodput_min", 0.5, 0.999),
        ("merged_goodput_min", 0.5, 0.999),
        ("uptime_min", 1.0, 1.1),
        ("stall_s_max", 0.0, -1.0),
        ("healing_max_s", 10, 0.1),
        ("detect_s_max", 1.0, 0.001),
        ("loss_max", 2.0, 0.01),
        ("lost_tokens_max", 0.5, 0.0),
        ("overrun_max", 0.0, -0.1),
        ("other_max", 0.02, -0.1),
        ("effective_faults_min", 1, 2),
        ("bytes_per_step_max", 1e9, 1.0),
        ("accuracy_min", 0.5, 0.6),
        ("loss_gap_max", 0.06, 0.05),
    ],
)
def test_each_gate_can_be_met_and_missed(name: str, easy: float, hard: float) -> None:
    met = report_of({name: easy})
    assert met.gates[0].ok, met.gates[0]
    assert met.verdict.exit_status == 0
    missed = report_of({name: hard})
    assert not missed.gates[0].ok
    assert (missed.verdict.outcome, missed.verdict.exit_status) == ("deviated", 1)
    assert any(f"gate {name}" in reason for reason in missed.verdict.reasons)


def test_every_gate_is_covered_here() -> None:
    percentiles = {"healing_p50_s_max", "healing_p95_s_max"}
    (mark,) = test_each_gate_can_be_met_and_missed.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} | percentiles == set(GATES)


@pytest.mark.parametrize("name", ["healing_p50_s_max", "healing_p95_s_max"])
def test_a_percentile_of_one_fault_is_never_ok(name: str) -> None:
    report = report_of({name: 1000.0})
    (row,) = report.gates
    assert (row.ok, row.value) == (False, None)
    assert "needs n >= 5" in row.why
    assert not report.verdict.conclusive
    assert report.verdict.exit_status == 3


def test_an_unknown_loss_is_never_ok() -> None:
    (row,) = report_of({"loss_max": 1000.0}, loss=None).gates
    assert (row.ok, row.value) == (False, None)


def test_gates_that_cannot_be_are_not_ok_either() -> None:
    rows = report_of({"goodput_mni": 0.1, "uptime_min": "high", "stall_s_max": True}).gates
    assert [row.ok for row in rows] == [False, False, False]
    assert "no such gate (there are: goodput_min" in rows[0].why
    assert rows[1].why == "its bound is no number"


def test_a_gate_that_was_not_set_is_left_out() -> None:
    assert report_of({"goodput_min": 0.5, "uptime_min": None}).gates[1:] == []


def test_names_say_the_direction() -> None:
    for gate in GATES.values():
        ending = "_min" if gate.better == "at least" else "_max"
        assert ending in gate.name, gate.name
        assert gate.help
