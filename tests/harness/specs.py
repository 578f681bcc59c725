"""A small sound spec for tests that need one."""

from __future__ import annotations

from typing import Any

from harness.compose import Checked, check
from harness.spec import read_text
from reports.gate import GATES


def spec_text(faults: str = "", **head: Any) -> str:
    """TOML of a three-learner experiment without arithmetic; ``head`` adds top-level numbers."""
    fields = {"duration_s": 8, "quiet_tail_s": 4, "baseline_s_max": 30, **head}
    lines = ['title = "test"', 'runtime = "simulated"']
    lines += [f"{k} = {v}" for k, v in fields.items()]
    return "\n".join(
        [
            *lines,
            "[target]",
            'name = "diloco"',
            'params = { learners = 3, trainer = "scripted", fragments = 4, sync_every = 4, '
            "step_time_s = 0.1 }",
            faults,
        ]
    )


def checked(faults: str = "", seed: int = 1, **head: Any) -> Checked:
    """The checked spec."""
    return check(read_text(spec_text(faults, **head), "test", gates=GATES), seed)
