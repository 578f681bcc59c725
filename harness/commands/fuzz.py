"""``diloco-chaos fuzz``: drawn experiments in virtual time, until a promise is broken."""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.status import Status

from harness.errors import Interrupted, SpecError
from harness.fuzz.campaign import Failure, minimal, search
from harness.fuzz.ending import stoppable
from harness.fuzz.scratch import scratch
from harness.fuzz.write import write_experiment
from reports.violations import judge


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--seeds", type=int, help="how many seeds to try (default 200)")
    bound.add_argument("--minutes", type=float, help="how long to go on instead")
    parser.add_argument("--first", type=int, help="first seed (default: a fresh one)")
    parser.add_argument("--processes", type=int, help="default: one per core")
    parser.add_argument("--shrink-s", type=float, default=120.0, help="time for shrinking")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where a failure is written")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Search. Exits 0 when every seed kept every promise, 1 at a broken one, which is shrunk and
    written as an experiment file that fails the same way. Raises ``Interrupted`` when it was asked
    to stop, after it told what it had found so far."""
    problems = [
        f"--{name} must be positive, got {value:g}"
        for name in ("seeds", "minutes", "processes")
        if (value := getattr(options, name)) is not None and not value > 0
    ]
    if options.minutes is not None and not math.isfinite(options.minutes):
        problems.append(f"--minutes must be finite, got {options.minutes:g}")
    if not 0 <= options.shrink_s < math.inf:
        problems.append(f"--shrink-s must be finite and not negative, got {options.shrink_s:g}")
    if options.out.exists() and not options.out.is_dir():  # a failure would be lost in the end
        problems.append(f"--out: {options.out} is no folder")
    if problems:
        raise SpecError("fuzz", problems)
    first = secrets.randbelow(10**9) if options.first is None else options.first
    seeds = options.seeds or (None if options.minutes else 200)
    say = Console(stderr=options.json, highlight=False)
    say.print(f"seeds from {first}; repeat with: {_again(options, first)}", soft_wrap=True)
    so_far = Found()
    try:
        with stoppable(), scratch(), say.status("fuzzing") as status:
            _search(options, first, seeds, so_far, status)
    except Interrupted as stopped:
        _said(options, so_far, stopped)
        raise
    return _said(options, so_far)


@dataclass
class Found:
    """What is known of a search so far."""

    seeds: int = 0
    seconds: float = 0.0
    failure: Failure | None = None
    shrunk: bool = False


def _search(
    options: argparse.Namespace, first: int, seeds: int | None, found: Found, status: Status
) -> None:
    for progress in search(
        judge,
        first=first,
        seeds=seeds,
        seconds=options.minutes * 60 if options.minutes else None,
        processes=options.processes,
    ):
        found.seeds, found.seconds = progress.seeds, progress.seconds
        found.failure = progress.failure
        status.update(f"fuzzing: {found.seeds} seeds in {found.seconds:.0f} s")
    if found.failure is not None:
        status.update(f"seed {found.failure.seed} breaks {found.failure.check}; shrinking")
        found.failure = minimal(found.failure, judge, seconds=options.shrink_s)
        found.shrunk = True


def _again(options: argparse.Namespace, first: int) -> str:
    """The command that tries the same seeds; time alone does not say how many those are."""
    command = f"diloco-chaos fuzz --first {first}"
    for name in ("seeds", "minutes"):
        if (value := getattr(options, name)) is not None:
            command += f" --{name} {value:g}" if name == "minutes" else f" --{name} {value}"
    return command


def _said(options: argparse.Namespace, found: Found, stopped: Interrupted | None = None) -> int:
    failure, so_far = found.failure, " so far" if stopped else ""
    told: dict[str, object] = {
        "seeds": found.seeds,
        "seconds": round(found.seconds, 1),
        "failure": None,
        "interrupted": None if stopped is None else stopped.signal_number,
    }
    lines = [f"{found.seeds} seeds in {found.seconds:.0f} s: every promise was kept{so_far}"]
    if failure is not None:
        path = options.out / f"fuzz-{failure.check}-{failure.seed}.toml"
        broken = f"{failure.check}: {failure.why}"
        again = write_experiment(path, failure.table, failure.seed, remarks=[broken])
        faults = len(failure.table.get("fault", []))
        size = f"{faults} fault{'s' if faults != 1 else ''}"
        lines = [
            f"seed {failure.seed} breaks {failure.check}: {failure.why}",
            f"shrunk to {size}: {path}" if found.shrunk else f"not shrunk, {size}: {path}",
            f"repeat with: {again}",
        ]
        told["failure"] = {
            "seed": failure.seed,
            "check": failure.check,
            "why": failure.why,
            "experiment": str(path),
            "repeat": again,
        }
    sys.stdout.write((json.dumps(told) if options.json else "\n".join(lines)) + "\n")
    return 0 if failure is None else 1
