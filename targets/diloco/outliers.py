"""Updates that are finite and yet nonsense: far larger than the fragment has ever seen.

A faulty chip that scales what it computes passes every checksum. The paper has no defence; ours
is a bound relative to what was merged before: the norm of a learner's whole delta for a fragment
may be at most ``RATIO_MAX`` times the highest moving average of the norms so far. The highest, not
the present one: near an optimum deltas become tiny, and a learner that comes back with fresh
inner state honestly makes large ones again; refused for ever, it would hold up every merge that
needs it. Honest deltas also grow with the number of steps they cover (bounded by the staleness
bound) and with the warm-up of the learning rate; two orders of magnitude are left for both.
"""

from __future__ import annotations

import math

import numpy as np

from targets.diloco.arrays import NORM_MAX, Norms

RATIO_MAX = 100.0
LEARNED_MIN = 8
"""Merged deltas before the average is trusted: the first ones after a start tell little."""
EMA = 0.1


class UsualNorm:
    """What is usual for one fragment. Lives with the worker and is learnt anew after a restart."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._highest = 0.0
        self._seen = 0

    def objection(self, norms: Norms) -> str:
        """Why a delta with these per-tensor norms is refused; empty when it is sound."""
        if not bool((norms < NORM_MAX).all()):
            return (
                "non-finite: an element is no finite number, or a tensor is "
                f"{NORM_MAX:g} or further from the syncer's"
            )
        whole = float(np.sqrt(np.square(norms).sum()))
        if self._seen >= LEARNED_MIN and whole > RATIO_MAX * self._highest > 0:
            times = whole / self._highest
            return f"outlier: the delta's norm is {times:.0f} times the largest usual one"
        return ""

    def learn(self, norms: Norms) -> None:
        """Take the deltas of a merge (one row per learner) into account."""
        for row in norms:
            whole = math.sqrt(float(np.square(row).sum()))
            share = max(EMA, 1 / (self._seen + 1))
            self._mean += share * (whole - self._mean)
            self._seen += 1
            self._highest = max(self._highest, self._mean)
