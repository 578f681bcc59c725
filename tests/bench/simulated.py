"""Simulated runs per minute of one core: 60 virtual seconds, 4 learners, all checks, in a storm.

Each run is what ``diloco-chaos run`` does: spec, plan, faults, journal, history, ledger, checks.
Time is the process's own, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
from typing import Any

from harness.fuzz.act import perform
from reports.violations import judge
from tests.bench import Figure

RUNS = 12
PER_MINUTE_MIN = 500.0


def storm(step_time_s: float) -> dict[str, Any]:
    """60 virtual seconds: about 4 until steady, 46 of faults, 10 of quiet tail."""
    kinds: list[dict[str, Any]] = [
        {"kind": "kill", "where": ["learner-0"], "at_s": 4},
        {"kind": "pause", "where": ["learner-1"], "at_s": 8, "for_s": 3},
        {"kind": "partition", "where": ["learner-2"], "at_s": 13, "for_s": 5},
        {"kind": "straggle", "where": ["learner-3"], "at_s": 15, "for_s": 6, "factor": 2.0},
        {"kind": "kill", "where": ["syncer"], "at_s": 25},
        {"kind": "stall", "where": ["learner-1"], "at_s": 30, "for_s": 4},
        {"kind": "latency", "where": ["learner-0"], "at_s": 35, "for_s": 5, "latency_ms": 80},
        {"kind": "kill", "where": ["learner-3"], "at_s": 40},
    ]
    return {
        "title": "bench",
        "duration_s": 46.0,
        "quiet_tail_s": 10.0,
        "target": {
            "name": "diloco",
            "params": {
                "learners": 4,
                "fragments": 8,
                "sync_every": 8,
                "trainer": "scripted",
                "step_time_s": step_time_s,
            },
        },
        "fault": kinds,
    }


def per_minute(step_time_s: float) -> float:
    """Runs per minute of CPU time, best of three batches, scaled to 60 virtual seconds."""
    table = storm(step_time_s)
    best = 0.0
    for batch in range(3):
        began, virtual_s = time.process_time(), 0.0
        for seed in range(RUNS // 3):
            ran = perform(table, batch * RUNS + seed)
            found = judge(ran)
            if found:
                raise AssertionError(f"the bench's own storm broke something: {found[0]}")
            virtual_s += ran.events[-1].t_ns / 1e9
        best = max(best, virtual_s / (time.process_time() - began))
    return best


def measure() -> list[Figure]:
    """The bar is for steps of 0.25 s; ten steps a second are shown beside it."""
    perform(storm(0.25), 0)  # imports and first calls
    bar = f">= {PER_MINUTE_MIN:.0f}/min"
    usual, quick = per_minute(0.25), per_minute(0.1)
    return [
        Figure("60 s, 4 learners, 4 steps/s, checks on", usual, "runs/min", bar, usual >= 500),
        Figure("60 s, 4 learners, 10 steps/s, checks on", quick, "runs/min", "", True),
    ]
