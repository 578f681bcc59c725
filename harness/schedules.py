"""When repeated faults arrive and how long they last: pure functions of a random stream."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from harness.spec_parts import Repair, Schedule

ARRIVALS_MAX = 100_000
"""More arrivals than this in one window are a mistake in the spec, not an experiment."""


def instants(schedule: Schedule, duration_s: float, draw: random.Random) -> list[float]:
    """Arrival times in seconds since steady state, ascending, inside the fault window.

    ``fixed`` arrives every ``mean_gap_s``, ``poisson`` with exponential gaps, ``weibull`` with
    Weibull gaps of the given shape scaled to the same mean (below 1 they cluster).
    """
    end = min(duration_s, duration_s if schedule.until_s is None else schedule.until_s)
    times: list[float] = []
    now = schedule.from_s
    for gap in _gaps(schedule, draw):
        now += gap
        if now >= end or len(times) >= (schedule.at_most or ARRIVALS_MAX):
            return times
        times.append(now)
    return times


def _gaps(schedule: Schedule, draw: random.Random) -> Iterator[float]:
    mean = schedule.mean_gap_s
    if mean is None:  # the spec's reader refuses this
        raise ValueError(f"{schedule.process} needs mean_gap_s")
    # The scale that gives a Weibull distribution the wanted mean.
    scale = mean / math.gamma(1 + 1 / schedule.shape)
    while True:
        if schedule.process == "fixed":
            yield mean
        elif schedule.process == "poisson":
            yield draw.expovariate(1 / mean)
        else:
            yield draw.weibullvariate(scale, schedule.shape)


def repair_s(repair: Repair, draw: random.Random) -> float:
    """How long one arrival lasts, in seconds: lognormal with the given median."""
    return draw.lognormvariate(math.log(repair.median_s), repair.sigma)
