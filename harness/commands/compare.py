"""``diloco-chaos compare A B``: two runs side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reports.build import build
from reports.compare import compare_html, compare_text


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", type=Path, help="a run directory")
    parser.add_argument("b", type=Path, help="another run directory")
    parser.add_argument("--html", type=Path, help="also write a page here")


def execute(options: argparse.Namespace) -> int:
    """Print the comparison. Exits 3 when the two runs are not comparable."""
    a, b = build(options.a), build(options.b)
    text, comparable = compare_text(a, b)
    sys.stdout.write(text + "\n")
    if options.html:
        options.html.write_text(compare_html(a, b), encoding="utf-8")
    return 0 if comparable else 3
