"""``diloco-chaos simulate``: goodput and uptime on failing chips, at the paper's scale."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

from rich.progress import Progress

from harness.errors import SpecError
from harness.scale import paper
from harness.scale.chips import Cluster, simulate

WITHIN_POINTS = 3.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: one for each parameter of the cluster."""
    parser.add_argument("--paper", action="store_true", help="table 1 beside the paper's")
    parser.add_argument("--fit", action="store_true", help="with --paper: repeat the calibration")
    parser.add_argument(
        "--sweep",
        choices=("mixed-speeds", "quorum", "scavenging"),
        help="the real protocol in virtual time: table 5, all quorums, table 4",
    )
    parser.add_argument(
        "--tape",
        type=Path,
        metavar="OUT.toml",
        help="write an experiment in which real training follows these chips' failures",
    )
    parser.add_argument(
        "--tape-minutes", type=float, default=30.0, help="with --tape: how much of it (default 30)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    for field in fields(Cluster):
        flag = f"--{field.name.replace('_', '-')}"
        if field.name == "elastic":
            parser.add_argument(
                "--no-elasticity", dest="elastic", action="store_false", help="M = 1 only"
            )
            continue
        kind = float if field.type == "float" else int
        default = {"chips": 1_200_000, "learners": 8}.get(field.name, field.default)
        parser.add_argument(flag, type=kind, default=default, help=f"default {default}")


def execute(options: argparse.Namespace) -> int:
    """Simulate one cluster, a sweep, or the whole table. Exits 1 when a paper cell misses its bar
    or a sweep does not show the paper's pattern."""
    if options.tape is not None and (options.sweep or options.paper):
        raise SpecError("simulate", ["--tape is of one cluster: leave --sweep and --paper out"])
    if options.sweep and options.paper:
        raise SpecError("simulate", ["--sweep and --paper are two tables: give one of them"])
    if options.fit and not options.paper:
        raise SpecError("simulate", ["--fit repeats the calibration of --paper: give that, too"])
    if options.sweep:
        from harness.commands import sweeps

        return sweeps.execute(options.sweep, options.seed, as_json=options.json)
    return _paper(options) if options.paper else _one(options)


def _one(options: argparse.Namespace) -> int:
    cluster = Cluster(**{f.name: getattr(options, f.name) for f in fields(Cluster)})
    problems = cluster.problems()
    if not cluster.elastic and cluster.learners > 1:
        problems.append("--no-elasticity is the data-parallel baseline: it takes --learners 1")
    if problems:
        raise SpecError("simulate", problems)
    if options.tape is not None:
        from harness.commands import tapes

        return tapes.execute(
            cluster, options.seed, options.tape, options.tape_minutes, as_json=options.json
        )
    outcome = simulate(cluster, options.seed)
    if options.json:
        sys.stdout.write(json.dumps({"cluster": asdict(cluster), **asdict(outcome)}) + "\n")
        return 0
    sys.stdout.write(
        f"{cluster.chips:,} chips, {cluster.learners} learners, {cluster.days:g} days, "
        f"{outcome.failures:,} chip failures (seed {options.seed}; simulated)\n"
        f"goodput {outcome.goodput:.1%}   uptime {outcome.uptime:.1%}\n"
        f"a merge hears {outcome.participants_mean:.2f} of {cluster.learners} learners on "
        f"average; a quorum of {cluster.quorum} is there {outcome.quorum_share:.1%} of the time\n"
    )
    return 0


def _paper(options: argparse.Namespace) -> int:
    with Progress(transient=True, disable=options.json) as progress:
        bar = progress.add_task("table 1", total=30)
        cells = paper.table(options.seed, lambda: progress.advance(bar))
    fit = None
    if options.fit:
        searched = len(paper.GRID_STEP_S) * len(paper.GRID_STALL_S) + len(paper.GRID_RESTART_S)
        with Progress(transient=True, disable=options.json) as progress:
            bar = progress.add_task("calibration", total=searched)
            fit = paper.fit(options.seed, lambda: progress.advance(bar))
    missed = [c for c in cells if abs(c.error) > WITHIN_POINTS]
    if options.json:
        rows = [{**asdict(c), "error": c.error, "calibrated": c.calibrated} for c in cells]
        sys.stdout.write(json.dumps({"cells": rows, "fit": asdict(fit) if fit else None}) + "\n")
    else:
        sys.stdout.write("\n".join([*_lines(cells), *_fit_lines(fit), ""]))
    return 1 if missed else 0


def _lines(cells: list[paper.Cell]) -> list[str]:
    lines = [
        "Table 1, MTBI of a chip 1 year: ours (paper's), percent. Simulated, as in the paper.",
        "",
        f"{'goodput':<18}" + "".join(f"{n:>16,}" for n in paper.CHIPS),
    ]
    for what in ("goodput", "uptime"):
        if what == "uptime":
            lines += ["", f"{'system uptime':<18}" + "".join(f"{n:>16,}" for n in paper.CHIPS)]
        for learners, elastic in paper.GOODPUT:
            row = [c for c in cells if (c.learners, c.elastic) == (learners, elastic)]
            name = f"M={learners}" + ("" if elastic else ", no elasticity")
            texts = [f"{getattr(c, what):.1f} ({getattr(c, f'paper_{what}')})" for c in row]
            mark = " *" if row[0].calibrated else ""
            lines.append(f"{name + mark:<18}" + "".join(f"{t:>16}" for t in texts))
    predicted = [c for c in cells if not c.calibrated]
    within = sum(abs(c.error) <= WITHIN_POINTS for c in cells)
    used = Cluster(chips=1, learners=1)
    return [
        *lines,
        "",
        "* times fitted on these two rows alone; the others are predicted, but not blindly:",
        "  the share of slices that are out (3 %) was chosen with all 30 cells in view.",
        f"goodput: {within}/{len(cells)} cells within {WITHIN_POINTS:g} points; largest error "
        f"{max(abs(c.error) for c in cells):.1f} (predicted cells: "
        f"{max(abs(c.error) for c in predicted):.1f})",
        f"uptime: largest error {max(abs(c.uptime_error) for c in cells):.1f} points",
        f"fitted: step {used.step_s:g} s, downscale and upscale {used.down_s:g} s each, restart "
        f"without elasticity {used.restart_s:g} s",
        f"assumed: slices of {used.slice_chips} chips, mean return {used.return_mean_s:g} s "
        f"(exponentiated Weibull, k={used.return_shape:g}, alpha={used.return_power:g})",
    ]


def _fit_lines(fit: paper.Fit | None) -> list[str]:
    if fit is None:
        return []
    return [
        "",
        f"calibration repeated: step {fit.step_s:g} s, stalls {fit.stall_s:g} s in all, restart "
        f"{fit.restart_s:g} s",
        "residuals on M=1, elastic: " + " ".join(f"{r:+.1f}" for r in fit.residuals_elastic),
        "residuals on M=1, not:     " + " ".join(f"{r:+.1f}" for r in fit.residuals_restart),
    ]
