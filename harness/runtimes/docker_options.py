"""Options of the docker runtime: the ``[runtime_options]`` table of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import SpecError
from harness.runtimes.options import Options, filled

UNIT_IMAGE = "diloco-chaos-unit:latest"
PROXY_IMAGE = "diloco-chaos-toxiproxy:latest"

OPTIONS: Options = {
    "image": (str, UNIT_IMAGE, "image of the units; docker/prepare.sh makes the default one"),
    "proxy_image": (str, PROXY_IMAGE, "image of the Toxiproxy server"),
    "engine": (str, "", "address of the engine; empty for DOCKER_HOST or the local socket"),
    "sources": (str, "auto", "auto mounts ours where the image has others; image never does"),
    "unit_cpus": (float, 0.0, "CPUs of a unit from its first step on; 0 for no limit"),
    "stop_s": (float, 3.0, "how long units may take to end in good order"),
    "call_s": (float, 10.0, "how long the engine may take to answer one call"),
    "expires_s": (float, 21_600.0, "after how long others may remove what is left of the run"),
    "keep_work": (bool, False, "keep the units' configuration and state after the run"),
}
"""Option to (type, default, help)."""


@dataclass(frozen=True)
class DockerOptions:
    """Checked values of :data:`OPTIONS`."""

    image: str
    proxy_image: str
    engine: str
    sources: str
    unit_cpus: float
    stop_s: float
    call_s: float
    expires_s: float
    keep_work: bool


def docker_options(given: Mapping[str, Any]) -> DockerOptions:
    """Fill in defaults; raises :class:`SpecError` naming every wrong option."""
    values, problems = filled(OPTIONS, given)
    if not problems:
        problems += _bounds(DockerOptions(**values))
    if problems:
        raise SpecError("docker runtime", problems)
    return DockerOptions(**values)


def _bounds(options: DockerOptions) -> list[str]:
    problems = []
    if options.sources not in ("auto", "image"):
        problems.append(f'runtime_options.sources is "{options.sources}"; it is auto or image')
    if not (options.unit_cpus == 0 or 0.01 <= options.unit_cpus <= 1024):
        problems.append(f"runtime_options.unit_cpus is {options.unit_cpus}; it is 0 or >= 0.01")
    for name, low, high in (("stop_s", 0, 600), ("call_s", 0.1, 600), ("expires_s", 60, 1e7)):
        value = getattr(options, name)
        if not low <= value <= high:
            problems.append(f"runtime_options.{name} is {value}; it lies within {low} and {high}")
    return problems
