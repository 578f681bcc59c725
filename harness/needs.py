"""What a machine may lack, each with a probe that says what is missing and how to get it.

Used by ``diloco-chaos doctor``, by the pytest plugin and by the runtimes' error messages. A probe
returns an empty string when all is well; it never raises and is bounded in time.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient

ENGINE_TIMEOUT_S = 5
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TOXIPROXY_NAMES = ("toxiproxy-server", "toxiproxy")


def docker_socket() -> str:
    """Path of the engine's socket, or the value of DOCKER_HOST when that is no unix socket."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    return host.removeprefix("unix://")


def engine() -> str:
    """Whether a Docker engine answers and has the images of the docker runtime."""
    path = docker_socket()
    if path.startswith("/") and not Path(path).exists():
        return f"no Docker socket at {path}; install Docker and start its engine"
    import docker
    import docker.errors
    import requests

    try:
        client = docker.from_env(timeout=ENGINE_TIMEOUT_S)
        try:
            client.ping()
            return _images(client)
        finally:
            client.close()
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        return f"the Docker engine at {path} does not answer within {ENGINE_TIMEOUT_S} s: {error}"


def _images(client: DockerClient) -> str:
    import docker.errors

    from harness.runtimes.docker_options import PROXY_IMAGE, UNIT_IMAGE

    for name in (UNIT_IMAGE, PROXY_IMAGE):
        try:
            client.images.get(name)
        except docker.errors.ImageNotFound:
            return f"the engine has no image {name}; run docker/prepare.sh"
    # An image of other sources is no obstacle: the runtime mounts its own over them.
    return ""


def toxiproxy() -> str:
    """Whether the real Toxiproxy server is installed (the embedded proxy needs nothing)."""
    from harness.errors import LaunchError
    from harness.runtimes.proxy_server import INSTALL, locate

    try:
        found = locate()
    except LaunchError as error:
        return str(error)
    if found is not None:
        return ""
    return (
        "no Toxiproxy server; put toxiproxy-server on PATH, name it in DILOCO_CHAOS_TOXIPROXY, "
        f"run docker/prepare.sh, or: {INSTALL}"
    )


def chromium() -> str | None:
    """Path of a Chromium-like browser, or None."""
    named = os.environ.get("DILOCO_CHAOS_CHROMIUM")
    found = [named] if named else [shutil.which(n) for n in CHROMIUM_NAMES]
    return next((f for f in found if f and Path(f).exists()), None)


def browser() -> str:
    """Whether a headless browser can render the report in tests."""
    if chromium() is not None:
        return ""
    return "no Chromium; install chromium, or name one in DILOCO_CHAOS_CHROMIUM"


def loopback() -> str:
    """Whether local units can talk to each other."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=1).close()
    except OSError as error:
        return f"loopback TCP does not work ({error}); the process runtime needs it"
    return ""


def memory() -> str:
    """Whether a control group with a memory limit can be made, which the fault ``oom`` needs."""
    from harness.runtimes.memory import find_memory

    if find_memory() is not None:
        return ""
    return (
        "no control group with a memory limit can be made here; run as root, or where the memory "
        "controller is delegated to this user (cgroup v2: in cgroup.subtree_control)"
    )


NEEDS: dict[str, Callable[[], str]] = {
    "docker": engine,
    "toxiproxy": toxiproxy,
    "browser": browser,
    "loopback": loopback,
    "memory": memory,
}
"""Name to probe."""
