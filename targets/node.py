"""What a protocol node and its parts share while they handle an input.

A node's ``handle`` is one instant: all that it and its parts ask for is collected here, in order.
A part that is given the :class:`Desk` needs nothing else of its node to speak or to be on time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from targets.base import Effect, Note


class Desk:
    """The instant, the effects asked for in it, and in whose name."""

    __slots__ = ("incarnation", "name", "now", "out")

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        """Set when the node is started."""
        self.now = 0
        """Of the input that is handled, in ns."""
        self.out: list[Effect] = []
        """What was asked for since, in the order in which it is to be done."""

    def begin(self, now_ns: int) -> list[Effect]:
        """An input is handled from here on; returns the list that its effects go into."""
        self.now = now_ns
        out: list[Effect] = []
        self.out = out
        return out

    def note(self, kind: Callable[..., Any], *, t_ns: int | None = None, **fields: Any) -> None:
        """Put an event of this unit into the journal, of this instant unless ``t_ns`` is given."""
        at_ns = self.now if t_ns is None else t_ns
        event = kind(t_ns=at_ns, unit=self.name, incarnation=self.incarnation, **fields)
        self.out.append(Note(event))
