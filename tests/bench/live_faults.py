"""How late faults are, and how fast a killed learner is merged again, for each live runtime.

One run per runtime: seven kills one after the other (percentiles need at least five), and a few
hundred short holds in between, whose planned and executed instants the journal has.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.needs import NEEDS
from tests.bench import Figure

SPEC = """
title = "bench: lateness and healing"
duration_s = 50
quiet_tail_s = 8
[target]
name = "diloco"
params = { learners = 4, fragments = 8, sync_every = 8, step_time_s = 0.1 }
[[fault]]
kind = "kill"
where = ["learner-0"]
schedule = { process = "fixed", mean_gap_s = 6.0 }
[[fault]]
kind = "straggle"
where = ["learner-1"]
factor = 1.5
for_s = 0.2
schedule = { process = "fixed", mean_gap_s = 0.5 }
[[fault]]
kind = "latency"
where = ["learner-2"]
latency_ms = 5.0
for_s = 0.2
schedule = { process = "fixed", mean_gap_s = 0.7 }
[[fault]]
kind = "pause"
where = ["learner-3"]
for_s = 0.1
schedule = { process = "fixed", mean_gap_s = 0.9 }
"""

LATE_MS_MAX = {"process": 20.0, "docker": 300.0}
HEALED_S_MAX = {"process": 3.0, "docker": 4.0}


def measure() -> list[Figure]:
    """Both runtimes; docker is left out, loudly, where it is missing."""
    figures = []
    for runtime in ("process", "docker"):
        if runtime == "docker" and (missing := NEEDS["docker"]()):
            print(f"  docker left out: {missing}", flush=True)
            continue
        figures += _figures(runtime, _report(runtime))
    return figures


def _report(runtime: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "bench.toml"
        spec.write_text(SPEC)
        command = [sys.executable, "-m", "harness", "run", str(spec), "--runtime", runtime]
        command += ["--seed", "1", "--quiet", "--json", "--out", str(Path(folder) / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode == 4 or not done.stdout:
            raise RuntimeError(f"the {runtime} run broke:\n{done.stderr[-2000:]}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report


def _figures(runtime: str, report: dict[str, Any]) -> list[Figure]:
    late_ms = [
        1000 * (row["executed_s"] - row["planned_s"])
        for row in report["faults"]["rows"]
        if row["executed_s"] is not None
    ]
    healed = [h["reintegrate_s"] for h in report["healing"] if h["kind"] == "kill"]
    known = [h for h in healed if h is not None]
    p50_ms, p99_ms = quantile(late_ms, 0.5), quantile(late_ms, 0.99)
    bar_ms, bar_s = LATE_MS_MAX[runtime], HEALED_S_MAX[runtime]
    name = f"{runtime}: planned to executed"
    heal_s = quantile(known, 0.5)
    whole = len(known) == len(healed) >= 5
    return [
        Figure(f"{name}, p50 (n={len(late_ms)})", p50_ms, "ms", "", True),
        Figure(f"{name}, p99", p99_ms, "ms", f"<= {bar_ms:g} ms", p99_ms <= bar_ms),
        Figure(
            f"{runtime}: kill to merged again, p50 (n={len(known)} of {len(healed)})",
            heal_s,
            "s",
            f"<= {bar_s:g} s, all healed",
            whole and heal_s <= bar_s,
        ),
        Figure(f"{runtime}: kill to merged again, longest", max(known), "s", "", True),
        Figure(
            f"{runtime}: overrun steps", 100 * report["goodput"]["overrun_ratio"], "%", "", True
        ),
    ]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share ``q`` of ``values`` does not exceed."""
    if not values:
        raise RuntimeError("the run executed nothing, so there is nothing to measure")
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
