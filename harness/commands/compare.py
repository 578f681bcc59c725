"""``diloco-chaos compare A B``: two runs side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.errors import SpecError
from reports.compare import as_html, as_json, as_text, compare, load


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", type=Path, help="a run directory, journal or report.json")
    parser.add_argument("b", type=Path, help="another one")
    parser.add_argument("--html", type=Path, help="also write a page here")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def execute(options: argparse.Namespace) -> int:
    """Print the comparison. Exits 3 when the two runs are not comparable."""
    comparison = compare(load(options.a), load(options.b))
    sys.stdout.write(as_json(comparison).decode() if options.json else as_text(comparison))
    if options.html:
        try:
            options.html.write_bytes(as_html(comparison))
        except OSError as error:
            why = f"cannot write to {options.html}: {error.strerror or error}"
            raise SpecError("--html", [why]) from error
    return 0 if comparison.comparable else 3
