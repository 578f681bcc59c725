"""A simulated unit: the record of one place, and of the process that lives there now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from faults.base import Tuning
from harness.events import Event
from harness.sim.network import Link
from harness.sim.storage import Disk
from targets.base import Node, UnitSpec, Worker

PLAIN_TUNING = Tuning()


class Lane:
    """Jobs that run one after the other."""

    __slots__ = ("began_ns", "calls", "ends_ns", "jobs", "left_ns", "ticket")

    def __init__(self) -> None:
        self.jobs: deque[Any] = deque()
        """The first one is running, unless ``ends_ns`` is None (it waits for a hang to end)."""
        self.calls: deque[Callable[[], Any] | None] = deque()
        """For each job, what to call instead of the worker's ``run``."""
        self.began_ns = 0
        self.ends_ns: int | None = None
        self.left_ns = 0
        """What the running job still needs, while the unit is frozen."""
        self.ticket = 0
        """Rises whenever a scheduled end becomes void."""


class Skew:
    """How a unit's clock differs from the run's: ahead by ``offset_ns``, gaining ``ppm``."""

    __slots__ = ("offset_ns", "ppm")

    def __init__(self, offset_ns: int, ppm: float) -> None:
        self.offset_ns = offset_ns
        self.ppm = ppm

    def local_ns(self, now_ns: int) -> int:
        """The unit's clock at ``now_ns``."""
        return now_ns + self.offset_ns + int(now_ns * self.ppm / 1e6)

    def true_ns(self, local_ns: int) -> int:
        """The earliest run instant at which the unit's clock shows ``local_ns`` or more."""
        guess = int((local_ns - self.offset_ns) / (1 + self.ppm / 1e6))
        while self.local_ns(guess) < local_ns:
            guess += 1
        while guess > 0 and self.local_ns(guess - 1) >= local_ns:
            guess -= 1
        return max(guess, 0)

    def true_event(self, event: Event) -> Event:
        """``event`` with its instants moved from the unit's clock onto the run's."""
        names = [n for n in event.__struct_fields__ if n == "t_ns" or n.endswith("_at_ns")]
        return msgspec.structs.replace(event, **{n: self.true_ns(getattr(event, n)) for n in names})


class SimUnit:
    """What belongs to the place outlives its processes; what belongs to one life is reset."""

    __slots__ = (
        "absent",
        "alive",
        "bind",
        "blocked",
        "cpu_share",
        "deferred",
        "disk",
        "frozen",
        "inbox",
        "incarnation",
        "lanes",
        "life",
        "links",
        "name",
        "node",
        "outlet",
        "peers",
        "random",
        "skew",
        "spec",
        "synced_late",
        "tick_at",
        "tick_late",
        "tuning",
        "worker",
    )

    def __init__(self, spec: UnitSpec, disk: Disk, rng: Random, skew: Skew | None) -> None:
        self.spec = spec
        self.name = spec.info.name
        self.disk = disk
        self.random = rng
        self.skew = skew
        self.links: list[Link] = []
        """Links that this unit dials."""
        self.peers: dict[str, tuple[Link, int]] = {}
        """Peer to (link, this unit's side of it)."""
        self.absent = False
        """Nothing is started here."""
        self.frozen = False
        self.cpu_share: float | None = None
        self.tuning = PLAIN_TUNING
        self.life = 0
        """Rises with every spawn and exit, so that whatever an earlier life scheduled is void."""
        self.end_life()

    def end_life(self) -> None:
        """Forget everything that died with the process."""
        self.life += 1
        self.alive = False
        """Whether a process exists, from its spawn to its exit."""
        self.node: Node | None = None
        """Set once imports and compilation are done."""
        self.worker: Worker | None = None
        self.bind: Callable[[Any], Callable[[], Any]] | None = None
        """The worker's way to fix what a job sees at the instant it is asked for."""
        self.outlet: Any = None
        """What sends in place of the links, once the unit's updates are tampered with."""
        self.incarnation = 0
        self.lanes: dict[str, Lane] = {}
        self.inbox: deque[tuple[Callable[[int, Any], None], Any]] = deque()
        """What happened to the unit while it was frozen or in the middle of a durable write."""
        self.blocked = False
        """In the middle of a durable write."""
        self.deferred: tuple[list[Any], int] | None = None
        """Effects that wait for the write, and how many of them are done."""
        self.synced_late = False
        """The write ended while the unit was frozen."""
        self.tick_at: int | None = None
        """When the earliest scheduled tick fires."""
        self.tick_late = False
        """A tick came due while the unit was frozen."""

    @property
    def held(self) -> bool:
        """Whether the process cannot handle anything right now."""
        return self.frozen or self.blocked
