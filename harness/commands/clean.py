"""``diloco-chaos clean``: remove what runs whose owner is gone left behind."""

from __future__ import annotations

import argparse
import json
import sys

from harness.leftovers import clean, expired
from harness.runtimes.places import state_dir


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--dry-run", action="store_true", help="only say whose leftovers there are")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Undo every run without an owner. Exits 4 when something could not be removed."""
    if options.dry_run:
        runs = list(expired(state_dir()))
        text = json.dumps({"expired": runs}) if options.json else "\n".join(runs) or "nothing"
        sys.stdout.write(text + "\n")
        return 0
    results = clean(state_dir())
    if options.json:
        rows = [{"run": r.run, "removed": r.removed, "problems": r.problems} for r in results]
        sys.stdout.write(json.dumps({"cleaned": rows}) + "\n")
    else:
        lines = [f"{r.run}: removed {len(r.removed)}" for r in results] or ["nothing to clean"]
        for result in results:
            lines += [f"  removed {item}" for item in result.removed]
            lines += [f"  could not remove: {item}" for item in result.problems]
        sys.stdout.write("\n".join(lines) + "\n")
    return 4 if any(r.problems for r in results) else 0
