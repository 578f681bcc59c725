"""The paper's tables 4 and 5 as experiments for the simulated runtime, with its own numbers.

Nothing here runs or reads reports: these are tables of what to run (as TOML would give them) and
of what the paper printed. ``diloco-chaos simulate --sweep NAME`` brings the two together.

**Mixed speeds** (table 5, section 5.4): 8 learners, 4 of each of two kinds of chip, the slowest
18 % behind the fastest, and 10 % speed variance on all. Assumed, because the paper does not say:
the variance is a normal distribution over single steps; K = 8 without grace waits in every step
for the merge that is due (the streaming way), which is what makes it slow; a step takes 1 s.

**Scavenging** (table 4, section 5.3): 4 learners, joined by 1, 2, 4 or 12 more for half of the
FLOPs. With nothing lost the same tokens take ``0.5 + 0.5 / (1 + more / 4)`` of the time. Assumed: a
night and then a day; whoever is away is frozen, and comes back with what it held, so that its first
cycle of fragments is refused or overwritten: that is the cost of coming back that is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Table = dict[str, Any]

# --- table 5 ------------------------------------------------------------------------------------

SLOWER = 0.18
"""How far the slowest kind of chip trails the fastest."""
VARIANCE = 0.10
"""Speed variance of every chip."""
MIXED_SECONDS = 1200.0


@dataclass(frozen=True)
class Mixed:
    """One row of table 5: a quorum, with or without grace, and what the paper says of it."""

    quorum: int
    grace: bool
    blocking: bool = False
    paper_goodput: int | None = None
    """Percent; None for rows that the paper does not have."""
    paper_text: float | None = None
    """Text score: what hearing hardly anybody costs shows here and not in goodput."""
    paper_vision: float | None = None


TABLE_5: Sequence[Mixed] = (
    Mixed(8, False, True, 84, 54.4, 37.6),
    Mixed(1, False, False, 100, 51.4, 25.7),
    Mixed(1, True, False, 100, 55.3, 37.0),
)
QUORUMS: Sequence[Mixed] = tuple(
    Mixed(quorum, grace) for grace in (False, True) for quorum in (1, 2, 4, 6, 8)
)
"""The same cluster over all quorums, never blocking."""


def mixed_table(row: Mixed, seconds: float = MIXED_SECONDS) -> Table:
    """The experiment of one row."""
    params = _params(8) | {
        "speeds": [1.0] * 4 + [round(1.0 - SLOWER, 2)] * 4,
        "quorum": row.quorum,
        "grace": row.grace,
        "blocking": row.blocking,
    }
    return _table("mixed speeds", params, seconds) | {"runtime_options": {"step_cv": VARIANCE}}


# --- table 4 ------------------------------------------------------------------------------------

BASE_LEARNERS = 4
SCAVENGING_SECONDS = 4800.0
"""How long the 4 learners alone take for the work: the time that everything is a share of."""


@dataclass(frozen=True)
class Burst:
    """One column of table 4."""

    more: int
    """Learners that join the 4 for half of the FLOPs."""
    paper_decoupled: float
    """Training time as a share of the 4 learners' alone."""
    paper_data_parallel: float

    @property
    def bound(self) -> float:
        """The time with nothing lost: half of the work at the base rate, half at the higher one."""
        return 0.5 + 0.5 / (1 + self.more / BASE_LEARNERS)


TABLE_4: Sequence[Burst] = (
    Burst(0, 1.00, 1.00),
    Burst(1, 0.90, 1.07),
    Burst(2, 0.83, 1.09),
    Burst(4, 0.75, 1.02),
    Burst(12, 0.62, 0.80),
)


def burst_table(burst: Burst, seconds: float = SCAVENGING_SECONDS) -> Table:
    """The experiment of one column; ``seconds`` is what the 4 learners alone would take."""
    params = _params(BASE_LEARNERS + burst.more) | {"quorum": 1, "grace": True}
    night_s = 0.5 * seconds
    evening_s = night_s + night_s / (1 + burst.more / BASE_LEARNERS)
    end_s = 1.1 * seconds
    others = [f"learner-{BASE_LEARNERS + i}" for i in range(burst.more)]
    # They leave again in the evening, so whatever is still to do then goes on at the base rate.
    faults = [
        {"kind": "pause", "where": others, "at_s": 0.0, "for_s": night_s},
        {"kind": "pause", "where": others, "at_s": evening_s},
    ]
    return _table("scavenging", params, end_s) | {"fault": faults if others else []}


def _params(learners: int) -> Table:
    # H = P = 24 and tau = 2 are the paper's training settings and the target's defaults. With steps
    # of a second, heartbeats of a second are dense enough.
    return {
        "learners": learners,
        "trainer": "scripted",
        "step_time_s": 1.0,
        "heartbeat_ms": 1000,
        "silence_ms_max": 5000,
    }


def _table(title: str, params: Table, seconds: float) -> Table:
    return {
        "title": title,
        "duration_s": seconds,
        "quiet_tail_s": 0.0,
        # Without grace it takes minutes until every learner was heard about every fragment.
        "baseline_s_max": 5000.0,
        "target": {"name": "diloco", "params": params},
    }
