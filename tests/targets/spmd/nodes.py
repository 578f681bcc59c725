"""Feeding one node by hand: what it asked for, by kind."""

from __future__ import annotations

from typing import Any, TypeVar

from harness.events import Event
from targets.base import Effect, Input, Note, Save, Send, Stop, Work

MS = 1_000_000
S = 1_000_000_000

E = TypeVar("E", bound=Event)


class Hand:
    """A node and everything that it asked for since the last :meth:`feed`."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.now_ns = 0
        self.effects: list[Effect] = []

    def feed(self, *inputs: Input, at_ns: int | None = None) -> Hand:
        """Hand over ``inputs``, all at one instant."""
        self.now_ns = self.now_ns if at_ns is None else at_ns
        self.effects = [e for i in inputs for e in self.node.handle(i, self.now_ns)]
        return self

    def sent(self, kind: type[Any]) -> list[tuple[str, Any]]:
        """(peer, message) of every message of that kind."""
        return [
            (e.peer, e.message)
            for e in self.effects
            if isinstance(e, Send) and isinstance(e.message, kind)
        ]

    def notes(self, kind: type[E]) -> list[E]:
        """Every event of that kind."""
        found = [e.event for e in self.effects if isinstance(e, Note)]
        return [event for event in found if isinstance(event, kind)]

    def jobs(self) -> list[Any]:
        """Every job, whatever its lane."""
        return [e.job for e in self.effects if isinstance(e, Work)]

    def saved(self) -> list[Save]:
        """Everything made durable."""
        return [e for e in self.effects if isinstance(e, Save)]

    def stop(self) -> Stop | None:
        """How it ended, if it did."""
        return next((e for e in self.effects if isinstance(e, Stop)), None)
