"""The links of a Toxiproxy server that lives in a container.

What differs from a server on this host: a link listens on the container's own address, so the
probe after healing has to go there; a standing cluster's links were made by somebody else, so
they are read from the server instead of created; and the server can die and come back, without
its toxics and perhaps on another port.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness.errors import ControlError
from harness.runtimes.toxiproxy import CALL_S, Links, _Link

CONTROL_PORT = 8474
"""The control API's port inside the container; published on loopback."""
FIRST_LINK_PORT = 21_000
"""Links listen from here on: below the range from which kernels draw ports by themselves."""


class ContainerLinks(Links):
    """``reach`` is the container's address as seen from here, or empty when it cannot be reached.

    Without it a healed link is not probed; the units' own reconnection shows whether it works.
    """

    def __init__(self, host: str, port: int, reach: str = "", call_s: float = CALL_S) -> None:
        super().__init__(host, port, call_s, probe=bool(reach))
        self._reach = reach

    def adopt(self) -> tuple[str, ...]:
        """Take over every link that the server has; returns the names of those with a toxic
        or disabled, which somebody left behind."""
        found = self._call("read the links", lambda: self._get("/proxies").json())
        left = []
        for name, proxy in found.items():
            toxics = {
                t["name"]: (t["type"], t["stream"], dict(t["attributes"])) for t in proxy["toxics"]
            }
            self._known[name] = _Link(
                proxy["listen"], proxy["upstream"], toxics, bool(proxy["enabled"])
            )
            if toxics or not proxy["enabled"]:
                left.append(name)
        return tuple(sorted(left))

    def known(self) -> tuple[str, ...]:
        """Names of the links that were created or adopted here."""
        return tuple(self._known)

    def wait(self, seconds: float, alive: Callable[[], bool]) -> str:
        """The server's version, once it answers; raises :class:`ControlError` at the deadline
        or as soon as ``alive`` says that there is nothing left to wait for."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.version()
            except ControlError:
                if time.monotonic() >= deadline or not alive():
                    raise
            time.sleep(0.02)

    def _probe(self, name: str, listen: str) -> None:
        super()._probe(name, f"{self._reach}:{listen.rpartition(':')[2]}")


def published(attrs: dict[str, Any]) -> tuple[str, int]:
    """(host, port) under which a container's control port is published on this host.

    Raises :class:`ControlError` when it is not (yet).
    """
    ports = (attrs["NetworkSettings"]["Ports"] or {}).get(f"{CONTROL_PORT}/tcp")
    if not ports:
        raise ControlError(
            f"container {attrs['Name'].lstrip('/')} does not publish Toxiproxy's control port "
            f"{CONTROL_PORT} on this host"
        )
    host = ports[0]["HostIp"]
    return ("127.0.0.1" if host in ("0.0.0.0", "::", "") else host), int(ports[0]["HostPort"])
