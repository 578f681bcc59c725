"""Threads that listen to the engine: what units print, and which containers die and start.

Both only put events into a queue. A unit's event lines carry their own instants (containers
share the host's monotonic clock); the engine's events carry its wall clock, which is turned into
ours by how long ago it was.
"""

from __future__ import annotations

import calendar
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from harness.clock import WallClock
from harness.errors import ControlError
from harness.events import AnyEvent, HarnessFailed
from harness.runtimes.docker_engine import CUT, Engine, Frame, OutputStream
from harness.runtimes.lines import UnitLines

_LAG_MAX_NS = 5 * 10**9
_RETRY_S = 0.2
_TRIES = 25

Events = SimpleQueue[AnyEvent]


class OutputFollower:
    """Follows one container through all its lives: event lines to ``out``, the rest to a log.

    The engine ends a stream when the container stops; :meth:`revived` opens the next one where
    the last ended. Nothing is lost between two lives: the engine keeps what was printed.
    """

    def __init__(
        self,
        engine: Engine,
        container: str,
        unit: str,
        log: Path,
        out: Events,
        clock: WallClock,
        since: str = "0",
    ) -> None:
        self._engine = engine
        self._container = container
        self._unit = unit
        self._out = out
        self._clock = clock
        self._log = open(log, "ab")  # noqa: SIM115 - closed when the thread ends
        self._since = since
        self._last = ""
        self._stream: OutputStream | None = None
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"output-{unit}", daemon=True)
        self._thread.start()

    def revived(self) -> None:
        """The container runs again: there is more to read."""
        self._wake.set()

    def close(self, drain_s: float = 2.0) -> None:
        """End; when the container is gone already, everything it printed is read first."""
        self._closing = True
        self._wake.set()
        self._thread.join(drain_s)
        if self._thread.is_alive() and self._stream is not None:
            self._stream.close()
            self._thread.join(drain_s)

    def _run(self) -> None:
        failures = 0
        with self._log:
            while True:
                closing = self._closing
                self._wake.clear()
                try:
                    self._follow()
                    failures = 0
                except ControlError as error:
                    failures += 1
                    if failures == _TRIES and not self._closing:
                        self._fail(error)
                if closing or failures >= _TRIES:
                    return
                # A missed start costs one second, not the unit's lines.
                self._wake.wait(_RETRY_S if failures else 1.0)

    def _follow(self) -> None:
        lines = UnitLines(self._unit, self._clock.epoch_ns, self._log)
        self._stream = stream = self._engine.output(self._container, self._since)
        seen = self._last
        for frame in stream:
            if frame.stamp > seen:
                self._take(frame, lines)
        stream.close()
        lines.end()

    def _take(self, frame: Frame, lines: UnitLines) -> None:
        if frame.stamp > self._last:
            self._last = frame.stamp
            self._since = since_of(frame.stamp)
        if frame.stderr:
            self._log.write(frame.data)
            self._log.flush()
        else:
            for event in lines.feed(frame.data):
                self._out.put(event)

    def _fail(self, error: ControlError) -> None:
        where = f"output of {self._unit}"
        self._out.put(HarnessFailed(t_ns=self._clock.now_ns(), where=where, why=str(error)))


class LifeWatcher:
    """Calls ``on_event(action, container id, attributes, t_ns)`` for every die, oom and start."""

    def __init__(
        self,
        engine: Engine,
        label: str,
        clock: WallClock,
        out: Events,
        on_event: Callable[[str, str, dict[str, str], int], None],
    ) -> None:
        self._engine = engine
        self._filters = {
            "type": ["container"],
            "label": [label],
            "event": ["die", "oom", "start"],
        }
        self._clock = clock
        self._out = out
        self._on_event = on_event
        self._closing = threading.Event()
        self._since_ns = time.time_ns()
        self._stream = engine.events(self._filters, self._since_ns)
        self._thread = threading.Thread(target=self._run, name="engine-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End. Safe to call twice."""
        self._closing.set()
        with suppress(Exception):  # the stream may have ended by itself, in one of several ways
            self._stream.close()
        self._thread.join(2.0)

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            with suppress(*CUT):
                for event in self._stream:
                    failures = 0
                    self._take(event)
            if self._closing.is_set():
                return
            # The stream ended and nobody asked it to: the engine went away, perhaps to restart.
            try:
                self._closing.wait(_RETRY_S)
                self._stream = self._engine.events(self._filters, self._since_ns + 1)
            except ControlError as error:
                failures += 1
                if failures == _TRIES:
                    now = self._clock.now_ns()
                    self._out.put(HarnessFailed(t_ns=now, where="engine events", why=str(error)))
                    return

    def _take(self, event: dict[str, Any]) -> None:
        stamp = int(event["timeNano"])
        self._since_ns = max(self._since_ns, stamp)
        lag = time.time_ns() - stamp
        # A wall clock that was set meanwhile says nothing; then the present is the best guess.
        t_ns = self._clock.now_ns() - (lag if 0 <= lag <= _LAG_MAX_NS else 0)
        actor = event["Actor"]
        self._on_event(event["Action"], actor["ID"], dict(actor["Attributes"]), t_ns)


def since_of(stamp: str) -> str:
    """An engine timestamp (``2026-01-02T03:04:05.000000006Z``) as ``seconds.nanoseconds``."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return f"{seconds}.{fraction:0<9}"
