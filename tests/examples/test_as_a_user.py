"""The plugin as a user would use it: live experiments on local processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.testing import ChaosCluster, ChaosRun

pytestmark = [pytest.mark.live, pytest.mark.slow]

# Slower emulated chips than the experiments' own: a test machine may be busy with other things,
# and a host that is too slow makes a run inconclusive.
CALM = {"learners": 3, "fragments": 4, "sync_every": 4, "step_time_s": 0.25}


@pytest.mark.chaos("kill-one", seed=7, params=CALM)
def test_one_death_is_survived(chaos_run: ChaosRun) -> None:
    report = chaos_run.report
    assert report.goodput.uptime_ratio == 1.0
    assert report.faults.effective == report.faults.planned == 1
    assert report.healing[0].restarted_by == "supervisor"


@pytest.mark.chaos(params=CALM)
def test_a_partition_is_noticed_and_healed(chaos_cluster: ChaosCluster) -> None:
    with chaos_cluster.fault("partition", where="learner-1") as victims:
        assert victims == ("learner-1",)
        chaos_cluster.wait_for(
            lambda: any(
                type(e).__name__ == "LinkDown" and getattr(e, "unit", "") == "learner-1"
                for e in chaos_cluster.events
            ),
            within_s=10,
            what="learner-1 to notice that nobody answers",
            hint="keepalive bounds this; see DETECTION_BOUND_S",
        )
    chaos_cluster.expect_recovery(within_s=15)


@pytest.mark.docker
@pytest.mark.chaos("kill-one", runtime="docker", seed=7, params=CALM)
def test_the_engine_s_restart_policy_heals(chaos_run: ChaosRun) -> None:
    assert chaos_run.report.healing[0].restarted_by == "policy"
    assert chaos_run.report.run.proxy.startswith("toxiproxy")
