"""How many tokens the parameters of a data-parallel run have learned from.

Only what was not rolled back counts: a world that goes on from an older checkpoint takes back
every step beyond it. Worlds differ in size, and so do their steps.
"""

from __future__ import annotations

from collections.abc import Iterable


class Progress:
    """Stretches of steps, each taken by a world of one size."""

    def __init__(self, worker_tokens: int) -> None:
        self._worker_tokens = worker_tokens
        """Tokens of one step and worker."""
        self._stretches: list[tuple[int, int]] = []

    def begin(self, step: int, size: int) -> None:
        """A world of ``size`` goes on after ``step``."""
        self._stretches = [s for s in self._stretches if s[0] < step]
        self._stretches.append((step, size))

    def tokens(self, step: int) -> int:
        """Tokens in the parameters after ``step``."""
        ends = [begin for begin, _ in self._stretches[1:]] + [step]
        taken = (
            max(0, min(end, step) - begin) * size
            for (begin, size), end in zip(self._stretches, ends, strict=True)
        )
        return sum(taken) * self._worker_tokens if self._stretches else 0

    def saved(self) -> list[list[int]]:
        """What has to be durable; see :meth:`resume`."""
        return [[step, size] for step, size in self._stretches]

    def resume(self, saved: Iterable[Iterable[int]]) -> None:
        """Go on from what an earlier life saved."""
        self._stretches = []
        for step, size in saved:
            self._stretches.append((step, size))
