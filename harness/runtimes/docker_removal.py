"""Ending and removing what a run has on an engine, always by label.

By label and not by handle: a container that was created by a call which timed out is found too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import docker.errors

from harness.errors import ControlError
from harness.events import ResidueFound
from harness.leftovers import RUN_LABEL
from harness.runtimes.docker_engine import EXPIRES_LABEL, Engine
from harness.runtimes.docker_places import Place


def stop_units(engine: Engine, places: Iterable[Place], grace_s: float) -> list[Exception]:
    """Thaw every unit and let it end in good order, all side by side; SIGKILL after the grace.

    An engine's stop also switches the restart policy off, so nothing comes back.
    """
    return engine.each(partial(_stop, engine, place.container, grace_s) for place in places)


def _stop(engine: Engine, container: str, grace_s: float) -> None:
    with engine.asked("stop a unit"), suppress(docker.errors.NotFound):
        # An older engine cannot end a paused container, not even by force.
        if engine.api.inspect_container(container)["State"]["Paused"]:
            engine.api.unpause(container)
        # The engine takes whole seconds; the client adds them to its own deadline.
        engine.api.stop(container, timeout=max(1, round(grace_s)))


def remove_run(engine: Engine, run: str) -> list[Exception]:
    """Remove every container, network and volume of ``run``; returns what could not be done."""
    try:
        containers = engine.containers({RUN_LABEL: run})
    except ControlError as error:
        return [error]
    failures = engine.each(partial(_remove, engine, str(box.id)) for box in containers)
    filters = {"label": f"{RUN_LABEL}={run}"}
    try:
        with engine.asked("list the run's networks and volumes"):
            networks = [str(n["Id"]) for n in engine.api.networks(filters=filters)]
            volumes = [str(v["Name"]) for v in engine.api.volumes(filters=filters)["Volumes"] or ()]
    except ControlError as error:
        return [*failures, error]
    failures += engine.each(partial(_remove_network, engine, name) for name in networks)
    failures += engine.each(partial(_remove_volume, engine, name) for name in volumes)
    return failures


def _remove(engine: Engine, container: str) -> None:
    with engine.asked(f"remove container {container[:12]}"), suppress(docker.errors.NotFound):
        if engine.api.inspect_container(container)["State"]["Paused"]:
            engine.api.unpause(container)
        engine.api.remove_container(container, force=True, v=True)


def _remove_network(engine: Engine, network: str) -> None:
    with engine.asked(f"remove network {network[:12]}"), suppress(docker.errors.NotFound):
        engine.api.remove_network(network)


def _remove_volume(engine: Engine, volume: str) -> None:
    with engine.asked(f"remove volume {volume}"), suppress(docker.errors.NotFound):
        engine.api.remove_volume(volume, force=True)


def residue_of(engine: Engine, run: str, t_ns: int) -> ResidueFound:
    """What still carries the run's label."""
    filters = {"label": f"{RUN_LABEL}={run}"}
    containers = [str(box.name) for box in engine.containers({RUN_LABEL: run})]
    with engine.asked("look for what is left of the run"):
        networks = [str(n["Name"]) for n in engine.api.networks(filters=filters)]
        volumes = [str(v["Name"]) for v in engine.api.volumes(filters=filters)["Volumes"] or ()]
    return ResidueFound(
        t_ns=t_ns,
        containers=tuple(sorted(containers)),
        networks=tuple(sorted(networks)),
        volumes=tuple(sorted(volumes)),
    )


def expired_runs(engine: Engine) -> list[str]:
    """Run ids whose containers or networks are past the time that their labels allow.

    Finds what the registry of runs does not know: another user's, or that of a machine whose
    home directory is gone. ``diloco-chaos clean`` removes them with :func:`remove_run`.
    """
    now = time.time()
    with engine.asked("look for expired runs"):
        things = [
            *engine.api.containers(all=True, filters={"label": RUN_LABEL}),
            *engine.api.networks(filters={"label": RUN_LABEL}),
        ]
    found = set()
    for thing in things:
        labels = thing.get("Labels") or {}
        expires = labels.get(EXPIRES_LABEL, "")
        if expires.isdecimal() and int(expires) < now:
            found.add(str(labels[RUN_LABEL]))
    return sorted(found)
