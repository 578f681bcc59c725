"""Gates: the bounds that an experiment asks for, judged against the report's numbers.

An unknown value is never ok. A gate whose value is unknown makes the run inconclusive; one whose
value is on the wrong side of its bound makes it a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reports.healing import PERCENTILE_N_MIN, Summary
from reports.schema import Faults, GateRow, Goodput, Network, Quality


@dataclass(frozen=True)
class Figures:
    """What gates may look at."""

    goodput: Goodput
    healing: Summary
    faults: Faults
    quality: Quality
    network: Network
    detect_s_max: float | None


@dataclass(frozen=True)
class Gate:
    """One bound that a spec may set in ``[gate]``."""

    name: str
    better: Literal["at least", "at most"]
    unit: str
    """ratio, s, bytes or nats."""
    help: str
    value: Callable[[Figures], float | None]
    floor: Callable[[Figures], float | None] = lambda figures: None
    """For "at most" gates: a proven lower bound of an unknown value."""
    why_unknown: Callable[[Figures], str] = lambda figures: "the journal does not say"


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _no_percentile(figures: Figures) -> str:
    n, unhealed = figures.healing.n, figures.healing.unhealed
    if n < PERCENTILE_N_MIN:
        return f"needs n >= {PERCENTILE_N_MIN} faults that took a unit out, there were {n}"
    return f"{unhealed} of {n} never healed"


def _no_max(figures: Figures) -> str:
    if figures.healing.n == 0:
        return "no fault took a unit out"
    return f"{figures.healing.unhealed} of {figures.healing.n} never healed"


def _unhealed_wait(figures: Figures) -> float | None:
    return _seconds(figures.healing.at_least_ns) if figures.healing.unhealed else None


def _lost_ratio(figures: Figures) -> float | None:
    tokens = figures.goodput.tokens
    return tokens.lost / tokens.trained if tokens.lost is not None and tokens.trained else None


def _other_ratio(figures: Figures) -> float | None:
    total = figures.goodput.allocated_s
    return figures.goodput.ledger_s["other"] / total if total else None


GATES: dict[str, Gate] = {
    g.name: g
    for g in (
        Gate(
            "goodput_min",
            "at least",
            "ratio",
            "share of allocated learner time in useful steps",
            lambda f: f.goodput.ratio,
        ),
        Gate(
            "merged_goodput_min",
            "at least",
            "ratio",
            "goodput that counts a step by the share of parameters it was merged into",
            lambda f: f.goodput.merged_ratio,
        ),
        Gate(
            "uptime_min",
            "at least",
            "ratio",
            "share of the window with at least one learner stepping",
            lambda f: f.goodput.uptime_ratio,
        ),
        Gate(
            "stall_s_max",
            "at most",
            "s",
            "longest time with no learner stepping",
            lambda f: f.goodput.longest_stall_s,
        ),
        Gate(
            "healing_p50_s_max",
            "at most",
            "s",
            "median self-healing latency (needs 5 faults)",
            lambda f: _seconds(f.healing.p50_ns),
            why_unknown=_no_percentile,
        ),
        Gate(
            "healing_p95_s_max",
            "at most",
            "s",
            "95th percentile of self-healing latency (needs 5 faults)",
            lambda f: _seconds(f.healing.p95_ns),
            why_unknown=_no_percentile,
        ),
        Gate(
            "healing_max_s",
            "at most",
            "s",
            "longest self-healing latency",
            lambda f: _seconds(f.healing.max_ns),
            floor=_unhealed_wait,
            why_unknown=_no_max,
        ),
        Gate(
            "detect_s_max",
            "at most",
            "s",
            "longest time until another unit acted on a loss",
            lambda f: f.detect_s_max,
        ),
        Gate(
            "loss_max",
            "at most",
            "nats",
            "loss at the end of the window: held-out where the run is evaluated, else training",
            lambda f: f.quality.final_loss,
        ),
        Gate(
            "loss_gap_max",
            "at most",
            "ratio",
            "how much larger the loss is than the control's at equal tokens, as a share of it",
            lambda f: f.quality.gap_ratio,
            why_unknown=lambda f: "there is no control to compare with at equal tokens",
        ),
        Gate(
            "accuracy_min",
            "at least",
            "ratio",
            "share of held-out next bytes that were the model's likeliest one",
            lambda f: f.quality.final_accuracy,
            why_unknown=lambda f: "the run was not evaluated, or its trainer has no accuracy",
        ),
        Gate(
            "lost_tokens_max",
            "at most",
            "ratio",
            "share of trained tokens that merges overwrote or that died with their learner",
            _lost_ratio,
        ),
        Gate(
            "overrun_max",
            "at most",
            "ratio",
            "share of paced steps whose compute alone took too long",
            lambda f: f.goodput.overrun_ratio,
        ),
        Gate(
            "other_max",
            "at most",
            "ratio",
            "share of learner time that nothing explains",
            _other_ratio,
        ),
        Gate(
            "effective_faults_min",
            "at least",
            "faults",
            "faults that showed in their victim's behaviour",
            lambda f: float(f.faults.effective),
        ),
        Gate(
            "bytes_per_step_max",
            "at most",
            "bytes",
            "traffic of both directions per learner step",
            lambda f: f.network.bytes_per_step,
        ),
    )
}
"""Every gate; the one visible table."""


def judge_gates(asked: Mapping[str, Any], figures: Figures) -> list[GateRow]:
    """One row per bound in ``asked`` (the spec's ``[gate]`` table), in its order."""
    return [_judge(name, bound, figures) for name, bound in asked.items() if bound is not None]


def _judge(name: str, asked: Any, figures: Figures) -> GateRow:
    gate = GATES.get(name)
    if gate is None or isinstance(asked, bool) or not isinstance(asked, int | float):
        known = ", ".join(GATES)
        why = f"no such gate (there are: {known})" if gate is None else "its bound is no number"
        return GateRow(name=name, value=None, bound=0.0, ok=False, unit="", better="", why=why)
    bound = float(asked)
    value = gate.value(figures)
    why = gate.help
    if value is None:
        why = f"unknown: {gate.why_unknown(figures)}"
        floor = gate.floor(figures)
        if floor is not None and floor > bound:
            # Unknown, but already proven to be too much: that is a miss and not a doubt.
            value = floor
            why = f"{gate.why_unknown(figures)}; this is how long they were waited for"
    if value is None:
        ok = False
    else:
        ok = value >= bound if gate.better == "at least" else value <= bound
    return GateRow(
        name=name, value=value, bound=bound, ok=ok, unit=gate.unit, better=gate.better, why=why
    )
