"""``diloco-chaos report DIR``: compute a run's reports anew; the same journal, the same bytes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reports.schema import to_json
from reports.text import terminal
from reports.write import write_reports


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dir", type=Path, help="a run directory")
    parser.add_argument("--json", action="store_true", help="print report.json, nothing else")


def execute(options: argparse.Namespace) -> int:
    """Write the reports. Exits 0 whatever they say; ``gate`` judges."""
    report = write_reports(options.dir)
    if options.json:
        sys.stdout.write(to_json(report).decode())
    else:
        sys.stdout.write(terminal(report, str(options.dir / "report.html")) + "\n")
    return 0
