"""Out of memory in a container: its limit falls to what it uses, and the kernel's killer comes.

The engine sets the limit and lifts it again. Two things stand in the way of simply doing so. An
engine can lower a limit and raise it, but not take it off: every container begins with one that
means nothing (the host's whole memory), and that is what it gets back. And a limit below what is
used is refused under cgroup v1: so it is set a little above, and a *ballast* beside the unit,
inside the container, takes the rest. The ballast asks the killer to prefer the unit, and never
takes more than the limit, so that it ends by itself should the killer not come.

Nothing of this outlives the container, which is removed by its label whatever happens to us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.errors import ChaosError, ControlError
from harness.runtimes.docker_engine import Engine
from harness.runtimes.docker_places import Place

SLACK_BYTES = 16 << 20
"""How far above its use a container's limit is set: more than an interpreter needs to start."""

TRIES = 4
"""How often a limit is tried that the unit outgrew while it was being set."""

KILLED_S = 20.0
"""How long the kernel may take: it gives up the container's page cache first."""

_BALLAST = """
import os, sys
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        try:
            with open(f"/proc/{name}/oom_score_adj", "w") as file:
                file.write("1000")
        except OSError as error:
            sys.exit(f"process {name}: {error}")
held = []
for _ in range(int(sys.argv[1]) >> 20):
    held.append(b"x" * (1 << 20))
"""


def allowance(engine: Engine) -> int:
    """The limit that means nothing, bytes: all memory there is; 0 where engines cannot limit it.

    Raises :class:`ControlError`.
    """
    with engine.asked("ask whether it can limit memory"):
        said = engine.api.info()
    return int(said["MemTotal"]) if said.get("MemoryLimit") else 0


def can_limit(url: str | None, timeout_s: float) -> bool:
    """Whether the engine can limit a container's memory. An engine that does not answer is said to,
    as whoever opens the runtime is told what is wrong with it."""
    try:
        engine = Engine(url, timeout_s)
    except ChaosError:
        return True
    try:
        return allowance(engine) > 0
    except ControlError:
        return True
    finally:
        engine.close()


def limits(limit_bytes: int) -> dict[str, int]:
    """The engine's two words for a limit that swap does not widen; none for 0."""
    return {"mem_limit": limit_bytes, "memswap_limit": limit_bytes} if limit_bytes else {}


@dataclass(frozen=True)
class Ballast:
    """What was started beside a unit: the engine's name for it, and the limit, bytes."""

    name: str
    limit_bytes: int


def press(engine: Engine, place: Place) -> Ballast:
    """Lower the limit and start the ballast.

    Raises :class:`ControlError` when the engine will not.
    """
    limit_bytes = _lower(engine, place)
    with engine.asked(f"start the ballast beside {place.unit}"):
        command = ["python", "-S", "-c", _BALLAST, str(limit_bytes)]
        made = engine.api.exec_create(place.container, command)
        engine.api.exec_start(made["Id"], detach=True)
    return Ballast(str(made["Id"]), limit_bytes)


def _lower(engine: Engine, place: Place) -> int:
    for attempt in range(1, TRIES + 1):
        limit_bytes = used(engine, place) + SLACK_BYTES * attempt
        try:
            lift(engine, place, limit_bytes)
        except ControlError:
            if attempt == TRIES:
                raise
        else:
            break
    return limit_bytes


def used(engine: Engine, place: Place) -> int:
    """Memory that the container takes now, page cache included, bytes."""
    with engine.asked(f"ask how much memory {place.unit} takes"):
        said: dict[str, Any] = engine.api.stats(place.container, stream=False, one_shot=True)
    return int(said["memory_stats"].get("usage", 0))


def lift(engine: Engine, place: Place, limit_bytes: int) -> None:
    """Set the container's limit, bytes."""
    with engine.asked(f"limit the memory of {place.unit}"):
        engine.api.update_container(place.container, **limits(limit_bytes))


def last_words(engine: Engine, ballast: str) -> str:
    """What became of a ballast that brought no end; for an error's text."""
    with engine.asked("ask what became of the ballast"):
        said = engine.api.exec_inspect(ballast)
    return "it still runs" if said["Running"] else f"it ended with status {said['ExitCode']}"
