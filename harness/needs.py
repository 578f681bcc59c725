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

ENGINE_TIMEOUT_S = 5
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TOXIPROXY_NAMES = ("toxiproxy-server", "toxiproxy")


def docker_socket() -> str:
    """Path of the engine's socket, or the value of DOCKER_HOST when that is no unix socket."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    return host.removeprefix("unix://")


def docker() -> str:
    """Whether a Docker engine answers and has the unit image."""
    path = docker_socket()
    if path.startswith("/") and not Path(path).exists():
        return f"no Docker socket at {path}; install Docker and start its engine"
    import docker as sdk
    import requests

    try:
        client = sdk.from_env(timeout=ENGINE_TIMEOUT_S)
        try:
            client.ping()
            return _image(client)
        finally:
            client.close()
    except (sdk.errors.DockerException, requests.RequestException, OSError) as error:
        return f"the Docker engine at {path} does not answer within {ENGINE_TIMEOUT_S} s: {error}"


def _image(client: object) -> str:
    from harness.runtimes.docker_image import unit_image_problem

    return unit_image_problem(client)


def toxiproxy() -> str:
    """Whether the real Toxiproxy server is installed (the embedded proxy needs nothing)."""
    from harness.runtimes.toxiproxy import find_server

    if find_server() is not None:
        return ""
    return (
        "no Toxiproxy server; put toxiproxy-server on PATH, name it in DILOCO_CHAOS_TOXIPROXY, or "
        "run docker/prepare.sh --toxiproxy-only"
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


NEEDS: dict[str, Callable[[], str]] = {
    "docker": docker,
    "toxiproxy": toxiproxy,
    "browser": browser,
    "loopback": loopback,
}
"""Name to probe."""
