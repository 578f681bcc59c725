"""Who carries out what is due at one instant: in virtual time one act after the other, live side
by side, so that a SIGKILL does not wait for a link fault that takes the proxy server a while.

Acts that share a *key* (their unit, the links) are done in the order in which they were asked for;
the others do not wait for each other. What came of an act is told on the thread that asks, so the
journal keeps its one writer; the instant of its end is the act's own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.clock import Clock


@dataclass(frozen=True)
class Done:
    """What came of an act: ``result``, or the ``error`` that it raised."""

    t_ns: int
    """The run's clock when the act ended."""
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class _Asked:
    keys: frozenset[str]
    act: Callable[[], Any]
    then: Callable[[Done], None]


class Crew:
    """Carries acts out. ``together`` False: each is over, and told, when :meth:`ask` returns.

    ``ask``, ``tell`` and ``settle`` are called by one thread.
    """

    def __init__(self, clock: Clock, *, together: bool) -> None:
        self._clock = clock
        self._together = together
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._waiting: list[_Asked] = []
        self._busy: list[_Asked] = []
        self._over: queue.SimpleQueue[tuple[_Asked, Done]] = queue.SimpleQueue()
        self._untold = 0

    def ask(
        self, keys: frozenset[str], act: Callable[[], Any], then: Callable[[Done], None]
    ) -> None:
        """Have ``act`` done once nothing that was asked for before holds one of ``keys``;
        ``then`` is called with what came of it."""
        asked = _Asked(keys, act, then)
        if not self._together:
            then(self._done(asked))
            return
        self._untold += 1
        with self._lock:
            self._waiting.append(asked)
            self._begin_what_can()

    def tell(self) -> None:
        """Tell of the acts that are over, in the order in which they ended."""
        while not self._over.empty():
            self._tell_next()

    def settle(self) -> None:
        """Wait until every act is over, and tell of all of them; what telling raised comes last."""
        failed: Exception | None = None
        while self._untold:
            try:
                self._tell_next()
            except Exception as error:  # it must not keep the others' news
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Wait for what is being done, and end the threads; nothing more is told."""
        if self._pool is not None:
            with self._lock:
                self._waiting.clear()
            self._pool.shutdown()

    def _tell_next(self) -> None:
        asked, done = self._over.get()
        self._untold -= 1
        asked.then(done)

    def _begin_what_can(self) -> None:
        taken: set[str] = set().union(*(asked.keys for asked in self._busy))
        for asked in self._waiting.copy():
            if taken.isdisjoint(asked.keys):
                self._waiting.remove(asked)
                self._busy.append(asked)
                self._hands().submit(self._work, asked)
            taken |= asked.keys  # whoever waits has its turn before those who came later

    def _hands(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_HANDS, thread_name_prefix="crew")
        return self._pool

    def _work(self, asked: _Asked) -> None:
        done = self._done(asked)
        with self._lock:
            self._busy.remove(asked)
            self._over.put((asked, done))
            if self._waiting:
                self._begin_what_can()

    def _done(self, asked: _Asked) -> Done:
        try:
            result = asked.act()
        except Exception as error:  # of whatever kind: it belongs to whoever asked
            return Done(self._clock.now_ns(), error=error)
        return Done(self._clock.now_ns(), result)


_HANDS = 64
"""So many acts at a time; a storm on more units than that goes in turns."""
