"""What the machinery costs a learner: its step rate inside a cluster against the bare inner loop.

Not paced. Inside: a learner process with syncer, proxy, reports after every step, pulls, merges,
broadcasts and the journal. Bare: the same trainer's steps in a loop, in a process of its own. The
two alternate, so that a drift of the machine's speed hits both.

**What is held still.** A core stands in for the learner's accelerator, so the threads that compute
steps get one to themselves, in both halves; the learner's other threads, and the syncer, the proxy
and the harness, which belong to other machines, share the rest. Whatever the machinery does to the
training is then in the ratio: what the training lane does between two steps, the waits for the
interpreter that others hold, caches and memory. What is not in it is that a small host's scheduler
now and then puts a neighbour onto the core that computes; that figure is given, too, without a bar.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import Figure

ROUNDS = 3
FREE_S, PINNED_S = 6, 10
"""How long each half is measured with the threads where they like, and then held."""
SPEC = f"""
title = "bench: step rate"
duration_s = {FREE_S + PINNED_S + 2}
quiet_tail_s = 0
[target]
name = "diloco"
params = {{ learners = 1, fragments = 24, sync_every = 24, step_time_s = 0 }}
"""
BARE = """
import os, sys, time
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
for seconds, core in ((FREE_S, None), (PINNED_S, int(sys.argv[1]))):
    if core is not None:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {core})
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        trainer.step()
        steps += 1
    print(steps / (time.perf_counter() - began))
"""
COMPUTING = ("lane-main", "tf_XLAEigen")
"""What the threads that compute steps are called."""


@dataclass(frozen=True)
class Rates:
    """Steps per second."""

    free: float
    pinned: float
    computing: float = 1.0
    """Share of the pinned time that was spent inside steps, as the steps themselves say."""


def measure() -> list[Figure]:
    """The ratio of the two rates, median of the rounds."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("one core cannot be a chip and its host at a time; two are needed")
    chip, rest = cores[0], set(cores[1:])
    pairs = [(_bare(chip), _inside(chip, rest)) for _ in range(ROUNDS)]
    ratio = statistics.median(inside.pinned / bare.pinned for bare, inside in pairs)
    free = statistics.median(inside.free / bare.free for bare, inside in pairs)
    bare_s = statistics.median(bare.pinned for bare, _ in pairs)
    inside_s = statistics.median(inside.pinned for _, inside in pairs)
    computing = statistics.median(inside.computing for _, inside in pairs)
    return [
        Figure("bare inner loop", bare_s, "steps/s", "", True),
        Figure("the same learner inside a cluster", inside_s, "steps/s", "", True),
        Figure("of its time that learner is inside steps", 100 * computing, "%", "", True),
        Figure("step rate with the machinery on / bare", ratio, "x", ">= 0.97", ratio >= 0.97),
        Figure("the same, neighbours on all cores", free, "x", "", True),
    ]


def _bare(chip: int) -> Rates:
    code = BARE.replace("FREE_S", str(FREE_S)).replace("PINNED_S", str(PINNED_S))
    command = [sys.executable, "-c", code, str(chip)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        raise RuntimeError(f"the bare loop broke:\n{done.stderr[-2000:]}")
    free, pinned = done.stdout.split()
    return Rates(float(free), float(pinned))


def _inside(chip: int, rest: set[int]) -> Rates:
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder) / "bench.toml", Path(folder) / "out"
        spec.write_text(SPEC)
        journal = out / "journal.jsonl"
        command = [sys.executable, "-m", "harness", "run", str(spec), "--seed", "1"]
        command += ["--quiet", "--json", "--out", str(out)]
        with _running(command) as process:
            steady_ns = _wait_for(journal, "steady_state", process)["t_ns"]
            time.sleep(FREE_S)
            freed_ns = _events(journal, "step")[-1]["t_ns"]
            started = _events(journal, "unit_started")
            for unit in started:
                _pin(unit["pid"], chip if unit["unit"] == "learner-0" else None, rest)
            _pin(process.pid, None, rest)
            pinned_ns = _events(journal, "step")[-1]["t_ns"] + 500_000_000
            ended_ns = _wait_for(journal, "window_ended", process)["t_ns"]
            process.wait(120)
        steps = _events(journal, "step")
        free, _ = _rate(steps, steady_ns, freed_ns)
        return Rates(free, *_rate(steps, pinned_ns, ended_ns))


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield process
        except RuntimeError as error:
            said.seek(0)
            text = said.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"the cluster broke ({error}):\n{text}") from error
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(journal: Path, kind: str, process: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + 200
    while not (found := _events(journal, kind)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no event {kind} came")
        time.sleep(0.2)
    return found[0]


def _events(journal: Path, kind: str) -> list[Any]:
    if not journal.exists():
        return []
    mark = f'"event":"{kind}"'
    whole = journal.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if mark in line]


def _pin(pid: int, chip: int | None, rest: set[int]) -> None:
    """Computing threads onto ``chip`` (None: the process has none), all others onto ``rest``."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        computes = (task / "comm").read_text().strip().startswith(COMPUTING)
        os.sched_setaffinity(int(task.name), {chip} if computes and chip is not None else rest)


def _rate(steps: list[Any], from_ns: int, to_ns: int) -> tuple[float, float]:
    """(steps per second, share of the time inside steps) between two instants."""
    inside = [step for step in steps if from_ns <= step["t_ns"] <= to_ns]
    if len(inside) < 50:
        raise RuntimeError(f"{len(inside)} steps are too few to tell a rate")
    span_ns = inside[-1]["t_ns"] - inside[0]["t_ns"]
    computed_ns = sum(step["compute_ns"] for step in inside[1:])
    return 1e9 * (len(inside) - 1) / span_ns, computed_ns / span_ns
