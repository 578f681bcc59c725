"""Overlapping faults on one unit: holds are counted, and the first to end heals only itself.

For every (unit, resource) there is a stack of holds, one for each fault that is on. The setting
that the runtime gets is their combination; when the last hold goes, it is the neutral setting, or
what stands throughout the run (the links of an experiment whose regions are far apart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from faults.base import Control, LinkState, Resource, Tuning

NEUTRAL: Mapping[Resource, Any] = {
    "frozen": False,
    "cpu_share": None,
    "tuning": Tuning(),
    "link": LinkState(),
    "network": True,
    "absent": None,
}
"""Resource to the setting of a unit that nothing is wrong with."""

# Taking a hold changes a resource step by step; healing goes the other way round, and a frozen
# unit is thawed first, so that everything after it acts on a unit that can react. Who was absent
# comes back last, into a place that is healed.
HEAL_ORDER: tuple[Resource, ...] = ("frozen", "network", "link", "cpu_share", "tuning", "absent")


def combine(resource: Resource, settings: Sequence[Any]) -> Any:
    """The one setting that stands for all of ``settings`` together; neutral when empty."""
    if not settings:
        return NEUTRAL[resource]
    return _COMBINE[resource](settings)


def _tunings(settings: Sequence[Tuning]) -> Tuning:
    factor = 1.0
    for s in settings:
        factor *= s.step_factor
    updates = [s.update for s in settings if s.update]
    return Tuning(
        step_factor=factor,
        hang=any(s.hang for s in settings),
        update=updates[-1] if updates else "",
        disk_full=any(s.disk_full for s in settings),
    )


def _links(settings: Sequence[LinkState]) -> LinkState:
    rates = [s.bandwidth_kb_s for s in settings if s.bandwidth_kb_s is not None]
    cuts = [s.cut_bytes for s in settings if s.cut_bytes is not None]
    return LinkState(
        silent_up=any(s.silent_up for s in settings),
        silent_down=any(s.silent_down for s in settings),
        refused=any(s.refused for s in settings),
        stalled=any(s.stalled for s in settings),
        reset=any(s.reset for s in settings),
        latency_ms=sum(s.latency_ms for s in settings),
        bandwidth_kb_s=min(rates) if rates else None,
        cut_bytes=min(cuts) if cuts else None,
    )


_COMBINE: Mapping[Resource, Callable[[Sequence[Any]], Any]] = {
    "frozen": any,
    "cpu_share": min,
    "tuning": _tunings,
    "link": _links,
    "network": all,
    "absent": min,
}


class Holds:
    """The holds of one run. Every change is handed to the runtime at once."""

    def __init__(
        self, control: Control, standing: Mapping[tuple[str, Resource], Any] | None = None
    ) -> None:
        self._control = control
        self._standing = dict(standing or {})
        self._held: dict[tuple[str, Resource], dict[str, Any]] = {}

    def stand(self) -> list[str]:
        """Bring every resource that has one to its standing setting; the runtime's notes."""
        return [self._apply(unit, resource) for unit, resource in self._standing]

    def _apply(self, unit: str, resource: Resource) -> str:
        held = tuple(self._held.get((unit, resource), {}).values())
        if (unit, resource) in self._standing:
            held = (self._standing[unit, resource], *held)
        return self._control.apply(unit, resource, combine(resource, held))

    def take(self, fault: str, unit: str, resource: Resource, setting: Any) -> str:
        """Put ``setting`` on the resource for ``fault``. Returns the runtime's note."""
        held = self._held.setdefault((unit, resource), {})
        held[fault] = setting
        return self._apply(unit, resource)

    def drop(self, fault: str, unit: str, resource: Resource) -> tuple[str, tuple[str, ...]]:
        """Release the fault's hold; does nothing when it has none.

        Returns (the runtime's note, faults that still hold the resource).
        """
        held = self._held.get((unit, resource), {})
        if held.pop(fault, None) is None:
            return "", tuple(held)
        return self._apply(unit, resource), tuple(held)

    def owned(self, fault: str, unit: str) -> tuple[Resource, ...]:
        """Resources of ``unit`` that ``fault`` holds now, in healing order."""
        return tuple(r for r in HEAL_ORDER if fault in self._held.get((unit, r), {}))

    def active(self) -> tuple[tuple[str, Resource], ...]:
        """Every (unit, resource) that is held by some fault, in healing order."""
        held = [key for key, faults in self._held.items() if faults]
        return tuple(sorted(held, key=lambda key: (HEAL_ORDER.index(key[1]), key[0])))

    def heal_all(self) -> list[str]:
        """Nothing is held any more, whatever was; returns what could not be healed."""
        failed = []
        for unit, resource in self.active():
            held = self._held.pop((unit, resource))
            try:
                self._apply(unit, resource)
            except Exception as error:  # one bad link must not keep the others broken
                failed.append(f"{unit} {resource}: {error}")
                self._held[(unit, resource)] = held
        return failed
