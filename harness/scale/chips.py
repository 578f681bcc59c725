"""Training on failing chips, at the scale of the paper's table 1 (sections 3.3 and E.1).

A cluster of N chips is shared by M learners. Each learner is made of slices; a chip failure
removes its whole slice until the slice returns. Time advances in steps, as in the paper:

1. the number of chips that fail at a step is Poisson with mean ``step_s / MTBF`` of the chips that
   are in (MTBF = MTBI / chips, paper eq. 4), so chips fail while steps run;
2. any failure costs one ``down_s`` stall and takes the slices out; any slice that has come back
   since costs one ``up_s`` stall (several at once share it);
3. the step runs on the slices that are in: its useful share is their fraction.

Without elasticity any failure stops everything for ``restart_s`` and then all slices are back.
Learners are independent: that is the point of decoupling. Goodput is the share of allocated time
spent in useful steps, fewer slices counting less; uptime the share in which any learner steps.

Between two events nothing happens, so the simulation jumps from event to event.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field

from harness.seeds import stream

YEAR_S = 365.25 * 86400


@dataclass(frozen=True)
class Cluster:
    """What is simulated. See ``harness.scale.paper`` for where the defaults come from."""

    chips: int
    learners: int
    elastic: bool = True
    mtbi_chip_s: float = YEAR_S
    slice_chips: int = 256
    step_s: float = 4.0
    down_s: float = 11.0
    up_s: float = 11.0
    restart_s: float = 82.0
    return_mean_s: float = 3700.0
    return_shape: float = 0.9
    """k of the exponentiated Weibull distribution of the time to return; below 1 has long tails."""
    return_power: float = 2.0
    """alpha of it; 1 is a plain Weibull, above 1 very short repairs are rare."""
    speed_cv: float = 0.0
    """Coefficient of variation of slice speed; a learner runs at its slowest slice's pace."""
    quorum: int = 1
    days: float = 20.0

    def problems(self) -> list[str]:
        """Every impossible value, by name."""
        found = [
            f"{name} must be positive and finite, got {getattr(self, name):g}"
            for name in (
                "chips",
                "learners",
                "mtbi_chip_s",
                "slice_chips",
                "step_s",
                "return_mean_s",
                "return_shape",
                "return_power",
                "days",
            )
            if not 0 < getattr(self, name) < math.inf
        ]
        found += [
            f"{name} must be finite and not negative, got {getattr(self, name):g}"
            for name in ("down_s", "up_s", "restart_s", "speed_cv")
            if not 0 <= getattr(self, name) < math.inf
        ]
        if not found and self.slice_chips * self.learners > self.chips:
            found.append(
                f"{self.learners} learners of slices of {self.slice_chips} chips need at least "
                f"{self.slice_chips * self.learners} chips, got {self.chips}"
            )
        if not found and not 1 <= self.quorum <= self.learners:
            found.append(f"quorum must lie between 1 and {self.learners}, got {self.quorum}")
        return found


@dataclass(frozen=True)
class Outcome:
    """What a simulated cluster did. Ratios of allocated time."""

    goodput: float
    uptime: float
    failures: int
    participants_mean: float
    """Learners that a merge hears on average: those stepping at that instant."""
    quorum_share: float
    """Share of time in which at least ``quorum`` learners step, so that merges go on."""


@dataclass
class LearnerTimeline:
    """One learner's life: useful seconds and the intervals in which it stood still."""

    useful_s: float
    stalls: list[tuple[float, float]]
    failures: int
    pace: float = 1.0
    """Its speed with all slices in; 1 is nominal."""
    shares: list[tuple[float, float]] = field(default_factory=list)
    """(from when on, share of its slices that are in), at every change."""


def simulate(cluster: Cluster, seed: int) -> Outcome:
    """Run the cluster; the same seed gives the same outcome.

    Raises ``ValueError`` naming every impossible parameter.
    """
    problems = cluster.problems()
    if problems:
        raise ValueError("; ".join(problems))
    horizon_s = cluster.days * 86400
    lives = [
        learner_timeline(cluster, horizon_s, stream(seed, "chips", cluster.chips, m))
        for m in range(cluster.learners)
    ]
    shares = stepping_shares([life.stalls for life in lives], horizon_s)
    return Outcome(
        goodput=sum(life.useful_s for life in lives) / (horizon_s * cluster.learners),
        uptime=1.0 - shares[0],
        failures=sum(life.failures for life in lives),
        participants_mean=sum(n * share for n, share in enumerate(shares)) / (1 - shares[0])
        if shares[0] < 1
        else 0.0,
        quorum_share=sum(shares[cluster.quorum :]),
    )


def learner_timeline(cluster: Cluster, horizon_s: float, draw: random.Random) -> LearnerTimeline:
    """One learner from 0 to ``horizon_s``."""
    slices = max(1, cluster.chips // cluster.learners // cluster.slice_chips)
    pace = _slowest(slices, cluster.speed_cv, draw)
    step_s = cluster.step_s / pace
    scale_s = _return_scale(cluster)
    out: list[float] = []  # heap of instants at which slices come back
    now, useful, failures = 0.0, 0.0, 0
    stalls: list[tuple[float, float]] = []
    shares = [(0.0, 1.0)]
    # Failures of chips that are in, per second of stepping, for one slice.
    slice_rate = cluster.chips / cluster.learners / slices / cluster.mtbi_chip_s
    while now < horizon_s:
        share = (slices - len(out)) / slices
        steps, failed = _until_failure(slices - len(out), slice_rate, step_s, draw)
        if out:
            until_return = max(0, math.ceil((out[0] - now) / step_s))
            if until_return < steps:
                steps, failed = until_return, 0
        # Whole steps without any event, then the step at which the event is handled.
        steps = min(steps, math.ceil((horizon_s - now) / step_s))
        now += steps * step_s
        useful += steps * step_s * share * pace
        if now >= horizon_s:
            break
        began = now
        now += _handle(cluster, out, slices, failed, now, scale_s, draw)
        failures += failed
        if now > began:
            stalls.append((began, min(now, horizon_s)))
        shares.append((now, (slices - len(out)) / slices))
        now += step_s
        useful += step_s * (slices - len(out)) / slices * pace
    return LearnerTimeline(min(useful, horizon_s), stalls, failures, pace, shares)


def _until_failure(
    slices: int, slice_rate: float, step_s: float, draw: random.Random
) -> tuple[int, int]:
    """(whole steps without a failure, slices that fail in the step after them)."""
    if slices == 0:
        return 10**9, 0
    rate = slices * slice_rate
    first_s = draw.expovariate(rate)
    steps = int(first_s / step_s)
    count = 1
    at_s = first_s - steps * step_s
    while (at_s := at_s + draw.expovariate(rate)) < step_s:
        count += 1
    return steps, min(count, slices)


def _handle(
    cluster: Cluster,
    out: list[float],
    slices: int,
    failed: int,
    now: float,
    scale_s: float,
    draw: random.Random,
) -> float:
    """Take failed slices out and let returned ones in; seconds of stall that this costs."""
    if not cluster.elastic:
        return cluster.restart_s if failed else 0.0
    stall = 0.0
    returned = False
    while out and out[0] <= now:
        heapq.heappop(out)
        returned = True
    if returned:
        stall += cluster.up_s
    if failed:
        stall += cluster.down_s
        for _ in range(min(failed, slices - len(out))):
            heapq.heappush(out, now + _return_s(cluster, scale_s, draw))
    return stall


def _return_s(cluster: Cluster, scale_s: float, draw: random.Random) -> float:
    """Exponentiated Weibull by inversion: F(x) = (1 - exp(-(x/scale)^k))^alpha."""
    u: float = draw.random() ** (1 / cluster.return_power)
    factor: float = (-math.log1p(-u)) ** (1 / cluster.return_shape)
    return scale_s * factor


def _return_scale(cluster: Cluster) -> float:
    """The scale at which the distribution above has mean ``return_mean_s`` (midpoint rule)."""
    n = 20_000
    unit = Cluster(
        chips=1,
        learners=1,
        return_shape=cluster.return_shape,
        return_power=cluster.return_power,
    )
    total = 0.0
    for i in range(n):
        u = ((i + 0.5) / n) ** (1 / unit.return_power)
        total += (-math.log1p(-u)) ** (1 / unit.return_shape)
    return cluster.return_mean_s / (total / n)


def _slowest(slices: int, cv: float, draw: random.Random) -> float:
    if cv == 0:
        return 1.0
    return max(0.05, min(draw.gauss(1.0, cv) for _ in range(slices)))


def stepping_shares(stalls: list[list[tuple[float, float]]], horizon_s: float) -> list[float]:
    """Share of time in which exactly n learners step, for n = 0 to all of them."""
    changes = sorted(
        (at, change)
        for life in stalls
        for began, ended in life
        for at, change in ((began, -1), (ended, 1))
    )
    seconds = [0.0] * (len(stalls) + 1)
    stepping, last = len(stalls), 0.0
    for at, change in changes:
        seconds[stepping] += at - last
        stepping, last = stepping + change, at
    seconds[stepping] += horizon_s - last
    return [s / horizon_s for s in seconds]
