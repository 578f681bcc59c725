"""Same seed, same journal bytes: in any process, under any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.fuzz.act import perform
from harness.fuzz.draw import draw

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from harness.fuzz.act import perform
from harness.fuzz.draw import draw
table = draw(int(sys.argv[1]))
table["target"]["params"]["trainer"] = sys.argv[2]
sys.stdout.buffer.write(perform(table, int(sys.argv[1])).journal)
"""


def journal_of_another_process(seed: int, trainer: str, hash_seed: str) -> bytes:
    """The journal of the drawn experiment, as a fresh interpreter writes it."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(seed), trainer],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.mark.parametrize(("seed", "trainer"), [(11, "scripted"), (12, "quadratic")])
def test_bytes_are_equal_across_processes_and_hash_seeds(seed: int, trainer: str) -> None:
    first = journal_of_another_process(seed, trainer, "1")
    second = journal_of_another_process(seed, trainer, "2")
    assert len(first) > 10_000
    assert first == second


@pytest.mark.parametrize("seed", range(100, 110))
def test_bytes_are_equal_within_a_process(seed: int) -> None:
    table = draw(seed)
    assert perform(table, seed).journal == perform(table, seed).journal


def test_another_seed_gives_another_run_of_the_same_experiment() -> None:
    table = draw(100)
    assert perform(table, 100).journal != perform(table, 101).journal


def test_a_simulated_journal_holds_nothing_of_the_host() -> None:
    text = perform(draw(3), 3).journal.decode()
    for word in (os.uname().nodename, str(ROOT), str(Path.home()), "/dev/shm", "started_at"):
        assert word not in text, word
    assert '"pid"' not in text
