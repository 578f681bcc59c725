"""Chips that fail: against closed forms, by symmetry, and against the paper's table."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from harness.scale import paper
from harness.scale.chips import YEAR_S, Cluster, learner_timeline, simulate, stepping_shares
from harness.seeds import stream

SMALL = Cluster(chips=300_000, learners=4, days=3)
FLOATS = tuple(f.name for f in fields(Cluster) if isinstance(f.default, float))


def test_same_seed_same_outcome() -> None:
    assert simulate(SMALL, 5) == simulate(SMALL, 5)
    assert simulate(SMALL, 5) != simulate(SMALL, 6)


def test_without_elasticity_the_renewal_formula_holds() -> None:
    cluster = Cluster(chips=600_000, learners=1, elastic=False, days=60)
    mtbf_s = YEAR_S / cluster.chips
    failing = 1 - math.exp(-cluster.step_s / mtbf_s)
    expected = cluster.step_s / (cluster.step_s + cluster.restart_s * failing)
    outcome = simulate(cluster, 1)
    assert outcome.goodput == pytest.approx(expected, abs=0.005)
    assert outcome.uptime == pytest.approx(outcome.goodput, abs=0.002)


def test_slices_that_are_out_are_missed() -> None:
    # No stalls: what is lost is exactly the share of slices that are out.
    cluster = Cluster(chips=100_000, learners=1, down_s=0, up_s=0, days=60)
    out = cluster.slice_chips * cluster.return_mean_s / cluster.mtbi_chip_s
    assert simulate(cluster, 2).goodput == pytest.approx(1 - out, abs=0.004)
    assert simulate(cluster, 2).uptime == 1.0


def test_nothing_fails_when_chips_live_for_ever() -> None:
    outcome = simulate(replace(SMALL, mtbi_chip_s=1e18), 1)
    assert (outcome.goodput, outcome.uptime, outcome.failures) == (1.0, 1.0, 0)
    assert outcome.participants_mean == 4.0


def test_failures_come_at_the_rate_that_was_asked_for() -> None:
    cluster = Cluster(chips=100_000, learners=1, down_s=0, up_s=0, days=60)
    expected = cluster.days * 86400 * cluster.chips / cluster.mtbi_chip_s
    assert simulate(cluster, 3).failures == pytest.approx(expected * 0.97, rel=0.03)


def test_m_learners_on_m_times_the_chips_are_alike() -> None:
    one = simulate(Cluster(chips=150_000, learners=1, days=30), 1).goodput
    eight = simulate(Cluster(chips=1_200_000, learners=8, days=8), 1).goodput
    assert one == pytest.approx(eight, abs=0.01)


def test_a_timeline_never_claims_more_than_its_time() -> None:
    for seed in range(5):
        life = learner_timeline(SMALL, 86400, stream(seed, "t"))
        stalled = sum(end - begin for begin, end in life.stalls)
        assert 0 <= life.useful_s <= 86400
        assert life.useful_s + stalled <= 86400 + SMALL.step_s
        assert all(a[1] <= b[0] for a, b in zip(life.stalls, life.stalls[1:], strict=False))


def test_shares_of_stepping_learners() -> None:
    shares = stepping_shares([[(0, 2), (5, 6)], [(1, 3)]], 10)
    assert shares == pytest.approx([0.1, 0.3, 0.6])


def test_slow_slices_slow_their_learner() -> None:
    slow = simulate(replace(SMALL, speed_cv=0.1), 1).goodput
    assert slow < simulate(SMALL, 1).goodput - 0.1


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("mtbi_chip_s", 0, "mtbi_chip_s must be positive"),
        ("chips", 0, "chips must be positive"),
        ("slice_chips", 10**9, "need at least"),
        ("down_s", -1, "down_s must be finite and not negative"),
        *((name, value, f"{name} must be") for name in FLOATS for value in (math.nan, math.inf)),
        ("quorum", 9, "quorum must lie between"),
    ],
)
def test_impossible_clusters_are_refused(field: str, value: float, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        simulate(replace(SMALL, **{field: value}), 1)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_cell_of_table_1_is_within_three_points() -> None:
    cells = paper.table(seed=1)
    assert len(cells) == 30
    assert [(c.learners, c.chips, c.error) for c in cells if abs(c.error) > 3] == []
    assert [(c.learners, c.chips) for c in cells if abs(c.uptime_error) > 3] == []
    assert sum(not c.calibrated for c in cells) == 20
