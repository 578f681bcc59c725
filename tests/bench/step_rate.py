"""What the machinery costs a learner: its step rate inside a cluster against the bare inner loop.

Not paced. Inside: a learner process with syncer, proxy, reports after every step, pulls, merges,
broadcasts and the journal. Bare: the same trainer's steps in a loop, in a process of its own. The
two alternate, so that a drift of the machine's speed hits both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import Figure

ROUNDS = 3
SECONDS = 12
SPEC = f"""
title = "bench: step rate"
duration_s = {SECONDS}
quiet_tail_s = 0
[target]
name = "diloco"
params = {{ learners = 1, fragments = 24, sync_every = 24, step_time_s = 0 }}
"""
BARE = """
import sys, time
from pathlib import Path
from harness.runtimes.places import cache_dir
from targets.diloco.params import DilocoParams
from targets.diloco.trainers import load
params = DilocoParams(learners=1, fragments=24, sync_every=24, step_time_s=0)
module = load("lm")
trainer = module.create(params, 0, 1, cache_dir=str(cache_dir()))
trainer.warm()
trainer.load(trainer.layout.split(module.initial(params, 1)))
for _ in range(50):
    trainer.step()
steps, began = 0, time.perf_counter()
while time.perf_counter() - began < SECONDS:
    trainer.step()
    steps += 1
print(steps / (time.perf_counter() - began))
"""


def measure() -> list[Figure]:
    """The ratio of the two rates, median of the rounds."""
    bare, inside = [], []
    for _ in range(ROUNDS):
        bare.append(_bare())
        inside.append(_inside())
    ratio = statistics.median(i / b for i, b in zip(inside, bare, strict=True))
    return [
        Figure("bare inner loop", statistics.median(bare), "steps/s", "", True),
        Figure("the same learner inside a cluster", statistics.median(inside), "steps/s", "", True),
        Figure("step rate with the machinery on / bare", ratio, "x", ">= 0.97", ratio >= 0.97),
    ]


def _bare() -> float:
    code = BARE.replace("SECONDS", str(SECONDS))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the bare loop broke:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def _inside() -> float:
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder) / "bench.toml", Path(folder) / "out"
        spec.write_text(SPEC)
        command = [sys.executable, "-m", "harness", "run", str(spec), "--seed", "1"]
        command += ["--quiet", "--json", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if not done.stdout:
            raise RuntimeError(f"the cluster broke:\n{done.stderr[-2000:]}")
        goodput = json.loads(done.stdout)["goodput"]
        return float(goodput["steps"] / goodput["allocated_s"])
