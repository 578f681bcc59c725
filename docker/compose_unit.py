"""Entry point of the units in docker-compose.yml: environment to unit config, then the unit.

CHAOS_UNIT        the unit's name, one of the target's
CHAOS_TARGET      target name (default diloco)
CHAOS_PARAMS      the target's parameters as words ``name=value``, values as JSON or plain text
CHAOS_SEED        integer (default 0)
CHAOS_RUN         name of the cluster; frames of another one are refused
CHAOS_TOKEN       bearer token of the wire
CHAOS_PEERS       words ``peer=host:port``: where this unit dials, its own proxy links

Unlike the docker runtime, which writes the config itself, a compose file has no harness beside
it. ``diloco-chaos run ... --attach PROJECT`` reads the same variables to learn what is running.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import targets
from harness.runtimes.compose_environment import Described, describe
from targets.unit_config import UnitConfig, write_unit_config

UNIT_PORT = 7000
HOME = Path("/unit")


def config_of(described: Described, environment: dict[str, str]) -> tuple[str, UnitConfig]:
    """(module to run, the unit's config); raises ``SpecError`` for impossible parameters."""
    target = targets.load(described.target)(described.params, described.seed)
    units = target.units()
    unit = next((u for u in units if u.name == described.unit), None)
    if unit is None:
        names = ", ".join(u.name for u in units)
        sys.exit(f"CHAOS_UNIT is {described.unit}, which is no unit of the target ({names})")
    missing = sorted(set(unit.links) - described.peers.keys())
    if missing:
        sys.exit(f"CHAOS_PEERS of {unit.name} lacks {', '.join(missing)}")
    home = HOME / unit.name
    return target.module(), UnitConfig(
        run=environment.get("CHAOS_RUN", "standing"),
        token=environment.get("CHAOS_TOKEN", ""),
        unit=unit.name,
        role=unit.info.role,
        target=target.name,
        seed=described.seed,
        params=dict(target.params),
        config=dict(unit.config),
        listen=f"0.0.0.0:{UNIT_PORT}" if any(unit.name in u.links for u in units) else "",
        peers=dict(described.peers),
        state_dir=str(home / "state"),
        control_file=str(home / "tuning.json"),
        cache_dir="/cache",
    )


def main() -> None:
    """Write the config and become the unit."""
    environment = dict(os.environ)
    module, config = config_of(describe(environment), environment)
    Path(config.state_dir).mkdir(parents=True, exist_ok=True)
    # Not on the volume: it holds the token and is made anew by every life.
    path = Path("/tmp/config.json")
    write_unit_config(path, config)
    os.execv(sys.executable, [sys.executable, "-m", module, str(path)])


if __name__ == "__main__":
    main()
