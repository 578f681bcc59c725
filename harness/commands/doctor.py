"""``diloco-chaos doctor``: what this machine lacks, what works without it, how to get it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import metadata

from harness.needs import NEEDS

USED_FOR = {
    "docker": "the docker runtime and --attach",
    "toxiproxy": "links of the process runtime (else the embedded proxy carries them)",
    "browser": "tests that look at the report",
    "loopback": "the process runtime",
    "memory": "the fault oom in the process runtime",
}
REQUIRED = ("loopback",)
"""Without these nothing live works, so doctor exits 4."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Print the findings. Exits 0 unless something that every live run needs is missing."""
    found = {name: probe() for name, probe in NEEDS.items()}
    facts = {
        "version": metadata.version("diloco-chaos"),
        "python": sys.version.split()[0],
        "cpus": os.cpu_count(),
        "root": os.geteuid() == 0,
    }
    if options.json:
        sys.stdout.write(json.dumps({"facts": facts, "missing": found}, indent=2) + "\n")
    else:
        lines = [f"{k}: {v}" for k, v in facts.items()]
        lines += [_line(name, problem) for name, problem in found.items()]
        sys.stdout.write("\n".join(lines) + "\n")
    return 4 if any(found[name] for name in REQUIRED) else 0


def _line(name: str, problem: str) -> str:
    mark = "missing" if problem else "ok"
    return f"{name}: {mark} (for {USED_FOR[name]})" + (f"\n    {problem}" if problem else "")
