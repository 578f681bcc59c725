"""Synthetic tapes: failures of simulated chips that real training then follows (paper section E.1).

The paper runs a discrete-event simulation of its cluster first and lets real training follow the
event tape that comes out of it. So here: an excerpt of the timelines of ``harness.scale.chips``
becomes an experiment for the simulated runtime, in which the real syncer and learners meet these
disruptions under virtual time and compute real gradients. Its journal is the tape.

How a timeline maps:

* A stall (a slice leaves or comes back, and its learner reconfigures) freezes that learner for as
  long. Its link is not given up meanwhile: the learner stands still, nobody has died.
* Slices that are out make the learner's chip slower, by their mean share over the excerpt: as many
  tokens per second as with smaller batches at an unchanged pace.
* One second of the timeline is one virtual second, and a step takes the chips' ``step_s``.

Goodput of the run counts a learner's own chip as nominal, so **goodput of the chips = goodput of
the run x mean share of slices that are in while they train** (x pace, with a speed variance). Both
are of the same time: the excerpt and the run's quiet tail after it, in which nothing stalls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.scale.chips import Cluster, LearnerTimeline, learner_timeline
from harness.seeds import stream

SETTLED_S = 6 * 3600.0
"""Where an excerpt begins: by then as many slices are out as ever after."""

TAIL_S = 40.0
"""The run's quiet tail, in which nothing stalls."""

LENGTH_S_MAX = 7 * 24 * 3600.0
"""Nobody trains on more than a week of it."""

LEARNERS_MAX = 64
"""More than that the target does not host."""


@dataclass(frozen=True)
class Excerpt:
    """Some minutes of a cluster's life, from :data:`SETTLED_S` on. Seconds since its beginning."""

    cluster: Cluster
    seed: int
    length_s: float
    stalls: tuple[tuple[tuple[float, float], ...], ...]
    """Of each learner: (began, ended)."""
    speeds: tuple[float, ...]
    """Of each learner: its pace times the mean share of its slices that are in."""

    @property
    def stalled_s(self) -> float:
        """Of all learners together."""
        return sum(end - begin for life in self.stalls for begin, end in life)

    @property
    def goodput(self) -> float:
        """Of the chips, in this excerpt alone, without the run's tail."""
        return self._done_s(self.length_s) / (len(self.speeds) * self.length_s)

    @property
    def goodput_window(self) -> float:
        """Of the chips, in the excerpt and the run's tail: ``expected`` x ``speed``."""
        return self._done_s(self.window_s) / (len(self.speeds) * self.window_s)

    @property
    def speed(self) -> float:
        """Mean of ``speeds``, each for as long as its learner trains: what the run's goodput is
        multiplied with to be the chips'."""
        trained_s = len(self.speeds) * self.window_s - self.stalled_s
        return self._done_s(self.window_s) / trained_s

    @property
    def expected(self) -> float:
        """Goodput of the run, tail included."""
        return 1 - self.stalled_s / (len(self.speeds) * self.window_s)

    @property
    def window_s(self) -> float:
        """What the run's goodput is of: the excerpt and the quiet tail."""
        return self.length_s + TAIL_S

    def _done_s(self, window_s: float) -> float:
        """Of all learners together: ``window_s`` without their stalls, at their speeds."""
        return sum(
            speed * (window_s - sum(end - begin for begin, end in life))
            for speed, life in zip(self.speeds, self.stalls, strict=True)
        )


def excerpt(cluster: Cluster, seed: int, length_s: float) -> Excerpt:
    """``length_s`` seconds of the very timelines that ``chips.simulate`` draws.

    Raises ``ValueError`` naming every impossible parameter, and where nothing stalls.
    """
    problems = cluster.problems()
    if cluster.learners > LEARNERS_MAX:
        problems.append(f"at most {LEARNERS_MAX} learners can be trained, got {cluster.learners}")
    if not 0 < length_s <= LENGTH_S_MAX:
        problems.append(
            f"the tape's length must be positive and at most {LENGTH_S_MAX:g} s, got {length_s:g} s"
        )
    if problems:
        raise ValueError("; ".join(problems))
    lives = [
        learner_timeline(cluster, SETTLED_S + length_s, stream(seed, "chips", cluster.chips, m))
        for m in range(cluster.learners)
    ]
    stalls = tuple(tuple(_within(life, length_s)) for life in lives)
    if not any(stalls):
        raise ValueError(f"no learner stalls within {length_s:g} s: a longer tape is needed")
    speeds = tuple(life.pace * _mean_share(life, SETTLED_S + length_s) for life in lives)
    return Excerpt(cluster, seed, length_s, stalls, speeds)


def _within(life: LearnerTimeline, length_s: float) -> list[tuple[float, float]]:
    """Stalls that begin in the excerpt, cut off at its end."""
    return [
        (began - SETTLED_S, min(ended - SETTLED_S, length_s))
        for began, ended in life.stalls
        if SETTLED_S <= began < SETTLED_S + length_s
    ]


def _mean_share(life: LearnerTimeline, end_s: float) -> float:
    first = bisect_right(life.shares, SETTLED_S, key=lambda s: s[0]) - 1
    shares = [(max(at, SETTLED_S), share) for at, share in life.shares[first:] if at < end_s]
    ends = [*shares, (end_s, 0.0)]
    return sum(share * (after - at) for (at, share), (after, _) in pairwise(ends)) / (
        end_s - SETTLED_S
    )


def trace(found: Excerpt) -> str:
    """The stalls as a trace (see ``harness.tracefile``), for learners by their own names."""
    cluster = found.cluster
    rows = sorted(
        (at, order, f"learner-{number}", what)
        for number, life in enumerate(found.stalls)
        for stall in life
        for order, (at, what) in enumerate(zip(stall, ("down", "up"), strict=True))
    )
    return "\n".join(
        [
            f"# about: stalls of {cluster.learners} learners on {cluster.chips} simulated chips",
            f"# drawn-as: seed {found.seed}, from second {SETTLED_S:g} of it on",
            "time_s,unit,event",
            *(f"{at:.3f},{unit},{what}" for at, _, unit, what in rows),
            "",
        ]
    )


def experiment(found: Excerpt, trace_file: str) -> Mapping[str, Any]:
    """The experiment that follows ``found``; its trace lies beside it in ``trace_file``."""
    cluster = found.cluster
    return {
        "title": f"{cluster.learners} learners on {cluster.chips:,} simulated chips, trained",
        "runtime": "simulated",
        "duration_s": found.length_s,
        "quiet_tail_s": TAIL_S,
        "baseline_s_max": 600.0,
        "seed": found.seed,
        "target": {
            "name": "diloco",
            "params": {
                "learners": cluster.learners,
                "quorum": cluster.quorum,
                "grace": True,
                "trainer": "lm",
                "step_time_s": cluster.step_s,
                "speeds": [round(speed, 6) for speed in found.speeds],
                # A learner that reconfigures is not dead: its link outlives any stall.
                "heartbeat_ms": 5_000,
                "silence_ms_max": 600_000,
            },
        },
        "fault": [{"kind": "pause", "schedule": {"process": "trace", "file": trace_file}}],
        "gate": {"goodput_min": round(found.expected - 0.02, 4)},
    }
