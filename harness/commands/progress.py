"""The live progress line of a run, fed with the same events that go into the journal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.clock import VirtualClock
from harness.commands.pace import LIVE_EVERY_S, PLAIN_EVERY_S, Pace
from harness.compose import Experiment
from harness.events import (
    AnyEvent,
    BaselineUnmet,
    FaultEnded,
    FaultExecuted,
    FaultSkipped,
    HarnessFailed,
    Merged,
    RunEnded,
    SteadyState,
    Step,
    TailEnded,
    UnitExited,
    UnitSpawned,
    UnitStarted,
    WindowEnded,
    WorldEnded,
    WorldFormed,
)
from harness.spec import NS

LINE_EVERY_NS = 5 * NS
"""Without a terminal, one line at most this often, so that CI logs stay readable."""


KEEP_NS = 5 * NS
"""A notable event is told for this long; later it would read like the present."""


class Progress:
    """Shows phase, time, steps, merges and the last notable event."""

    def __init__(
        self,
        experiment: Experiment,
        stream: TextIO,
        *,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        head = experiment.spec.head
        self._window_s = head.duration_s
        self._total_s = head.duration_s + head.quiet_tail_s
        self._quiet = quiet
        self._console = Console(file=stream, highlight=False)
        # Virtual time may run faster than anybody reads, or, with real training, far slower.
        every_s = LIVE_EVERY_S if self._console.is_terminal else PLAIN_EVERY_S
        virtual = isinstance(experiment.runtime.clock, VirtualClock)
        self._pace = Pace(every_s, clock) if virtual else None
        self._live: Live | None = None
        self._phase = "starting"
        self._since_ns = 0
        self._steady_ns: int | None = None
        self._counts: Counter[str] = Counter()
        self._last = ""
        self._last_ns = 0
        self._faulty = bool(experiment.planned)
        self._printed_ns = -LINE_EVERY_NS

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def observe(self, event: AnyEvent) -> None:
        """Take one event into account and refresh the line."""
        if self._quiet:
            return
        notable = self._notable(event)
        if notable:
            self._last, self._last_ns = notable, event.t_ns
        if self._pace is not None:
            if self._pace.due():
                self._show(self._line(event.t_ns))
        elif self._live is not None:
            if notable:
                self._console.print(Text(f"{event.t_ns / NS:7.1f} s  {notable}"))
            self._live.update(Text(self._line(event.t_ns)))
        elif notable or event.t_ns - self._printed_ns >= LINE_EVERY_NS:
            self._printed_ns = event.t_ns
            self._console.print(Text(self._line(event.t_ns)), soft_wrap=True)

    def _show(self, line: str) -> None:
        if self._live is not None:
            self._live.update(Text(line))
        else:
            self._console.print(Text(line), soft_wrap=True)

    def _line(self, now_ns: int) -> str:
        parts = [f"{now_ns / NS:7.1f} s", self._phase]
        if self._steady_ns is not None:
            parts.append(f"{(now_ns - self._steady_ns) / NS:.0f}/{self._total_s:.0f} s")
        merges = f", {self._counts['merge']} merges" if self._counts["merge"] else ""
        parts.append(f"{self._counts['step']} steps{merges}")
        if self._faulty:
            parts.append(f"{self._counts['fault']} faults")
        recent = self._last if now_ns - self._last_ns < KEEP_NS else ""
        return "  ".join([*parts, recent]).rstrip()

    def _notable(self, event: AnyEvent) -> str:
        if isinstance(event, Step):
            self._counts["step"] += 1
        elif isinstance(event, Merged):
            self._counts["merge"] += 1
        elif isinstance(event, FaultExecuted):
            self._counts["fault"] += 1
            return f"{event.fault} {event.kind} on {event.unit}"
        elif isinstance(event, FaultSkipped):
            return f"{event.fault} {event.kind} on {event.unit} skipped: {event.why}"
        elif isinstance(event, FaultEnded):
            return f"{event.fault} {event.kind} on {event.unit} ended"
        elif isinstance(event, WorldFormed):
            return f"{len(event.members)} units train together from step {event.step}"
        elif isinstance(event, WorldEnded):
            return f"all stop: {event.because} {event.why}".replace(":  ", ": ")
        else:
            return self._phase_or_life(event)
        return ""

    def _phase_or_life(self, event: AnyEvent) -> str:
        if isinstance(event, UnitSpawned):
            self._phase = "baseline" if self._steady_ns is None else self._phase
            return (
                ""
                if event.by in ("harness", "orchestrator")
                else f"{event.unit} restarted by {event.by}"
            )
        if isinstance(event, UnitExited):
            how = f"signal {event.signal}" if event.signal else f"code {event.code}"
            return f"{event.unit} exited ({how})"
        if isinstance(event, UnitStarted):
            again = event.incarnation > 1
            return f"{event.unit} runs again (life {event.incarnation})" if again else ""
        phases: dict[type, tuple[str, str]] = {
            SteadyState: ("faults" if self._faulty else "trains", "steady state reached"),
            BaselineUnmet: ("ending", "steady state was not reached"),
            WindowEnded: ("quiet tail", "everything healed" if self._counts["fault"] else ""),
            TailEnded: ("ending", ""),
            RunEnded: ("ended", ""),
        }
        if type(event) in phases:
            self._phase, text = phases[type(event)]
            if isinstance(event, SteadyState):
                self._steady_ns = event.t_ns
            return text
        return f"harness: {event.why}" if isinstance(event, HarnessFailed) else ""
