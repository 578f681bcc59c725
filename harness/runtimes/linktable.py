"""Which proxy links a unit's link fault touches, and what condition each link is in then.

A unit's fault touches the links that the unit dials (its ``up`` is the link's ``up``) and the
links that others dial to it (turned round). A link between two units that are both disturbed is
in the combination of both conditions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from faults.base import LinkState
from faults.holds import combine
from targets.base import UnitSpec


@dataclass(frozen=True)
class Link:
    """One proxy link: ``unit`` dials, ``peer`` listens."""

    unit: str
    peer: str
    on_demand: bool = False
    """Whether it is open only now and then (``UnitSpec.on_demand``)."""

    @property
    def name(self) -> str:
        """The link's name on the proxy server."""
        return f"{self.unit}-to-{self.peer}"


class LinkTable:
    """The links of a target's units, and what is asked of each by which unit's faults."""

    def __init__(self, units: Iterable[UnitSpec]) -> None:
        self.links = tuple(
            Link(u.name, peer, peer in u.on_demand) for u in units for peer in u.links
        )
        self._asked: dict[str, LinkState] = {}

    def of(self, unit: str) -> tuple[Link, ...]:
        """Every link with ``unit`` at one of its ends."""
        return tuple(link for link in self.links if unit in (link.unit, link.peer))

    def ask(self, unit: str, state: LinkState) -> dict[str, LinkState]:
        """Remember what is asked of the unit's links; returns link name to new condition, links
        that are always open first."""
        self._asked[unit] = state
        links = sorted(self.of(unit), key=lambda link: link.on_demand)
        return {link.name: self.state(link) for link in links}

    def disturbed(self, unit: str) -> bool:
        """Whether the unit's own faults ask for anything but health."""
        return not self._asked.get(unit, LinkState()).healthy

    def state(self, link: Link) -> LinkState:
        """The condition in which the link should be now."""
        asked = []
        if link.unit in self._asked:
            asked.append(self._asked[link.unit])
        if link.peer in self._asked:
            asked.append(_turned(self._asked[link.peer]))
        state: LinkState = combine("link", asked)
        return state


def _turned(state: LinkState) -> LinkState:
    return replace(state, silent_up=state.silent_down, silent_down=state.silent_up)
