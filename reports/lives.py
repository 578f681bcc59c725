"""The values a history is made of: lives of units and windows of faults.

A *life* is one process of a unit, from its start to its exit. A *fault window* is one fault on
one unit, from plan to end. Both keep the journal line of every fact, so that a check can cite it.
All instants are integer nanoseconds since the run began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from harness.events import Adopted, Event, Joined, Resumed, Step, UnitExited, Waited

E = TypeVar("E", bound=Event, covariant=True)


class Seen(msgspec.Struct, Generic[E], frozen=True, gc=False):
    """An event and the journal line (from 1) that holds it."""

    line: int
    event: E


@dataclass(eq=False)
class Life:
    """One process of a unit. Fields are None for what the journal does not say."""

    unit: str
    begin_ns: int
    """First sign of this life: the spawn, or the first line it wrote."""
    incarnation: int | None = None
    spawned_ns: int | None = None
    by: str = ""
    """Who started it: harness, supervisor, policy, orchestrator; empty when not said."""
    pid: int = 0
    ready_ns: int | None = None
    import_ns: int = 0
    compile_ns: int = 0
    joined: Seen[Joined] | None = None
    resumed: Seen[Resumed] | None = None
    """Set when it goes on from an earlier run's checkpoint."""
    exit: Seen[UnitExited] | None = None
    asked_to_end: str = ""
    """Why the unit said it would end, in its own words; empty for a sudden end."""
    last_ns: int = 0
    """The latest instant at which the journal shows this life."""
    ended_ns: int | None = None
    """Exit, or the last sign of life when a later life replaced it without an exit event."""
    begin_line: int = 0
    steps: list[Seen[Step]] = field(default_factory=list)
    adopted: list[Seen[Adopted]] = field(default_factory=list)
    waited: list[Seen[Waited]] = field(default_factory=list)

    @cached_property
    def numbers(self) -> list[int]:
        """Local step numbers, in the order of ``steps`` (which is by step number)."""
        return [s.event.step for s in self.steps]

    @cached_property
    def _adoptions(self) -> dict[int, list[Seen[Adopted]]]:
        found: dict[int, list[Seen[Adopted]]] = {}
        for seen in self.adopted:
            found.setdefault(seen.event.fragment, []).append(seen)
        return found

    def adoptions(self, fragment: int) -> list[Seen[Adopted]]:
        """When this life overwrote ``fragment``, in order; not to be asked before all is read."""
        return self._adoptions.get(fragment, [])

    @property
    def first_step(self) -> Seen[Step] | None:
        """The first inner step of this life."""
        return self.steps[0] if self.steps else None

    def ended_by(self, t_ns: int) -> bool:
        """Whether this life was over before ``t_ns``."""
        return self.ended_ns is not None and self.ended_ns < t_ns


@dataclass(eq=False)
class FaultWindow:
    """One fault on one unit."""

    fault: str
    kind: str
    unit: str
    planned_ns: int | None = None
    for_ns: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    asked_ns: int | None = None
    resources: tuple[str, ...] = ()
    """Resources of the unit that the fault holds while it lasts; empty for a single act."""
    executed_ns: int | None = None
    """The action (the first one, when it is repeated) returned."""
    last_executed_ns: int | None = None
    ended_ns: int | None = None
    """The holds were released (after the last pulse)."""
    skipped: str = ""
    lines: list[int] = field(default_factory=list)

    @property
    def lasting(self) -> bool:
        """Whether the fault is lifted, rather than survived."""
        return bool(self.resources)

    @property
    def absence(self) -> bool:
        """Whether the unit was meant to be away, which is no failure to heal from."""
        return "absent" in self.resources

    def until_ns(self, window_end_ns: int) -> int:
        """When the fault stopped acting; the window's end while the journal shows no end."""
        if self.ended_ns is not None:
            return self.ended_ns
        if self.executed_ns is not None and self.lasting and self.for_ns is not None:
            return min(window_end_ns, self.executed_ns + self.for_ns)
        return window_end_ns
