"""Judging the global parameters: the job that the syncer's node asks for, and when it does.

Evaluations run in a lane of their own, so no merge waits for one. What they cost a real syncer is
its own processor time; in virtual time they cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

LANE = "evaluate"


class Evaluate(msgspec.Struct, frozen=True, gc=False):
    """Judge the global parameters as they are at this instant. The result is :class:`Judged`.

    The fields are what the node knows of that instant; see ``harness.events.Evaluated``.
    """

    clock: int
    tokens: int
    steps: int


class Judged(msgspec.Struct, frozen=True, gc=False):
    """Figures as in ``harness.events.Evaluated``."""

    loss: float
    accuracy: float | None = None
    floor: float | None = None
    records: int = 0


class Evaluations:
    """When the next evaluation is due, and how many tokens the parameters have learned from.

    ``every`` is in global steps, 0 for never. ``elements`` are the parameters of each fragment:
    a token that was merged into some of the fragments counts by their share.
    """

    def __init__(self, every: int, elements: Sequence[int]) -> None:
        self.every = every
        self._elements = tuple(elements)
        self._merged = [0] * len(self._elements)
        self._last = 0
        self._busy = False

    @property
    def tokens(self) -> int:
        """Tokens in the global parameters, rounded down."""
        weighed = sum(n * merged for n, merged in zip(self._elements, self._merged, strict=True))
        return weighed // (sum(self._elements) or 1)

    def merged(self, fragment: int, tokens: int) -> None:
        """A merge of ``fragment`` was committed that took in ``tokens``."""
        self._merged[fragment] += tokens

    def saved(self, fragment: int) -> int:
        """What has to be durable with the fragment; see :meth:`resume`."""
        return self._merged[fragment]

    def resume(self, fragment: int, saved: Mapping[str, Any]) -> None:
        """Go on from what an earlier life saved with the fragment."""
        self._merged[fragment] = saved.get("tokens", 0)
        self._last = max(self._last, saved["clock"])

    def due(self, clock: int, steps: int) -> Evaluate | None:
        """The job to ask for after the merge of step ``clock``. A host that has not answered the
        last one yet is not asked again."""
        if not self.every or self._busy or clock // self.every <= self._last // self.every:
            return None
        self._busy, self._last = True, clock
        return Evaluate(clock, self.tokens, steps)

    def answered(self) -> None:
        """The last one was done, or failed."""
        self._busy = False
