"""The event heap: what happens next, and when, in virtual nanoseconds.

Entries at one instant run in the order in which they were put in, so a run is a pure function of
its seed. Nothing is ever taken out of the heap: whoever schedules an entry that may become void
(a timer of a unit that died) checks that itself when the entry fires.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from harness.clock import VirtualClock
from harness.errors import HarnessError

Action = Callable[[int, Any], None]
"""``action(now_ns, argument)``."""

SAME_INSTANT_MAX = 100_000
"""Entries at one instant before we call it a loop that never advances."""


class Loop(VirtualClock):
    """A heap of ``(t_ns, order, action, argument)`` on a clock that only it moves."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, Action, Any]] = []
        self._order = 0

    def at(self, t_ns: int, action: Action, argument: Any = None) -> None:
        """Run ``action(t_ns, argument)`` at ``t_ns``; an instant that is past means now."""
        if t_ns < self._now_ns:
            t_ns = self._now_ns
        self._order = order = self._order + 1
        heappush(self._heap, (t_ns, order, action, argument))

    def after(self, delay_ns: int, action: Action, argument: Any = None) -> None:
        """Run ``action`` ``delay_ns`` from now."""
        self.at(self._now_ns + delay_ns, action, argument)

    def next_ns(self) -> int | None:
        """Instant of the next entry; None when nothing is left to happen."""
        return self._heap[0][0] if self._heap else None

    def run(self, until_ns: int, seen: list[Any]) -> None:
        """Run entries up to and at ``until_ns``, in order, until ``seen`` holds something.

        Time then stands at the last entry run, or at ``until_ns`` when ``seen`` stayed empty.
        Raises :class:`HarnessError` when entries keep coming without time passing.
        """
        heap = self._heap
        instant, count = -1, 0
        while not seen and heap and heap[0][0] <= until_ns:
            now, _, action, argument = heappop(heap)
            if now != instant:
                self._now_ns = instant = now
                count = 1
            else:
                count += 1
                if count > SAME_INSTANT_MAX:
                    name = getattr(action, "__qualname__", repr(action))
                    raise HarnessError(
                        f"virtual time stands still at {now} ns: {count} entries at one instant, "
                        f"the last one {name}; some node asks for ticks that are already due"
                    )
            action(now, argument)
        if not seen and self._now_ns < until_ns:
            self._now_ns = until_ns
