"""What a fault is, and the controls it wants. Imports nothing of the other packages.

A fault either *acts* once on a unit (kill, terminate) or *holds* a resource of a unit at a
setting for as long as it lasts (frozen, a slow link). Holds of several faults on one resource
are combined by :mod:`faults.holds`; the first fault to end does not heal the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Capability = Literal[
    "kill",
    "terminate",
    "freeze",
    "cpu_quota",
    "tune",
    "link",
    "restart",
    "absence",
    "engine_network",
    "memory",
    "state",
    "proxy",
]
"""What a runtime may offer. ``tune`` is the control file that a unit reads at every step,
``memory`` a limit that the kernel enforces, ``state`` the reach of what a dead unit left."""

Damage = Literal["lose", "flip", "tear"]
"""What happens to durable state: all of it gone, bits of the newest flipped, the newest cut."""

Trait = Literal["steps", "updates", "durable", "link", "proxy"]
"""What a unit may have that faults break: training steps, pushed updates, durable state, links;
``proxy`` is what carries them all."""

Resource = Literal["frozen", "cpu_share", "tuning", "link", "network", "absent"]


@dataclass(frozen=True)
class LinkState:
    """The condition of one unit's link. The default is a healthy link.

    ``up`` is from the unit towards its peer, ``down`` the other way.
    """

    silent_up: bool = False
    """Nothing passes and nobody is told (Toxiproxy ``timeout`` 0)."""
    silent_down: bool = False
    refused: bool = False
    """Open connections end, new ones are refused (proxy disabled)."""
    stalled: bool = False
    """Lossless standstill (bandwidth 0); everything arrives once lifted."""
    reset: bool = False
    """Connections are reset (RST) as soon as a byte passes."""
    latency_ms: float = 0.0
    """Added in each direction."""
    bandwidth_kb_s: float | None = None
    """Kilobytes (1000 bytes) per second in each direction; None is unlimited."""
    cut_bytes: int | None = None
    """The connection is closed after this many bytes upstream."""

    @property
    def healthy(self) -> bool:
        """Whether nothing at all is wrong with the link."""
        return self == LinkState()


@dataclass(frozen=True)
class Tuning:
    """What the control file asks of a unit's emulated accelerator and update path."""

    step_factor: float = 1.0
    """Step time is multiplied by this."""
    hang: bool = False
    """Training stands still while heartbeats go on."""
    update: str = ""
    """nan, inf, bitflip, scale, stale, duplicate or truncate: what is done to pushed updates."""
    disk_full: bool = False
    """Durable writes fail with ENOSPC."""


class Control(Protocol):
    """What runtimes provide to faults. Every call has a deadline inside.

    Raises ``harness.errors.ControlError`` when the machinery fails and
    ``harness.errors.FaultSkipped`` when there is nothing to act on.
    """

    def kill(self, unit: str) -> str:
        """SIGKILL the unit's process from inside, so restart policies apply. Returns a note."""
        ...

    def terminate(self, unit: str, grace_ns: int) -> str:
        """SIGTERM, then SIGKILL after ``grace_ns`` if it still runs. Does not block."""
        ...

    def damage(self, unit: str, how: Damage) -> str:
        """Kill the unit (if it lives) and damage its durable state before it is started again.
        Returns a note that says what was damaged. Only where ``state`` is offered."""
        ...

    def oom(self, unit: str) -> str:
        """Have the kernel's OOM killer end the unit by a memory limit, and lift that again.
        Returns a note. Only where ``memory`` is offered."""
        ...

    def kill_proxy(self) -> str:
        """SIGKILL the proxy; returns once it is back with every link as it was. Only where
        ``proxy`` is offered."""
        ...

    def apply(self, unit: str, resource: Resource, setting: Any) -> str:
        """Bring a resource to a setting: frozen bool, cpu_share float or None, tuning
        :class:`Tuning`, link :class:`LinkState`, network bool (attached), absent int (ns between
        SIGTERM and SIGKILL; nothing lives there until it is None again). Safe to call twice;
        works on the unit's place even when no process lives there. Returns a note."""
        ...


@dataclass(frozen=True)
class Deed:
    """A fault's parameters after validation: what is to be done to each unit it hits."""

    action: Literal["kill", "terminate", "damage", "oom", "proxy", ""] = ""
    damage: Damage | None = None
    """For damage: which."""
    grace_ns: int = 0
    """For terminate: how long the unit has before it is killed."""
    repeats: tuple[int, ...] = (0,)
    """Offsets in ns at which ``action`` is done; more than one for a crash loop."""
    holds: Mapping[Resource, Any] = field(default_factory=dict)
    """Resource to the setting that this fault alone would put on it."""
    pulses: tuple[int, int] | None = None
    """(on_ns, off_ns) of a hold that comes and goes; None holds throughout."""
    from_start: bool = False
    """The hold is taken before steady state; only its end is on the plan's clock."""


@dataclass(frozen=True)
class Param:
    """One parameter of a fault, as a spec author sees it. ``default`` None means required."""

    type: type
    default: Any
    help: str
    lowest: float | None = None
    highest: float | None = None
    choices: tuple[str, ...] = ()


class Fault(Protocol):
    """One kind of fault. Members are stateless; the table in ``faults`` names them all."""

    kind: str
    summary: str
    """One line for ``diloco-chaos list``."""
    needs: frozenset[Capability]
    lasting: bool
    """Whether ``for_s`` applies (a hold) or not (an act that is over at once)."""
    params: Mapping[str, Param]

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """What to do, from parameters that :func:`read_params` has validated."""
        ...


def read_params(fault: Fault, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(values with defaults filled in, problems): every mistake, each naming its parameter."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name in given:
        if name not in fault.params:
            known = ", ".join(fault.params) or "none"
            problems.append(f"{name}: unknown parameter of {fault.kind} (it takes: {known})")
    for name, param in fault.params.items():
        if name not in given:
            if param.default is None:
                problems.append(f"{name}: missing; {fault.kind} needs it ({param.help})")
            values[name] = param.default
            continue
        value, problem = _checked(given[name], param)
        values[name] = value
        if problem:
            problems.append(f"{name}: {problem}")
    return values, problems


def _checked(value: Any, param: Param) -> tuple[Any, str]:
    if param.type is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            return value, f"is beyond what a number may be ({param.help})"
    if not isinstance(value, param.type) or (isinstance(value, bool) and param.type is not bool):
        return value, f"expected {param.type.__name__}, got {value!r} ({param.help})"
    if param.choices and value not in param.choices:
        return value, f"expected one of {', '.join(param.choices)}, got {value!r}"
    return value, _out_of_range(value, param)


def _out_of_range(value: Any, param: Param) -> str:
    if param.type is float and not math.isfinite(value):
        return f"{value!r} is not a finite number"
    if param.lowest is not None and value < param.lowest:
        return f"{value!r} is below the lowest that makes sense, {param.lowest:g}"
    if param.highest is not None and value > param.highest:
        return f"{value!r} is above the highest that makes sense, {param.highest:g}"
    return ""
