"""``diloco-chaos gate DIR``: judge a finished run, for a CI step of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from reports.text import summary
from reports.write import read_report


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dir", type=Path, help="a run directory")
    parser.add_argument("--json", action="store_true", help="print report.json, nothing else")


def execute(options: argparse.Namespace) -> int:
    """Exit status of the run's verdict, computed from the journal; writes nothing."""
    report = read_report(options.dir)
    if options.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        sys.stdout.write(summary(report) + "\n")
    return report.exit_status
