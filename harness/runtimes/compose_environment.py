"""What the environment of a unit in docker-compose.yml says about it.

Read by the unit itself when it starts (docker/compose_unit.py) and by the attached runtime, from
outside, to learn what a standing cluster consists of. Imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Described:
    """One unit of a standing cluster."""

    unit: str
    target: str = "diloco"
    seed: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)


def describe(environment: Mapping[str, str]) -> Described:
    """Read the ``CHAOS_*`` variables; raises ``ValueError`` naming the one that is wrong."""
    unit = environment.get("CHAOS_UNIT", "")
    if not unit:
        raise ValueError("CHAOS_UNIT is not set: a unit needs its name")
    try:
        seed = int(environment.get("CHAOS_SEED", "0"))
    except ValueError:
        raise ValueError(f"CHAOS_SEED is {environment['CHAOS_SEED']!r}, not an integer") from None
    params = {k: _value(v) for k, v in _pairs(environment, "CHAOS_PARAMS").items()}
    target = environment.get("CHAOS_TARGET", "diloco")
    return Described(unit, target, seed, params, _pairs(environment, "CHAOS_PEERS"))


def _pairs(environment: Mapping[str, str], variable: str) -> dict[str, str]:
    found = {}
    for word in environment.get(variable, "").split():
        name, mark, value = word.partition("=")
        if not (name and mark and value):
            raise ValueError(f"{variable} has the word {word!r}; words look like name=value")
        found[name] = value
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
