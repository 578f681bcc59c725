"""Chip failures: events per second of ours against the same model written in SimPy.

The SimPy version follows the paper's own description step by step: a learner is a process that
yields one timeout per training step, looks at what failed and what came back meanwhile, and
stalls for it. Every slice that is out is a process that waits until it may come back. Ours jumps
from event to event. Both must tell the same goodput, or the comparison means nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from harness.scale.chips import Cluster, simulate
from harness.seeds import stream
from tests.bench import Figure

CLUSTER = Cluster(chips=1_200_000, learners=8, days=10.0)
AGREE_POINTS = 1.0


@dataclass
class Learner:
    """One learner's state in the SimPy version."""

    slices: int
    out: int = 0
    returned: bool = False
    useful_s: float = 0.0
    failures: int = 0


def simpy_goodput(cluster: Cluster, seed: int) -> tuple[float, int]:
    """(goodput, chip failures) of the SimPy version."""
    horizon_s = cluster.days * 86400
    env = simpy.Environment()
    learners = []
    for m in range(cluster.learners):
        learner = Learner(max(1, cluster.chips // cluster.learners // cluster.slice_chips))
        learners.append(learner)
        env.process(_train(env, cluster, learner, seed, m))
    env.run(until=horizon_s)
    useful = sum(learner.useful_s for learner in learners)
    failures = sum(learner.failures for learner in learners)
    return useful / (horizon_s * cluster.learners), failures


def _train(
    env: simpy.Environment, cluster: Cluster, learner: Learner, seed: int, number: int
) -> Generator[Any, Any, None]:
    draw = stream(seed, "simpy", number)
    rate = cluster.chips / cluster.learners / learner.slices / cluster.mtbi_chip_s
    # The mean of the exponentiated Weibull with scale 1, by the midpoint rule.
    points = ((i + 0.5) / 20_000 for i in range(20_000))
    mean = sum(_weibull(cluster, u) for u in points) / 20_000
    scale_s = cluster.return_mean_s / mean

    def absent() -> Generator[Any, Any, None]:
        yield env.timeout(scale_s * _weibull(cluster, draw.random()))
        learner.out -= 1
        learner.returned = True

    while True:
        alive = learner.slices - learner.out
        yield env.timeout(cluster.step_s)
        learner.useful_s += cluster.step_s * alive / learner.slices
        stall_s = 0.0
        if learner.returned:
            learner.returned = False
            stall_s += cluster.up_s
        # Poisson by Knuth's method: the mean is far below one.
        failed, left = 0, math.exp(-rate * alive * cluster.step_s)
        chance = draw.random()
        while chance > left and failed < alive:
            failed += 1
            chance *= draw.random()
        if failed:
            stall_s += cluster.down_s
            learner.failures += failed
            learner.out += failed
            for _ in range(failed):
                env.process(absent())
        if stall_s:
            yield env.timeout(stall_s)


def _weibull(cluster: Cluster, u: float) -> float:
    return float((-math.log1p(-(u ** (1 / cluster.return_power)))) ** (1 / cluster.return_shape))


def measure() -> list[Figure]:
    """Failures simulated per second by each, their ratio, and whether the two agree."""
    began = time.perf_counter()
    ours = simulate(CLUSTER, 1)
    middle = time.perf_counter()
    theirs, failures = simpy_goodput(CLUSTER, 1)
    ended = time.perf_counter()
    our_rate = ours.failures / (middle - began)
    their_rate = failures / (ended - middle)
    apart = 100 * abs(ours.goodput - theirs)
    return [
        Figure("chip failures per second, ours", our_rate, "1/s", "", True),
        Figure("chip failures per second, SimPy", their_rate, "1/s", "", True),
        Figure("ours to SimPy", our_rate / their_rate, "x", ">= 1 x", our_rate >= their_rate),
        Figure(
            "goodput, ours and SimPy apart",
            apart,
            "points",
            f"<= {AGREE_POINTS:g} points",
            apart <= AGREE_POINTS,
        ),
    ]
