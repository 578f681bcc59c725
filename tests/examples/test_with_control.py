"""A test of one's own that asks what a fault cost in loss."""

from __future__ import annotations

import pytest

from harness.testing import ChaosRun


@pytest.mark.chaos("with-control.toml", seed=3)
def test_a_death_costs_hardly_any_loss(chaos_run: ChaosRun) -> None:
    quality = chaos_run.report.quality
    assert quality.control == "with-control-control"
    assert quality.gap_ratio <= 0.05
