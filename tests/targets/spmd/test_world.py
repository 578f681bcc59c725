"""Two real processes in one world: equal states, the arithmetic of one process, a death shared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from targets.diloco import codec
from targets.diloco.params import DilocoParams
from targets.diloco.trainers import lm
from targets.spmd.messages import CloseWorlds, OpenWorld
from targets.spmd.work import LauncherWorker
from targets.spmd.world import initial_state
from tests.targets.spmd import member

ROOT = Path(__file__).resolve().parents[3]
STEPS = 3
DEADLINE_S = 240.0
"""For compiling on a busy machine; what is asserted about time is asserted apart."""

pytestmark = [pytest.mark.slow, pytest.mark.live]


def start(address: str, rank: int, cache: Path) -> subprocess.Popen[str]:
    arguments = [address, str(rank), "2", str(STEPS), str(cache)]
    command = [sys.executable, "-m", "tests.targets.spmd.member", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def line(process: subprocess.Popen[str], begins: str) -> list[str]:
    """The words of the next line that begins so."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(begins + " "):
            return text.split()
    assert process.stderr is not None
    raise AssertionError(f"it ended without saying {begins!r}: {process.stderr.read()[-2000:]}")


def alone() -> np.ndarray:
    """Parameters after the same steps of one process on both ranks' records."""
    params = DilocoParams(
        model="tiny",
        batch=2 * member.BATCH,
        sequence=member.SEQUENCE,
        fragments=1,
        sync_every=1,
        weight_decay=0.1,
    )
    program = lm.step_program(params, params.batch)
    first = lm.initial(params, member.SEED)
    state = [list(first), [np.zeros_like(a) for a in first], [np.zeros_like(a) for a in first]]
    for step in range(STEPS):
        both = np.concatenate([member.records(rank, step) for rank in (0, 1)])
        *state, _ = program.call(*state, np.int32(step), np.float32(1e-3), np.float32(0.1), both)
    return np.concatenate([np.asarray(a).reshape(-1) for a in state[0]])


def test_two_processes_are_one_program(tmp_path: Path) -> None:
    launcher = LauncherWorker("127.0.0.1")
    address = launcher.run(OpenWorld(1, 2))
    processes = [start(address, rank, tmp_path) for rank in (0, 1)]
    try:
        begun = [line(p, "start")[1] for p in processes]
        assert begun == [codec.digest([initial_state("tiny", member.SEED)])] * 2
        ends = [line(p, "state") for p in processes]
        assert ends[0] == ends[1], "replicas that differ"
        together = np.load(tmp_path / "state.npy")
        expected = alone()
        moved = np.abs(expected - initial_state("tiny", member.SEED)[: expected.size]).max()
        assert moved > 1e-3
        np.testing.assert_allclose(together[: expected.size], expected, atol=moved / 50)

        processes[1].kill()
        killed = time.monotonic()
        failed = line(processes[0], "failed")
        assert processes[0].wait(timeout=DEADLINE_S) == 75
        assert "Gloo" in " ".join(failed)
        assert time.monotonic() - killed < 30, "a death must not leave the others hanging"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        launcher.run(CloseWorlds(2))
