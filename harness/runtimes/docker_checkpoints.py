"""Checkpoints of units in containers: folders of the run directory, mounted into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from targets.base import UnitSpec

INSIDE = "/checkpoints"
"""Where a unit finds the folder for its own parts."""

EARLIER = "/earlier"
"""Where it finds those of the run that it goes on from; they are not written to."""


def mounted(unit: UnitSpec, directory: Path, *, wanted: bool) -> tuple[dict[str, Any], list[str]]:
    """The unit's config as it holds inside its container, and the bind mounts that this needs.

    ``directory`` is the run's; ``wanted`` says whether the run makes checkpoints. The unit's folder
    is made here, because the engine would make it as root. Raises ``OSError``.
    """
    config, binds = dict(unit.config), []
    if wanted:
        own = directory.resolve() / "checkpoints" / unit.name
        own.mkdir(parents=True, exist_ok=True)
        binds.append(f"{own}:{INSIDE}")
    earlier = config.get("resume", {}).get("directory")
    if earlier is not None:
        config["resume"] = {**config["resume"], "directory": EARLIER}
        binds.append(f"{earlier}:{EARLIER}:ro")
    return config, binds
