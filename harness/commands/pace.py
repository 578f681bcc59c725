"""How often something that takes long says how far it is: by wall time, whatever clock it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_EVERY_S = 10.0
"""Without a terminal, one line at most this often; what ends sooner says nothing."""

LIVE_EVERY_S = 0.25
"""On a terminal, where the line is drawn over."""


class Pace:
    """Says when the next line is due: ``every_s`` seconds after the last, or the beginning."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._began_s = self._last_s = clock()

    def due(self) -> bool:
        """Whether it is time for a line; if so, the next one is due later."""
        now_s = self._clock()
        if now_s - self._last_s < self._every_s:
            return False
        self._last_s = now_s
        return True

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began_s


class Bar:
    """How far a count is: a bar on a terminal, else a plain line now and then."""

    def __init__(
        self,
        what: str,
        total: int,
        of: str,
        stream: TextIO,
        *,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = Console(file=stream, highlight=False)
        self._plain = None if quiet or console.is_terminal else console
        self._bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(of),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total)
        self._what, self._of = what, of
        self._pace = Pace(PLAIN_EVERY_S, clock)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` are done."""
        self._bar.update(self._task, completed=done, total=total)
        if self._plain is not None and self._pace.due():
            text = f"{self._what}: {done} of {total} {self._of} after {self._pace.passed_s:.0f} s"
            self._plain.print(text, soft_wrap=True)
