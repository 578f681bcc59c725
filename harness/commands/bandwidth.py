"""``diloco-chaos bandwidth``: what links a way of training needs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from typing import Any

from rich.progress import Progress

from harness.errors import SpecError
from harness.scale.bandwidth import (
    FITTED,
    METHODS,
    TARGETS,
    TRAINING,
    Cell,
    Link,
    display,
    paper_cells,
    required_gbit_s,
    utilization,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--paper", action="store_true", help="table 13 beside the paper's")
    parser.add_argument("--parameters", type=float, default=5e9, help="model size (default 5e9)")
    parser.add_argument("--step-s", type=float, default=1.0, help="compute time of a step")
    parser.add_argument("--datacenters", type=int, default=8)
    parser.add_argument("--sync-every", type=int, default=int(TRAINING["sync_every"]), help="H")
    parser.add_argument("--fragments", type=int, default=int(TRAINING["fragments"]), help="P")
    parser.add_argument("--tau", type=float, default=TRAINING["tau"], help="overlap in steps")
    parser.add_argument("--gbit-s", type=float, help="your links: print utilization at this")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Print the table. With ``--paper`` exits 1 when a cell differs from the paper's."""
    return _paper(options) if options.paper else _yours(options)


def _paper(options: argparse.Namespace) -> int:
    with Progress(transient=True, disable=options.json) as progress:
        bar = progress.add_task("table 13", total=60)
        cells = paper_cells(lambda: progress.advance(bar))
    if options.json:
        sys.stdout.write(json.dumps([{**asdict(c), "equal": c.equal} for c in cells]) + "\n")
    else:
        sys.stdout.write("\n".join(_paper_lines(cells)) + "\n")
    return 0 if all(c.equal for c in cells) else 1


def _paper_lines(cells: list[Cell]) -> list[str]:
    head = f"{'case':<5}{'row':<20}" + "".join(f"{t:>14.0%}" for t in TARGETS)
    lines = [
        "Table 13: Gbit/s for a compute utilization, 5B dense model: ours (paper's). Simulated.",
        "a: 1 s step, 2 data centers   b: 5 s, 2   c: 1 s, 8   d: 5 s, 8",
        "",
        head,
    ]
    for start in range(0, len(cells), len(TARGETS)):
        row = cells[start : start + len(TARGETS)]
        texts = [_beside(c) for c in row]
        lines.append(f"{row[0].case:<5}{row[0].row:<20}" + "".join(f"{t:>14}" for t in texts))
        if row[0].at_training_settings is not None:
            own = ["-" if (v := c.at_training_settings) is None else display(v) for c in row]
            lines.append(f"{'':<5}{'  at H=P=24, tau=2':<20}" + "".join(f"{t:>14}" for t in own))
    parallel = [c for c in cells if c.at_training_settings is None]
    decoupled = [c for c in cells if c.at_training_settings is not None]
    return [
        *lines,
        "",
        f"equal as printed: data-parallel {sum(c.equal for c in parallel)}/{len(parallel)}, "
        f"decoupled {sum(c.equal for c in decoupled)}/{len(decoupled)}",
        f"fitted to this very table, so no independent test: buckets {FITTED['buckets']:g}, "
        f"H={FITTED['sync_every']:g}, P={FITTED['fragments']:g}, tau={FITTED['tau']:g}",
        "The paper states none of these for this table. Its training settings (H=P=24, tau=2) "
        "need the bandwidths in the indented rows.",
    ]


def _beside(cell: Cell) -> str:
    return f"{'-' if cell.ours is None else display(cell.ours)} ({cell.paper})"


def _yours(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        for bits in (16, 4):
            if bits == 4 and method == "data-parallel":
                continue
            link = Link(
                method=method,
                parameters=options.parameters,
                step_s=options.step_s,
                datacenters=options.datacenters,
                bits=bits,
                sync_every=options.sync_every,
                fragments=options.fragments,
                tau=options.tau,
            )
            if problems := link.problems():
                raise SpecError("bandwidth", problems)
            if options.gbit_s is not None and not 0 < options.gbit_s < math.inf:
                raise SpecError(
                    "bandwidth", [f"--gbit-s must be positive and finite, got {options.gbit_s}"]
                )
            at = None if options.gbit_s is None else utilization(link, options.gbit_s)
            needed = [required_gbit_s(link, t) for t in TARGETS]
            rows.append({"method": method, "bits": bits, "gbit_s": needed, "utilization": at})
    if options.json:
        sys.stdout.write(json.dumps({"targets": TARGETS, "rows": rows}) + "\n")
        return 0
    at_head = "" if options.gbit_s is None else f"   at {options.gbit_s:g} Gbit/s"
    lines = [
        f"{options.parameters:.3g} parameters, {options.step_s:g} s step, {options.datacenters} "
        f"data centers, H={options.sync_every} P={options.fragments} tau={options.tau:g} "
        "(simulated): Gbit/s for a compute utilization of",
        f"{'':<22}" + "".join(f"{t:>9.0%}" for t in TARGETS) + at_head,
    ]
    for row in rows:
        cells = ["-" if g is None else display(g) for g in row["gbit_s"]]
        at_text = "" if row["utilization"] is None else f"   {row['utilization']:.1%}"
        name = f"{row['method']}, {'bf16' if row['bits'] == 16 else 'int4'}"
        lines.append(f"{name:<22}" + "".join(f"{c:>9}" for c in cells) + at_text)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
