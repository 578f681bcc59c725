"""``diloco-chaos gate DIR``: judge a finished run, for a CI step of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.commands import seeds, together
from harness.commands.together import known_run
from reports.build import build
from reports.schema import to_json
from reports.text import terminal


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dir", type=Path, help="the directory of a run or suite")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def execute(options: argparse.Namespace) -> int:
    """Exit status of the run's verdict, computed from the journal; writes nothing."""
    known_run(options.dir)
    suite = together.kept(options.dir)
    if suite is not None and suite.seeds:
        return seeds.judge(suite, options.dir, as_json=options.json)
    if suite is not None:
        found = together.judge(suite, options.dir)
        if options.json:
            sys.stdout.write(together.as_json(suite, found).decode())
        else:
            sys.stdout.write(together.terminal(suite, found, options.dir))
        return found.status
    report = build(options.dir)
    if options.json:
        sys.stdout.write(to_json(report).decode())
    else:
        sys.stdout.write(terminal(report) + "\n")
    return report.verdict.exit_status
