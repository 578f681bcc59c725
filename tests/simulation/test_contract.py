"""The simulated runtime does what every runtime must do, with both targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import targets
from harness.runtimes.base import RunContext
from harness.runtimes.simulated import SimulatedRuntime
from tests.contracts.runtime_contract import CHECKS, Stage
from tests.simulation.helpers import PARAMS

TARGETS: dict[str, tuple[dict[str, Any], str, str]] = {
    "diloco": ({**PARAMS, "learners": 2}, "learner-0", "learner-1"),
    "counter": ({"units": 2}, "counter-0", "counter-1"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CHECKS)
def test_contract(name: str, target: str, tmp_path: Path) -> None:
    params, victim, bystander = TARGETS[target]
    stage = Stage(
        make=lambda: SimulatedRuntime(RunContext("contract", 3, tmp_path)),
        target=lambda: targets.load(target)(params, 3),
        victim=victim,
        bystander=bystander,
    )
    CHECKS[name](stage)
