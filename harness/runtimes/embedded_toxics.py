"""The toxics of the embedded proxy: one stage each in one direction of one connection.

Semantics follow Toxiproxy 2.12 (docs and measured behaviour): kilobytes are 1000 bytes, times
are milliseconds (slicer: microseconds). Data goes from stage to stage in the order in which
the toxics were added; a stage that is ``full`` stops the reading of the source, so that a slow
link pushes back on its sender as a real one does.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

HELD_BYTES_MAX = 64 * 1024
"""What a stage that only slows data down may hold."""
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
"""What may be under way on a long link (latency)."""
SLICE_S = 0.01
"""A bandwidth limit sends in pieces of this long, so that the rate is even."""


@dataclass
class Toxic:
    """A toxic as the API knows it."""

    name: str
    type: str
    stream: str
    toxicity: float
    attributes: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """The API's form of it."""
        return {
            "attributes": self.attributes,
            "name": self.name,
            "type": self.type,
            "stream": self.stream,
            "toxicity": self.toxicity,
        }


class Receiver(Protocol):
    """Where data of one direction can go: a stage, or the writing end of a socket."""

    def feed(self, data: bytes) -> None:
        """Take data."""
        ...

    def eof(self) -> None:
        """There will be no more."""
        ...


class Way(Protocol):
    """What a stage may ask of its direction."""

    def balance(self) -> None:
        """Fullness changed: stop or resume reading the source."""
        ...

    def close(self) -> None:
        """End the connection, both directions."""
        ...

    def reset(self) -> None:
        """End the connection with RST on both sides."""
        ...


class Stage:
    """A toxic at work. The base passes everything on (also when its toxicity spared it)."""

    def __init__(self, toxic: Toxic, way: Way, rng: random.Random) -> None:
        self.toxic = toxic
        self.way = way
        self.rng = rng
        self.next: Receiver
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether the source should not be read now."""
        return False

    def feed(self, data: bytes) -> None:
        """Take data from the source's side."""
        self.next.feed(data)

    def eof(self) -> None:
        """The source has ended."""
        self.next.eof()

    def begin(self) -> None:
        """The stage is in place."""

    def changed(self) -> None:
        """The toxic's attributes are new."""

    def removed(self) -> None:
        """The toxic is gone: pass on what is held. ``next`` is still valid."""

    def stop(self) -> None:
        """Cancel what is planned; nothing may happen afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at_s: float, action: Callable[[], None]) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_at(at_s, action)

    def _ms(self, name: str) -> float:
        return self.toxic.attributes[name] / 1000


def _now() -> float:
    return asyncio.get_running_loop().time()


class Queued(Stage):
    """Holds data in order and releases it by a timer. Subclasses say when."""

    limit = HELD_BYTES_MAX

    def __init__(self, toxic: Toxic, way: Way, rng: random.Random) -> None:
        super().__init__(toxic, way, rng)
        self._queue: deque[tuple[float, bytes | None]] = deque()  # None is the end
        self._held = 0

    @property
    def full(self) -> bool:
        """Whether as much is held as may be."""
        return self._held >= self.limit

    def feed(self, data: bytes) -> None:
        """Hold ``data``."""
        self._held += len(data)
        self._put(data)

    def eof(self) -> None:
        """Hold the end, behind the data."""
        self._put(None)

    def _put(self, item: bytes | None) -> None:
        self._queue.append((_now(), item))
        if len(self._queue) == 1:
            self._plan()

    def changed(self) -> None:
        """Plan anew from the first that is held."""
        self.stop()
        self._plan()

    def removed(self) -> None:
        """Everything goes on at once, in order."""
        self.stop()
        while self._queue:
            self._pass(self._queue.popleft()[1])

    def _pass(self, item: bytes | None) -> None:
        if item is None:
            self.next.eof()
        else:
            self._held -= len(item)
            self.next.feed(item)

    def _plan(self) -> None:
        raise TypeError("a queued stage says when its first item is due")


class Latency(Queued):
    """Every piece arrives ``latency`` (plus or minus ``jitter``) after it was sent."""

    limit = IN_FLIGHT_BYTES_MAX

    def _plan(self) -> None:
        if self._queue:
            delay = self._ms("latency")
            if jitter := self._ms("jitter"):
                delay = max(0.0, delay + self.rng.uniform(-jitter, jitter))
            self._arm(self._queue[0][0] + delay, self._release)

    def _release(self) -> None:
        self._timer = None
        self._pass(self._queue.popleft()[1])
        # Without jitter all that is due goes now: one timer for each burst, not each piece.
        if not self.toxic.attributes["jitter"]:
            limit = _now() - self._ms("latency")
            while self._queue and self._queue[0][0] <= limit:
                self._pass(self._queue.popleft()[1])
        self._plan()
        self.way.balance()


class Bandwidth(Queued):
    """``rate`` KB/s at most; a rate of 0 stands still without losing anything."""

    def __init__(self, toxic: Toxic, way: Way, rng: random.Random) -> None:
        super().__init__(toxic, way, rng)
        self._free_at = 0.0

    def _plan(self) -> None:
        rate = self.toxic.attributes["rate"] * 1000
        if not self._queue or rate <= 0:
            return
        came, data = self._queue[0]
        size = 0 if data is None else len(data)
        part = max(1, int(rate * SLICE_S))
        if data is not None and size > part:
            self._queue[0] = (came, data[part:])
            self._queue.appendleft((came, data[:part]))
            size = part
        # Measured from when the line was free, not from a timer that may be late.
        self._free_at = max(self._free_at, came) + size / rate
        self._arm(self._free_at, self._release)

    def changed(self) -> None:
        """A new rate holds from now on."""
        self._free_at = _now()
        self._queue = deque((self._free_at, data) for _, data in self._queue)
        super().changed()

    def _release(self) -> None:
        self._timer = None
        self._pass(self._queue.popleft()[1])
        self._plan()
        self.way.balance()


class Slicer(Queued):
    """Pieces of ``average_size`` plus or minus ``size_variation``, ``delay`` us apart."""

    def _plan(self) -> None:
        if not self._queue:
            return
        came, data = self._queue[0]
        values = self.toxic.attributes
        spread = values["size_variation"]
        size = max(1, values["average_size"] + self.rng.randint(-spread, spread))
        if data is not None and len(data) > size:
            self._queue[0] = (came, data[size:])
            self._queue.appendleft((came, data[:size]))
        self._arm(_now() + values["delay"] / 1e6, self._release)

    def _release(self) -> None:
        self._timer = None
        self._pass(self._queue.popleft()[1])
        self._plan()
        self.way.balance()


class Timeout(Stage):
    """Nothing passes and nobody is told; after ``timeout`` ms the connection is closed.

    With 0 it stays silent for ever. Removing it closes the connection.
    """

    _swallowed = 0

    @property
    def full(self) -> bool:
        """Whether the sender should feel that nobody takes its data."""
        return self._swallowed >= HELD_BYTES_MAX

    def feed(self, data: bytes) -> None:
        """Swallow. A little is taken, as by Toxiproxy: unread data would turn the end of the
        connection, when it comes, into a reset."""
        self._swallowed += len(data)

    def eof(self) -> None:
        """The end is not passed on either."""

    def begin(self) -> None:
        """Start the time, if there is one."""
        if self.toxic.attributes["timeout"]:
            self._arm(_now() + self._ms("timeout"), self.way.close)

    def changed(self) -> None:
        """The new time starts now."""
        self.stop()
        self.begin()

    def removed(self) -> None:
        """Healing is noticed by both sides as the end of the connection."""
        self.stop()
        self.way.close()


class SlowClose(Stage):
    """The end of the connection arrives ``delay`` ms late."""

    _pending = False

    def eof(self) -> None:
        """Hold the end back."""
        self._pending = True
        self._arm(_now() + self._ms("delay"), self.removed)

    def removed(self) -> None:
        """Let a waiting end through."""
        self.stop()
        if self._pending:
            self._pending = False
            self.next.eof()


class ResetPeer(Stage):
    """The connection is reset ``timeout`` ms after the first byte (or end) comes through."""

    @property
    def full(self) -> bool:
        """Whether the reset is on its way."""
        return self._timer is not None

    def feed(self, data: bytes) -> None:
        """Instead of passing data on, end the connection."""
        self.eof()

    def eof(self) -> None:
        """An end counts as traffic."""
        if self._timer is None:
            self._arm(_now() + self._ms("timeout"), self.way.reset)


class LimitData(Stage):
    """The connection ends after ``bytes`` bytes, counted from when the toxic came."""

    _passed = 0
    _over = False

    @property
    def full(self) -> bool:
        """Whether the limit was reached."""
        return self._over

    def feed(self, data: bytes) -> None:
        """Pass on what is still allowed."""
        if self._over:
            return
        data = data[: self.toxic.attributes["bytes"] - self._passed]
        self._passed += len(data)
        if data:
            self.next.feed(data)
        if self._passed >= self.toxic.attributes["bytes"]:
            self._over = True
            self.next.eof()


@dataclass(frozen=True)
class Kind:
    """A toxic type: its stage, and each attribute's default."""

    stage: Callable[[Toxic, Way, random.Random], Stage]
    defaults: Mapping[str, int]


KINDS: Mapping[str, Kind] = {
    "latency": Kind(Latency, {"latency": 0, "jitter": 0}),
    "bandwidth": Kind(Bandwidth, {"rate": 0}),
    "slow_close": Kind(SlowClose, {"delay": 0}),
    "timeout": Kind(Timeout, {"timeout": 0}),
    "reset_peer": Kind(ResetPeer, {"timeout": 0}),
    "slicer": Kind(Slicer, {"average_size": 1, "size_variation": 0, "delay": 0}),
    "limit_data": Kind(LimitData, {"bytes": 0}),
}
"""Toxic type to its kind; the one visible table."""
