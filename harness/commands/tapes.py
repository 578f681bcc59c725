"""``diloco-chaos simulate --tape OUT.toml``: failing chips, with real training on them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

from harness.errors import SpecError
from harness.fuzz.write import to_toml
from harness.scale.chips import Cluster, simulate
from harness.scale.tapes import TAIL_S, Excerpt, excerpt, experiment, trace


def execute(cluster: Cluster, seed: int, path: Path, minutes: float, *, as_json: bool) -> int:
    """Write the experiment and its trace; say what goodput it should have, and whose.

    Raises :class:`SpecError` for what cannot be simulated, trained or written, and for a file that
    is there already: it may be the only copy of a finished run's spec.
    """
    if path.suffix != ".toml":
        raise SpecError("simulate --tape", [f"{path} must end in .toml"])
    try:
        found = excerpt(cluster, seed, 60 * minutes)
    except ValueError as error:
        raise SpecError("simulate --tape", str(error).split("; ")) from error
    beside = path.with_suffix(".csv")
    try:
        taken = [str(place) for place in (path, beside) if os.path.lexists(place)]
        if taken:
            why = f"{' and '.join(taken)} would be overwritten; name another file"
            raise SpecError("simulate --tape", [why])
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(trace(found), encoding="utf-8")
        path.write_text(to_toml(experiment(found, beside.name), _remarks(found)), encoding="utf-8")
    except OSError as error:
        raise SpecError("simulate --tape", [f"cannot write {path}: {error}"]) from error
    long_run = simulate(cluster, seed).goodput
    repeat = shlex.join(["diloco-chaos", "run", str(path), "--replay"])
    if as_json:
        told = {
            "spec": str(path),
            "trace": str(beside),
            "stalls": sum(map(len, found.stalls)),
            "goodput_run_expected": found.expected,
            "mean_speed": found.speed,
            "goodput_chips_window": found.goodput_window,
            "goodput_chips_excerpt": found.goodput,
            "goodput_chips": long_run,
            "run": repeat,
        }
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    sys.stdout.write(
        f"{path} and {beside}: {minutes:g} minutes of {cluster.learners} learners on "
        f"{cluster.chips:,} chips, {sum(map(len, found.stalls))} stalls (seed {seed})\n"
        f"goodput of the chips: {long_run:.2%} over {cluster.days:g} days, {found.goodput:.2%} in "
        "these minutes\n" + "\n".join(_identity(found)) + "\n"
        f"train on it: {repeat}\n"
    )
    return 0


def _remarks(found: Excerpt) -> list[str]:
    cluster = found.cluster
    return [
        f"Synthetic tape: {cluster.learners} learners on {cluster.chips:,} simulated chips, seed "
        f"{found.seed}.",
        "A learner freezes while it reconfigures; slices that are out make its chip slower.",
        *_identity(found),
    ]


def _identity(found: Excerpt) -> list[str]:
    return [
        f"Over the run's window ({found.length_s / 60:g} minutes and a quiet tail of {TAIL_S:g} s, "
        "in which nothing stalls):",
        f"{found.expected:.2%} expected of the run, times {found.speed:.4f}, the mean share of "
        "slices that are in,",
        f"is the chips' {found.goodput_window:.2%}",
    ]
