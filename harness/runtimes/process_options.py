"""Options of the process runtime, and the environment in which its units run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
from harness.errors import SpecError
from harness.leftovers import RUN_VARIABLE
from harness.runtimes.options import Options, filled

OPTIONS: Options = {
    "proxy": (str, "auto", "auto, embedded or toxiproxy"),
    "stop_s": (float, 3.0, "how long units may take to end in good order"),
    "reschedule_s": (
        float,
        0.0,
        "how long a unit that was killed waits for a host to run on again, as under a scheduler",
    ),
    "keep_work": (bool, False, "keep the units' configuration and state after the run"),
}
"""Option to (type, default, help); the ``[runtime_options]`` table of a spec."""

UNIT_ENVIRONMENT = {
    # Several units share a small host: each is one core's worth of machine, no more.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
}


def unit_environment(run: str) -> dict[str, str]:
    """Ours, with what makes a unit small, repeatable, importable and recognizable."""
    root = str(Path(harness.__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, **UNIT_ENVIRONMENT, RUN_VARIABLE: run, "PYTHONPATH": path}


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults filled in. Raises :class:`SpecError` naming every mistake."""
    values, problems = filled(OPTIONS, given)
    if not problems and values["proxy"] not in ("auto", "embedded", "toxiproxy"):
        problems.append(f'runtime_options.proxy is "{values["proxy"]}"; {OPTIONS["proxy"][2]}')
    for name in ("stop_s", "reschedule_s"):
        if not problems and not 0 <= values[name] <= 600:
            problems.append(f"runtime_options.{name} is {values[name]}; it lies within 0 and 600")
    if problems:
        raise SpecError("process runtime", problems)
    return values
