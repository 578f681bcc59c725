"""Ways of training by name: one parameter that sets those which make it that way.

What a preset fixes cannot be set to anything else; what is only usual for it can.

* ``decoupled``: the paper's own; learners never wait.
* ``streaming``: fragments one after the other as in Streaming DiLoCo, every learner in each merge,
  and everybody waits for the merge that is due.
* ``diloco``: the whole model every ``sync_every`` steps, everybody waits.
* ``lockstep``: the whole model at every step, averaged: the waiting and the traffic of
  data-parallel training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from targets.diloco.params import DilocoParams


@dataclass(frozen=True)
class Preset:
    """Values by parameter name."""

    fixed: Mapping[str, Any]
    usual: Mapping[str, Any]
    everybody: bool = False
    """Whether ``quorum`` is fixed to ``learners``."""


_AVERAGED = {"grace": False, "merge": "avg"}

PRESETS: dict[str, Preset] = {
    "decoupled": Preset({"blocking": False}, {}),
    "streaming": Preset({"blocking": True}, _AVERAGED, everybody=True),
    "diloco": Preset({"blocking": True, "fragments": 1}, _AVERAGED, everybody=True),
    "lockstep": Preset(
        {"blocking": True, "fragments": 1, "sync_every": 1},
        # An outer step of length 1 without momentum takes the average itself.
        {**_AVERAGED, "outer_lr": 1.0, "outer_momentum": 0.0},
        everybody=True,
    ),
}
"""The one table; names as in ``DilocoParams.preset``."""


def expand(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(``given`` with its preset's values beside it, every given value that contradicts it)."""
    name = given.get("preset")
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        return dict(given), []
    fixed = dict(preset.fixed)
    if preset.everybody:
        fixed["quorum"] = given.get("learners", DilocoParams.learners)
    problems = [
        f'{key}: preset "{name}" means {_toml(value)}, not {_toml(given[key])}; '
        "leave it out, or leave out the preset"
        for key, value in fixed.items()
        if key in given and given[key] != value
    ]
    return {**preset.usual, **given, **fixed}, problems


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
