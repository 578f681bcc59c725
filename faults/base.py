"""What a fault is, and the controls it wants. Imports nothing of the other packages.

A fault either *acts* once on a unit (kill, terminate) or *holds* a resource of a unit at a
setting for as long as it lasts (frozen, a slow link). Holds of several faults on one resource
are combined by :mod:`faults.holds`; the first fault to end does not heal the others.
"""

from __future__ import annotations

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
    "engine_network",
    "memory",
]
"""What a runtime may offer. ``tune`` is the control file that a unit reads at every step."""

Resource = Literal["frozen", "cpu_share", "tuning", "link", "network"]


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

    def apply(self, unit: str, resource: Resource, setting: Any) -> str:
        """Bring a resource to a setting: frozen bool, cpu_share float or None, tuning
        :class:`Tuning`, link :class:`LinkState`, network bool (attached). Safe to call twice;
        works on the unit's place even when no process lives there. Returns a note."""
        ...


@dataclass(frozen=True)
class Plan:
    """A fault's parameters after validation; what the runner needs to carry it out."""

    action: Literal["kill", "terminate", ""] = ""
    grace_ns: int = 0
    holds: Mapping[Resource, Any] = field(default_factory=dict)
    """Resource to the setting this fault alone would put on it."""
    pulses: tuple[tuple[int, int], ...] = ()
    """For intermittent faults: (offset_ns, on_ns) pairs within the duration; empty for steady."""


class Fault(Protocol):
    """One kind of fault."""

    kind: str
    summary: str
    """One line for ``diloco-chaos list``."""
    needs: frozenset[Capability]
    lasting: bool
    """Whether ``for_s`` applies (a hold) or not (a single act)."""

    def params(self) -> Mapping[str, tuple[type, Any, str]]:
        """Parameter name to (type, default or ..., help with unit)."""
        ...

    def plan(self, params: Mapping[str, Any]) -> tuple[Plan, list[str]]:
        """(plan, problems): every mistake in ``params``, each naming the parameter."""
        ...
