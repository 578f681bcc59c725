"""Golden numbers, each one done by hand from the journal in ``hand.py``."""

from __future__ import annotations

import pytest

from reports.build import analyse
from reports.history import fold
from reports.ledger import LABELS
from reports.schema import from_json, plain, to_json
from tests.reports import hand
from tests.reports.builder import Cluster, Kill, journal


@pytest.fixture(scope="module")
def report():  # type: ignore[no-untyped-def]
    return analyse(fold(journal(hand.journal()))).report


def test_ledger_by_hand(report) -> None:  # type: ignore[no-untyped-def]
    # learner-0 steps for 10 s. learner-1: steps 1-3 were merged (3 s), step 4 never was (1 s lost),
    # half a step ran as it died (0.5 s lost), noticed at 5.0, spawned 5.5, ready 6.5, first step 7.
    assert report.goodput.by_learner_s["learner-0"]["useful"] == 10.0
    assert report.goodput.by_learner_s["learner-1"] == {
        "useful": 6.0,
        "lost": 1.5,
        "waiting": 0.0,
        "slowed": 0.0,
        "down_detect": 0.5,
        "down_restart": 0.5,
        "down_init": 1.0,
        "down_recover": 0.5,
        "other": 0.0,
    }
    assert report.goodput.allocated_s == 20.0
    assert report.goodput.ratio == 16 / 20


def test_merged_goodput_by_hand(report) -> None:  # type: ignore[no-untyped-def]
    # Seconds merged times parameters: learner-0 8 s x 100 + 9 s x 300; first life of learner-1
    # 3 s x 100; its second life 1 s x 100 + 2 s x 300; of 20 s x 400 parameters.
    assert report.goodput.merged_ratio == (800 + 2700 + 300 + 100 + 600) / 8000


def test_uptime_by_hand(report) -> None:  # type: ignore[no-untyped-def]
    assert report.goodput.uptime_ratio == 1.0
    assert report.goodput.longest_stall_s == 0.0


def test_tokens_by_hand(report) -> None:  # type: ignore[no-untyped-def]
    first, second = report.goodput.tokens.by_fragment
    # 17 steps of 10 tokens. Fragment 0: steps 1-8; 1-3; 1 of the second life are merged, step 4 of
    # the first life is lost. Fragment 1: learner-1's four steps were overwritten unheard.
    assert (first.trained, first.merged, first.lost, first.in_flight) == (170, 120, 10, 40)
    assert (second.trained, second.merged, second.lost, second.in_flight) == (170, 110, 40, 20)
    # Weighed 100 to 300: 112.5, 32.5 and 25; the odd half goes to the first part.
    tokens = report.goodput.tokens
    assert (tokens.trained, tokens.merged, tokens.lost, tokens.in_flight) == (170, 113, 32, 25)
    # Only the lost step of fragment 0 died: 10 x 100 / 400, rounded down.
    assert tokens.died == 2


def test_healing_by_hand(report) -> None:  # type: ignore[no-untyped-def]
    (row,) = report.healing
    assert (row.fault, row.kind, row.unit) == ("f1", "kill", "learner-1")
    assert row.effective_s == 4.5
    assert row.detect_s == 0.5  # given up at 5.0
    assert row.restart_s == 1.0  # runs at 5.5
    assert row.ready_s == 3.5  # first step done at 8.0
    assert row.reintegrate_s == pytest.approx(3.7)  # merged at 8.2
    # 15 tokens in the 2 s before death; 20 in the 2 s before 9.0, 10 in those before 8.0.
    assert row.throughput_s == 4.5
    assert row.restarted_by == "supervisor"
    assert row.counts
    summary = report.healing_summary
    assert (summary.n, summary.unhealed, summary.p50_s) == (1, 0, None)
    assert summary.max_s == pytest.approx(3.7)


def test_verdict_gates_and_rest_by_hand(report) -> None:  # type: ignore[no-untyped-def]
    assert report.verdict.outcome == "passed"
    assert report.verdict.conclusive
    assert report.verdict.exit_status == 0
    (gate,) = report.gates
    assert (gate.name, gate.value, gate.bound, gate.ok) == ("goodput_min", 0.8, 0.75, True)
    assert (report.faults.planned, report.faults.executed, report.faults.effective) == (1, 1, 1)
    # The counters stand at 4000 and 8000 at the end, there was no merge before the window.
    assert (report.network.bytes_up, report.network.bytes_down) == (4000, 8000)
    assert report.network.bytes_per_step == 12000 / 17
    assert report.network.reduction_vs_lockstep == pytest.approx(8 * 400 / (12000 / 17))
    assert report.goodput.overrun_ratio == 0.0
    assert report.residue.scanned


def test_json_has_the_names_of_the_contract(report) -> None:  # type: ignore[no-untyped-def]
    value = plain(report)
    assert value["schema"] == 1
    for name, keys in {
        "run": "id experiment seed runtime target commit started_at duration_s proxy "
        "host_fingerprint",
        "verdict": "outcome conclusive reasons",
        "goodput": "ratio merged_ratio uptime_ratio longest_stall_s ledger_s allocated_s tokens "
        "overrun_ratio",
        "faults": "planned executed effective skipped",
        "healing_summary": "p50_s p95_s max_s n",
        "quality": "final_loss loss_floor tokens_merged control_final_loss gap_ratio",
        "network": "bytes_up bytes_down bytes_per_step reduction_vs_lockstep",
        "residue": "containers networks volumes processes toxics",
    }.items():
        assert set(keys.split()) <= set(value[name]), name
    healing = (
        "fault kind unit planned_s executed_s effective_s ended_s detect_s restart_s ready_s "
        "reintegrate_s throughput_s restarted_by state_digest_match"
    )
    assert set(healing.split()) <= set(value["healing"][0])
    assert {"name", "valid", "why", "events"} <= set(value["invariants"][0])
    assert {"name", "value", "bound", "ok"} <= set(value["gates"][0])
    assert len(value["invariants"]) == 14
    assert tuple(value["goodput"]["ledger_s"]) == LABELS


def test_json_round_trip(report) -> None:  # type: ignore[no-untyped-def]
    assert from_json(to_json(report)) == report
    with pytest.raises(ValueError, match="not a report of schema 1"):
        from_json(b'{"schema": 1}')


def test_percentiles_from_five_faults_on() -> None:
    kills = [Kill(f"learner-{i % 3}", 2.03 + 2.5 * i, 0.5) for i in range(5)]
    report = analyse(fold(journal(Cluster(faults=kills, window_s=16).events()))).report
    healed = sorted(h.reintegrate_s or 0.0 for h in report.healing)
    assert report.healing_summary.n == 5
    assert report.healing_summary.p50_s == healed[2]
    assert report.healing_summary.p95_s == healed[4] == report.healing_summary.max_s
    fewer = Cluster(faults=kills[:4], window_s=16).events()
    summary = analyse(fold(journal(fewer))).report.healing_summary
    assert (summary.n, summary.p50_s, summary.p95_s) == (4, None, None)


def test_a_run_without_steady_state_measures_nothing() -> None:
    from harness import events as ev
    from tests.reports.builder import change

    events = change(
        Cluster().events(),
        ev.SteadyState,
        lambda e: ev.BaselineUnmet(t_ns=e.t_ns, why="learner-2 was not merged within 60 s"),
    )
    report = analyse(fold(journal(events))).report
    assert report.verdict.outcome == "baseline-not-met"
    assert report.verdict.exit_status == 3
    assert report.verdict.reasons == ["learner-2 was not merged within 60 s"]
    assert report.goodput.ratio is None
    assert report.goodput.allocated_s == 0.0
