"""What a target is: sans-IO nodes, the workers that do their arithmetic, and how to start them.

A *node* is all of a unit's protocol and none of its I/O: an input and ``now_ns`` go in, a list
of effects comes out. Nodes name no socket, clock, thread, random generator or JAX. Two drivers
run the same nodes: gRPC with the wall clock (``targets.diloco.serve``) and a seeded event heap
with virtual time (``harness.sim``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from faults.base import Trait
from harness.events import AnyEvent, Event, UnitInfo

# Inputs, effects and messages are made by the million. Structs are a third as dear as dataclasses,
# and as values they are never part of a cycle, so the garbage collector need not look (gc=False).

# --- inputs -------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True, gc=False):
    """The unit came to life. ``incarnation`` rises by one with every life.

    ``saved`` is what the previous life made durable (its last ``Save`` per key), empty at first.
    ``damaged`` names the keys whose last value was damaged on the disk, with the reason; in
    ``saved`` they have the value before, the last good one.
    """

    incarnation: int
    saved: Mapping[str, Any] = msgspec.field(default_factory=dict)
    damaged: Mapping[str, str] = msgspec.field(default_factory=dict)


class Connected(msgspec.Struct, frozen=True, gc=False):
    """A link to ``peer`` works from now on; a link of an earlier session is gone."""

    peer: str


class Disconnected(msgspec.Struct, frozen=True, gc=False):
    """The link to ``peer`` is broken, as seen from here."""

    peer: str
    why: str


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message from ``sender`` (frames are checked before they get here)."""

    sender: str
    message: Any


class WorkDone(msgspec.Struct, frozen=True, gc=False):
    """The worker finished ``job``."""

    job: Any
    result: Any


class WorkFailed(msgspec.Struct, frozen=True, gc=False):
    """The worker could not do ``job``; ``why`` names the cause."""

    job: Any
    why: str


class Tick(msgspec.Struct, frozen=True, gc=False):
    """The node's own deadline passed."""


class StopAsked(msgspec.Struct, frozen=True, gc=False):
    """The unit was asked to end in good order (SIGTERM) and has ``grace_ns`` to do so."""

    grace_ns: int


Input = Started | Connected | Disconnected | Received | WorkDone | WorkFailed | Tick | StopAsked

# --- effects ------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    """Hand ``message`` to the link to ``peer``. Dropped without error when there is no link."""

    peer: str
    message: Any


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Give the link to ``peer`` up (it is silent, or no longer needed). The driver connects anew
    with backoff, unless the link is one of ``UnitSpec.on_demand``."""

    peer: str
    why: str


class Dial(msgspec.Struct, frozen=True, gc=False):
    """Try once to open the link to ``peer``, one of ``UnitSpec.on_demand``.

    ``Connected`` or ``Disconnected`` follows; after a :class:`Disconnect` neither does.
    """

    peer: str


class Work(msgspec.Struct, frozen=True, gc=False):
    """Do ``job``. Jobs of one lane run one after the other, in order; lanes run side by side."""

    job: Any
    lane: str = "main"


class Save(msgspec.Struct, frozen=True, gc=False):
    """Make ``value`` durable under ``key`` before any later effect of the same list is done."""

    key: str
    value: Any


class Note(msgspec.Struct, frozen=True, gc=False):
    """Put an event into the journal."""

    event: Event


class Stop(msgspec.Struct, frozen=True, gc=False):
    """The unit is done and ends by itself."""

    why: str
    code: int = 0


Effect = Send | Disconnect | Dial | Work | Save | Note | Stop

CALLER = "caller:"


def caller(unit: str) -> str:
    """How a unit that is dialled on demand names the link, and the peer, at the other end.

    Two units may have dialled each other, so the dialled one needs a name of its own.
    """
    return CALLER + unit


class Node(Protocol):
    """One unit's protocol.

    Found by name: ``arriving(peer, now_ns)`` of a node is told that a part of a message of ``peer``
    has come and the rest is under way, which is a sign of life. It asks for no effects and makes
    no deadline earlier.
    """

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to ``event`` at ``now_ns``. Effects are carried out in order."""
        ...

    def deadline_ns(self) -> int | None:
        """The instant at which the node next wants a :class:`Tick`; None for never."""
        ...


class Worker(Protocol):
    """The arithmetic a node asks for."""

    def run(self, job: Any) -> Any:
        """Carry out ``job`` and return its result."""
        ...

    def cost_ns(self, job: Any) -> int:
        """Virtual duration of ``job``; only the simulator asks."""
        ...


class UnitSpec(msgspec.Struct, frozen=True):
    """A unit that a target consists of.

    ``links`` names the peers to which this unit opens a connection; each becomes a proxy link
    of its own. ``config`` goes to the unit as JSON. Those in ``on_demand`` are opened when the
    node asks (:class:`Dial`), all others at the start and whenever they break.
    """

    info: UnitInfo
    links: tuple[str, ...] = ()
    on_demand: frozenset[str] = frozenset()
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    traits: frozenset[Trait] | None = None
    """What the unit has that faults may break (``faults.traits``); None: not told, so any fault
    is believed to apply."""

    @property
    def name(self) -> str:
        """The unit's name."""
        return self.info.name


class SteadyDetector(Protocol):
    """Watches the journal for the target's steady state."""

    def observe(self, event: AnyEvent) -> None:
        """Take one event into account."""
        ...

    def verdict(self) -> tuple[bool, str]:
        """(reached, sentence that says why or what is still missing)."""
        ...


class Target(Protocol):
    """A system under test."""

    name: str
    params: Mapping[str, Any]
    """Resolved parameters, defaults filled in, JSON values only."""

    def units(self) -> Sequence[UnitSpec]:
        """Every unit, syncer first."""
        ...

    def fragments(self) -> tuple[int, ...]:
        """Elements in each parameter fragment; empty when the target has none."""
        ...

    def node(self, unit: str) -> Node:
        """A fresh node for the unit (simulated runtime)."""
        ...

    def worker(self, unit: str) -> Worker:
        """The worker behind the unit's node (simulated runtime)."""
        ...

    def module(self) -> str:
        """The module that a real unit runs: ``python -m MODULE CONFIG.json``."""
        ...

    def steady(self, absent: Collection[str] = ()) -> SteadyDetector:
        """A fresh detector of the target's steady state, in which ``absent`` units have no part."""
        ...


TargetFactory = Callable[[Mapping[str, Any], int], Target]
"""(params, seed) to a target; raises ``harness.errors.SpecError`` naming every bad parameter."""
