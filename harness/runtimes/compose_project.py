"""A compose project on an engine: which of its containers are units, and what they say they are.

Units carry their description in their environment (:mod:`harness.runtimes.compose_environment`),
Toxiproxy a label; both are in docker-compose.yml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import SpecError
from harness.runtimes.compose_environment import Described, describe
from harness.runtimes.docker_engine import ROLE_LABEL, Engine, environment

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"


@dataclass(frozen=True)
class Project:
    """What a standing cluster says about itself."""

    name: str
    target: str
    seed: int
    params: Mapping[str, Any]
    units: Mapping[str, Described]
    containers: Mapping[str, dict[str, Any]]
    """Unit name to what the engine knows of its container."""
    proxy: dict[str, Any]
    """What the engine knows of the Toxiproxy container."""


def discover(engine: Engine, project: str) -> Project:
    """Find the units of a compose project; raises :class:`SpecError` naming all that is wrong."""
    containers = engine.containers({PROJECT_LABEL: project})
    if not containers:
        raise SpecError(
            f"--attach {project}",
            [
                f"there is no compose project {project} on the engine at {engine.address}; "
                f"start it (docker compose -p {project} up -d) or name another"
            ],
        )
    units: dict[str, Described] = {}
    attrs: dict[str, dict[str, Any]] = {}
    proxies = []
    problems: list[str] = []
    for container in containers:
        known = container.attrs
        if (known["Config"]["Labels"] or {}).get(ROLE_LABEL) == "proxy":
            proxies.append(known)
        elif "CHAOS_UNIT" in environment(known):
            _describe(known, units, attrs, problems)
    problems += _disagreements(project, units)
    if len(proxies) != 1:
        problems.append(f"{len(proxies)} containers carry {ROLE_LABEL}=proxy; one is needed")
    if problems:
        raise SpecError(f"--attach {project}", problems)
    first = next(iter(units.values()))
    return Project(project, first.target, first.seed, first.params, units, attrs, proxies[0])


def _describe(
    known: dict[str, Any],
    units: dict[str, Described],
    attrs: dict[str, dict[str, Any]],
    problems: list[str],
) -> None:
    service = known["Config"]["Labels"].get(SERVICE_LABEL, known["Name"])
    try:
        described = describe(environment(known))
    except ValueError as error:
        problems.append(f"service {service}: {error}")
        return
    if described.unit in units:
        problems.append(f"two containers say that they are {described.unit}")
    units[described.unit] = described
    attrs[described.unit] = known


def _disagreements(project: str, units: Mapping[str, Described]) -> list[str]:
    if not units:
        return [f"no container of project {project} sets CHAOS_UNIT; see docker-compose.yml"]
    said = {(u.target, u.seed, repr(sorted(u.params.items()))) for u in units.values()}
    if len(said) > 1:
        return ["the units do not agree on CHAOS_TARGET, CHAOS_SEED and CHAOS_PARAMS"]
    return []
