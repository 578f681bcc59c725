"""``python -m tests.mutant_table [NAME ...]``: every planted bug, who caught it, after how many
drawn experiments and seconds, and how many faults the smallest experiment has that shows it."""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.mutants import MUTANTS
from tests.simulation.test_mutants import FAULTS_MAX, hunt, shrunk

SHRINK_S = 60.0

NOT_CAUGHT = "NOT CAUGHT"

Row = tuple[str, str, str, str, str, str, bool]


def row(name: str) -> Row:
    """(name, bug, checks that spoke, seeds, seconds, faults left, whether all is as it should)."""
    mutant = MUTANTS[name]
    outer = pytest.MonkeyPatch()
    with outer.context() as patch:
        mutant.plant(patch)
        began = time.process_time()
        seeds, violations = hunt(mutant, outer)
        took_s = time.process_time() - began
        spoke = sorted({v.check for v in violations} & mutant.checks)
        if not spoke:
            return name, mutant.bug, NOT_CAUGHT, str(seeds), f"{took_s:.1f}", "", False
        faults = len(shrunk(mutant, outer, seeds - 1, seconds=SHRINK_S)["fault"])
    caught = ", ".join(spoke)
    sound = faults <= FAULTS_MAX
    return name, mutant.bug, caught, str(seeds), f"{took_s:.1f}", str(faults), sound


def main(names: list[str]) -> int:
    """Print the table as Markdown; exit status 1 when a mutant got away or stayed too large."""
    lines = [
        "| mutant | bug | caught by | seeds | CPU s | faults |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    sound = True
    sys.stdout.write("\n".join(lines) + "\n")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context, max_tasks_per_child=1) as pool:
        for *shown, fine in pool.map(row, names or MUTANTS):
            sound &= bool(fine)
            sys.stdout.write(f"| {' | '.join(map(str, shown))} |\n")
            sys.stdout.flush()
    return int(not sound)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
