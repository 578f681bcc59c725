"""The emulated accelerator: makes a step take as long as its chip would, however fast the host.

A step computes for real and then waits until its deadline. Deadlines are absolute: each lies one
step time after the one before, so that wake-up jitter does not add up and several learners on a
small host keep the rates they would have on machines of their own. A step that misses its
deadline moves all later ones (re-anchoring): no chip makes up for lost time by running faster.

Nothing here reads a clock or sleeps by itself; both are given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from faults.base import Tuning

HANG_POLL_NS = 20_000_000
"""How often a hanging accelerator looks whether it may go on."""


class Sleeper(Protocol):
    """Waits that a stop request cuts short."""

    def until(self, deadline_ns: int) -> bool:
        """Wait until ``deadline_ns``; False when a stop was asked for, before or meanwhile."""
        ...


class StopSleeper:
    """Sleeps on an event that is set to stop; instants are those of ``now``."""

    def __init__(self, stop: threading.Event, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._stop = stop
        self._now = now

    def until(self, deadline_ns: int) -> bool:
        """See :class:`Sleeper`; returns at once when the deadline has passed."""
        left_ns = deadline_ns - self._now()
        if left_ns <= 0:  # a wait for nothing makes a lock first, between any two unpaced steps
            return not self._stop.is_set()
        return not self._stop.wait(left_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Paced:
    """What became of one step. Instants are on the clock that the pacer was given."""

    began_at_ns: int
    """The end of the step before, when the two are back to back; else when the compute began."""
    ended_at_ns: int
    compute_ns: int
    """What the host needed for it, waits excluded."""
    overrun: bool
    """The compute alone took longer than the chip's nominal step time."""
    late_ns: int
    """By how much the deadline was missed before any waiting; 0 when it was met."""
    stopped: bool
    """A stop request cut the wait short; the step itself is complete."""


class Pacer:
    """Paces the steps of one learner.

    ``nominal_ns`` is the step time of the learner's own chip (0: not paced). The tuning is asked
    once per step, after its compute: ``step_factor`` stretches the step's time (of an unpaced
    one: its compute time), ``hang`` keeps the step from ending for as long as it is set.
    """

    def __init__(
        self,
        nominal_ns: int,
        now: Callable[[], int],
        sleeper: Sleeper,
        tuning: Callable[[], Tuning] = Tuning,
    ) -> None:
        if nominal_ns < 0:
            raise ValueError(f"nominal_ns must not be negative, got {nominal_ns}")
        self.nominal_ns = nominal_ns
        self.steps = 0
        self.overruns = 0
        """Steps so far whose compute alone exceeded ``nominal_ns``."""
        self._now = now
        self._sleeper = sleeper
        self._tuning = tuning
        self._anchor_ns: int | None = None
        """The deadline of the last step, from which the next one counts."""
        self._period_ns = 0
        """Where the running step's time begins: with the end of the one before, when they are
        back to back, so that taking fragments in between is part of a step and not unexplained."""
        self._ended_ns = 0

    def begin(self) -> int:
        """Call right before a step's compute; the instant at which the step begins.

        Back-to-back steps count from the last deadline, so what the host does between them (send
        a report, take a fragment) costs the emulated chip nothing. Whoever was idle for half a
        step or longer (blocked on a merge, frozen) starts anew.
        """
        now_ns = self._now()
        if self._anchor_ns is None or now_ns - self._anchor_ns > self.nominal_ns // 2:
            self._anchor_ns = now_ns
            self._ended_ns = now_ns
        self._period_ns = self._ended_ns
        return now_ns

    def end(self, began_at_ns: int) -> Paced:
        """Call right after the compute of the step that began at ``began_at_ns``; waits.

        Raises ``RuntimeError`` without a :meth:`begin` before it.
        """
        if self._anchor_ns is None:
            raise RuntimeError("a step ended that never began")
        computed_at_ns = self._now()
        compute_ns = computed_at_ns - began_at_ns
        tuning = self._tuning()
        deadline_ns = self._deadline_ns(compute_ns, tuning.step_factor)
        late_ns = max(0, computed_at_ns - deadline_ns)
        running = self._sleeper.until(deadline_ns)
        hung = False
        while running and self._tuning().hang:
            hung = True
            running = self._sleeper.until(self._now() + HANG_POLL_NS)
        ended_at_ns = self._now()
        self._anchor_ns = ended_at_ns if late_ns or hung or not running else deadline_ns
        overrun = 0 < self.nominal_ns < compute_ns
        self.steps += 1
        self.overruns += overrun
        self._ended_ns = ended_at_ns
        return Paced(self._period_ns, ended_at_ns, compute_ns, overrun, late_ns, not running)

    def _deadline_ns(self, compute_ns: int, factor: float) -> int:
        assert self._anchor_ns is not None
        if self.nominal_ns:
            return self._anchor_ns + round(self.nominal_ns * factor)
        return self._anchor_ns + round(compute_ns * factor)
