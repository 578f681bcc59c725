"""``diloco-chaos list``: what there is, by name."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from typing import Any

import faults
import targets
from harness import catalogue, suite
from harness.mixes import MIXES, Row
from harness.runtimes import RUNTIMES
from harness.spec_faults import trace_text, traces
from harness.tracefile import parse
from reports.gate import GATES


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=[
            "experiments",
            "suites",
            "faults",
            "mixes",
            "traces",
            "runtimes",
            "targets",
            "gates",
        ],
        help="only this family",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Print the tables."""
    tables = {k: v for k, v in everything().items() if options.what in (None, k)}
    if options.json:
        sys.stdout.write(json.dumps(tables, indent=2) + "\n")
        return 0
    lines: list[str] = []
    for family, rows in tables.items():
        width = max(len(name) for name in rows)
        lines += [f"{family}:", *(f"  {n:<{width}}  {t}" for n, t in rows.items()), ""]
    sys.stdout.write("\n".join(lines))
    return 0


def everything() -> dict[str, dict[str, str]]:
    """Family to name to one line of help."""
    return {
        "experiments": {n: tomllib.loads(catalogue.text(n))["title"] for n in catalogue.names()},
        "suites": {n: tomllib.loads(suite.text(n))["title"] for n in suite.names()},
        "faults": {kind: _fault(kind) for kind in faults.FAULTS},
        "mixes": {name: _mix(rows) for name, rows in MIXES.items()},
        "traces": {name: _trace(name) for name in traces()},
        "runtimes": {
            "process": "units are local processes behind loopback proxies",
            "docker": "units are containers of one network behind Toxiproxy",
            "simulated": "the same protocol code under virtual time",
        }
        if set(RUNTIMES) == {"process", "docker", "simulated"}
        else dict.fromkeys(RUNTIMES, ""),
        "targets": dict.fromkeys(targets.TARGETS, ""),
        "gates": {name: _gate(gate) for name, gate in GATES.items()},
    }


def _fault(kind: str) -> str:
    fault = faults.load(kind)
    own = ", ".join(f"{n} ({p.help})" for n, p in fault.params.items())
    return fault.summary + (f" Takes: {own}." if own else "")


def _mix(rows: Sequence[Row]) -> str:
    counts = ", ".join(f"{r['component']} {r['count']}" for r in rows)
    return f"{sum(r['count'] for r in rows)} events of {len(rows)} components: {counts}"


def _trace(name: str) -> str:
    trace, _ = parse(trace_text(name), name)
    about = trace.about.get("about", "")
    return f"{len(trace.outages)} outages in {trace.length_s:g} s. {about}"


def _gate(gate: Any) -> str:
    return str(getattr(gate, "help", gate))
