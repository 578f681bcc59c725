"""``diloco-chaos report DIR``: compute a run's reports anew; the same journal, the same bytes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.commands import seeds, together
from harness.commands.together import known_run
from reports.schema import to_json
from reports.text import terminal
from reports.write import write_reports


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dir", type=Path, help="the directory of a run or suite")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def execute(options: argparse.Namespace) -> int:
    """Write the reports. Exits 0 whatever they say; ``gate`` judges."""
    known_run(options.dir)
    suite = together.kept(options.dir)
    if suite is not None and suite.seeds:
        for seed in suite.seeds:
            for folder in suite.folders():
                write_reports(options.dir / f"seed-{seed}" / folder)
        seeds.judge(suite, options.dir, as_json=options.json, keep=True)
        return 0
    if suite is not None:
        for folder in suite.folders():
            write_reports(options.dir / folder)
        found = together.write(suite, options.dir)
        if options.json:
            sys.stdout.write(together.as_json(suite, found).decode())
        else:
            sys.stdout.write(together.terminal(suite, found, options.dir))
        return 0
    report = write_reports(options.dir)
    if options.json:
        sys.stdout.write(to_json(report).decode())
    else:
        sys.stdout.write(terminal(report, str(options.dir / "report.html")) + "\n")
    return 0
