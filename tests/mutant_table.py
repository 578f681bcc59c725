"""``python -m tests.mutant_table``: every planted bug, who caught it, after how many seeds."""

from __future__ import annotations

import sys

import pytest

from tests.mutants import MUTANTS
from tests.simulation.test_mutants import hunt


def rows() -> list[tuple[str, str, str, str]]:
    """(name, bug, checks that spoke, seeds needed) for each mutant."""
    found = []
    for name, mutant in MUTANTS.items():
        outer = pytest.MonkeyPatch()
        with outer.context() as patch:
            mutant.plant(patch)
            seeds, violations = hunt(mutant, outer)
        spoke = sorted({v.check for v in violations})
        caught = [check for check in spoke if check in mutant.checks]
        found.append((name, mutant.bug, ", ".join(caught) or "NOT CAUGHT", str(seeds)))
    return found


def main() -> int:
    """Print the table as Markdown; exit status 1 when a mutant got away."""
    table = rows()
    lines = ["| mutant | bug | caught by | seeds |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in table]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(any(row[2] == "NOT CAUGHT" for row in table))


if __name__ == "__main__":
    sys.exit(main())
