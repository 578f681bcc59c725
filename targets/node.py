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

    def note(self, kind: Callable[..., Any], **fields: Any) -> None:
        """Put an event of this unit, at this instant, into the journal."""
        self.out.append(
            Note(kind(t_ns=self.now, unit=self.name, incarnation=self.incarnation, **fields))
        )
