"""Time as an interface, in integer nanoseconds since the run's epoch."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two implementations: wall (monotonic) and virtual."""

    def now_ns(self) -> int:
        """Nanoseconds since the run's epoch."""
        ...


class WallClock:
    """The host's monotonic clock, shared by every process and container on the host."""

    def __init__(self, epoch_ns: int | None = None) -> None:
        self.epoch_ns = time.monotonic_ns() if epoch_ns is None else epoch_ns

    def now_ns(self) -> int:
        """Nanoseconds since ``epoch_ns``."""
        return time.monotonic_ns() - self.epoch_ns


class VirtualClock:
    """Time that moves only when told to; never backwards."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Nanoseconds of virtual time."""
        return self._now_ns

    def advance_to(self, t_ns: int) -> None:
        """Move to ``t_ns``; raises ``ValueError`` when that lies in the past."""
        if t_ns < self._now_ns:
            raise ValueError(f"virtual time cannot go back from {self._now_ns} to {t_ns}")
        self._now_ns = t_ns
