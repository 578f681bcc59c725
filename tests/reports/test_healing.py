"""Phases of healing beyond the golden ones, and their summary."""

from __future__ import annotations

import pytest

from harness import events as ev
from reports.build import analyse
from reports.healing import summarize
from reports.history import fold
from reports.schema import Report
from tests.reports.builder import SECOND, Cluster, Cut, Kill, Pause, Straggle, journal, replace


def report_of(cluster: Cluster) -> Report:
    return analyse(fold(journal(cluster.events()))).report


def test_a_lifted_fault_is_counted_from_the_lift() -> None:
    row = report_of(Cluster(faults=[Cut("learner-1", 4.0, 2.5, notice_s=1.0)])).healing[0]
    # Lifted at 6.5; merges come at 6.55 and every 100 ms.
    assert row.ended_s == 6.5
    assert row.reintegrate_s == pytest.approx(0.05)
    # It went on training: there is no first step to wait for and nothing to restart.
    assert (row.restart_s, row.ready_s, row.restarted_by) == (None, None, None)
    # Noticing comes before the lift and is counted from the execution.
    assert row.detect_s == pytest.approx(0.05)
    assert row.counts


def test_detection_waits_for_a_notice_of_the_link_and_not_of_the_merge() -> None:
    events = [
        replace(e, excluded={}) if isinstance(e, ev.Merged) else e
        for e in Cluster(faults=[Cut("learner-1", 4.0, 2.5, notice_s=1.0)]).events()
    ]
    assert analyse(fold(journal(events))).report.healing[0].detect_s == 1.0


def test_a_frozen_unit_counts_its_first_step_from_the_lift() -> None:
    row = report_of(Cluster(faults=[Pause("learner-1", 4.05, 1.5)])).healing[0]
    assert row.ready_s == pytest.approx(0.05)
    assert row.counts


def test_a_slow_unit_was_never_out() -> None:
    report = report_of(Cluster(faults=[Straggle("learner-1", 4.0, 2.0)]))
    assert not report.healing[0].counts
    assert report.healing_summary.n == 0
    assert report.healing_summary.max_s is None


def test_a_unit_that_never_came_back() -> None:
    report = report_of(
        Cluster(faults=[Kill("learner-1", 4.0, down_s=None)], gate={"healing_max_s": 5})
    )
    row = report.healing[0]
    assert row.reintegrate_s is None
    assert row.waited_s == pytest.approx(8.0)
    assert (report.healing_summary.n, report.healing_summary.unhealed) == (1, 1)
    assert report.healing_summary.max_s is None
    # Not healed after 8 s is proof enough that it takes more than 5 s.
    (gate,) = report.gates
    assert (gate.ok, gate.value) == (False, pytest.approx(8.0))
    assert (report.verdict.outcome, report.verdict.conclusive) == ("deviated", True)


def test_not_healed_yet_is_not_the_same_as_too_slow() -> None:
    report = report_of(
        Cluster(faults=[Kill("learner-1", 4.0, down_s=None)], gate={"healing_max_s": 60})
    )
    (gate,) = report.gates
    assert (gate.ok, gate.value) == (False, None)
    assert "1 of 1 never healed" in gate.why
    assert (report.verdict.outcome, report.verdict.conclusive) == ("deviated", False)


def test_the_unhealed_are_slower_than_all_others_in_percentiles() -> None:
    kills = [Kill(f"learner-{i}", 3.0 + i / 10, 0.5) for i in range(4)]
    never = Kill("learner-4", 3.0, down_s=None)
    analysis = analyse(fold(journal(Cluster(learners=6, faults=[*kills, never]).events())))
    summary = summarize(analysis.healing)
    assert (summary.n, summary.unhealed) == (5, 1)
    assert summary.p50_ns is not None
    assert summary.p95_ns is None
    assert summary.at_least_ns == 9 * SECOND


def test_a_second_death_before_reintegration_counts_for_both() -> None:
    faults = [Kill("learner-1", 4.0, 0.2), Kill("learner-1", 4.85, 0.2)]
    report = report_of(Cluster(faults=faults))
    first, second = report.healing
    # The first life after 4.0 stepped from 4.8 and died at 4.85 unheard: both healed at once.
    assert first.reintegrate_s is not None
    assert second.reintegrate_s is not None
    assert first.effective_s is not None
    assert second.effective_s is not None
    assert first.effective_s + first.reintegrate_s == pytest.approx(
        second.effective_s + second.reintegrate_s
    )


def test_the_syncer_heals_with_its_own_first_merge() -> None:
    from tests.reports.test_checks import syncer_restarts

    events = [
        e
        for e in syncer_restarts(Cluster().events(), 0)
        if not (isinstance(e, ev.Merged | ev.Adopted) and 5 * SECOND < e.t_ns < round(5.6 * SECOND))
    ]
    row = analyse(fold(journal(events))).report.healing[0]
    assert (row.unit, row.kind) == ("syncer", "kill")
    assert row.restart_s == pytest.approx(0.1)
    assert row.reintegrate_s == pytest.approx(0.65)
    assert row.restarted_by == "supervisor"
