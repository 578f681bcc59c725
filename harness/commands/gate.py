"""``diloco-chaos gate DIR``: judge a finished run, for a CI step of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reports.build import build
from reports.schema import to_json
from reports.text import terminal


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dir", type=Path, help="a run directory")
    parser.add_argument("--json", action="store_true", help="print report.json, nothing else")


def execute(options: argparse.Namespace) -> int:
    """Exit status of the run's verdict, computed from the journal; writes nothing."""
    report = build(options.dir)
    if options.json:
        sys.stdout.write(to_json(report).decode())
    else:
        sys.stdout.write(terminal(report) + "\n")
    return report.verdict.exit_status
