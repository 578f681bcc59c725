"""The run's own network: internal, with fixed addresses on a range that nobody else uses.

The engine only takes fixed addresses on a range that was asked for, and only it knows which
ranges are free. So it is let choose once, and the network is made again with its choice; two
runs that do so at the same moment collide, and the second tries anew.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from docker.types import IPAMConfig, IPAMPool

from harness.errors import ControlError, LaunchError
from harness.runtimes.docker_engine import Engine

_TRIES = 8
_PROXY_OFFSET = 5
_UNIT_OFFSET = 10


@dataclass(frozen=True)
class Network:
    """A network and the addresses in it."""

    id: str
    name: str
    subnet: ipaddress.IPv4Network

    @property
    def proxy_address(self) -> str:
        """Toxiproxy's address."""
        return str(self.subnet.network_address + _PROXY_OFFSET)

    def unit_address(self, number: int) -> str:
        """The address of the unit with that number."""
        return str(self.subnet.network_address + _UNIT_OFFSET + number)


def create_network(engine: Engine, name: str, labels: Mapping[str, str], units: int) -> Network:
    """An internal bridge network with room for ``units``; raises :class:`LaunchError`."""
    problem = ""
    for _ in range(_TRIES):
        subnet = _free_range(engine, name, labels)
        if subnet.num_addresses < units + _UNIT_OFFSET + 2:
            raise LaunchError(f"the engine's address range {subnet} is too small for {units} units")
        try:
            made = _create(engine, name, labels, subnet)
        except ControlError as error:
            # Another run took the range in between; the engine says so in words only.
            problem = str(error)
            continue
        return Network(made, name, subnet)
    raise LaunchError(f"no network in {_TRIES} tries: {problem}")


def _free_range(engine: Engine, name: str, labels: Mapping[str, str]) -> ipaddress.IPv4Network:
    made = _create(engine, name, labels, None)
    with engine.asked(f"look at network {name}"):
        pools = engine.api.inspect_network(made)["IPAM"]["Config"]
        engine.api.remove_network(made)
    return ipaddress.IPv4Network(pools[0]["Subnet"])


def _create(
    engine: Engine, name: str, labels: Mapping[str, str], subnet: ipaddress.IPv4Network | None
) -> str:
    ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet))]) if subnet else None
    with engine.asked(f"create network {name}" + (f" on {subnet}" if subnet else "")):
        made = engine.api.create_network(
            name, driver="bridge", internal=True, ipam=ipam, labels=dict(labels)
        )
    return str(made["Id"])
