"""The JSON file with which a runtime starts a real unit: ``python -m MODULE CONFIG.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class UnitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a unit's process is told. Paths are as the unit sees them (its container's)."""

    run: str
    """Run id; frames of another run are refused."""
    token: str
    """Per-run bearer token of the wire."""
    unit: str
    role: str
    target: str
    seed: int
    params: dict[str, Any]
    """The target's resolved parameters."""
    config: dict[str, Any] = {}
    """The unit's own ``UnitSpec.config``."""
    listen: str = ""
    """``host:port`` on which the unit serves; empty for a unit that only dials."""
    peers: dict[str, str] = {}
    """Peer name to the ``host:port`` to dial; already the proxy's end of the link."""
    state_dir: str
    """Survives the unit's death: incarnation counter and durable state."""
    control_file: str
    """Where the runtime puts the unit's ``faults.base.Tuning`` as JSON; absent means default."""
    checkpoint_dir: str = ""
    """Where the unit's parts of checkpoints go, to outlive the run; empty: below ``state_dir``."""
    cache_dir: str
    """JAX persistent compilation cache, shared by all units of a run and by later runs."""


def write_unit_config(path: Path, config: UnitConfig) -> None:
    """Write ``config`` to ``path``, readable by the owner only (it holds the token)."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")


def read_unit_config(path: Path) -> UnitConfig:
    """Read what :func:`write_unit_config` wrote; raises ``msgspec.ValidationError``."""
    return msgspec.json.decode(path.read_bytes(), type=UnitConfig)
