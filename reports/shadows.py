"""When another fault already explains what is taken for the trace of one.

A killed learner takes no step and loses its link, so neither shows that it was frozen as well; a
frozen one answers late, which does not show that its link was slow. While a stronger fault acts
(and a little longer, where its traces come late) evidence of that class is *in its shadow* and
counts for the weaker fault only outside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.history import History
from reports.lives import FaultWindow

LATE_NS = 3_000_000_000
"""A broken link or a late answer may be noticed this long after its cause is over."""

_DEAD = 9
"""Strength of what leaves no process: it explains every trace but an exit."""

STATE_KINDS = frozenset({"lose_checkpoint", "corrupt_checkpoint", "torn_write"})
"""Deaths after which what was durable is gone or damaged."""

_DEATHS = STATE_KINDS | {"kill", "kill_group", "terminate", "crash_loop", "oom", "absent"}
_SILENT = ("partition", "partition_oneway", "refuse", "stall", "reset", "flap", "disconnect")
_LINK_STRENGTH: Mapping[str, int] = {
    **dict.fromkeys((*_SILENT, "blackhole"), 4),
    "cut": 3,
    "pause": 5,
    "kill_proxy": 5,
    "latency": 1,
    "bandwidth": 1,
}

STRENGTH: Mapping[str, Mapping[str, int]] = {
    "stopped": {"pause": 4, "hang": 3, "throttle": 2, "straggle": 2},
    "slowed": {"pause": 4, "hang": 3, "straggle": 2, "throttle": 1},
    "compute": {"pause": 4, "throttle": 1, "straggle": 0},
    "link": {**_LINK_STRENGTH, "throttle": 0},
    "unheard": {**_LINK_STRENGTH, "hang": 5, "throttle": 1, "straggle": 1},
    # A thin link delays every message, so it never shows beside a delay that was asked for.
    "pulls": {**_LINK_STRENGTH, "throttle": 2, "latency": 2},
    # Whoever was out for a while builds on what is old by then.
    "old": {
        **dict.fromkeys((*_SILENT, "blackhole", "cut", "pause", "hang"), 3),
        **dict.fromkeys(("straggle", "throttle", "latency", "bandwidth"), 2),
        "stale_update": 1,
        "duplicate_update": 1,
    },
}
"""Class of evidence to the kinds of faults that cause it, and how surely. Only a stronger one puts
another in its shadow, so two equal ones both count."""

_OF_BOTH_ENDS = frozenset({"link", "unheard", "pulls", "old"})
"""Evidence that a fault on the other end of the link, the syncer, explains as well."""


@dataclass(frozen=True)
class Shadow:
    """(begin, end] in ns in which the fault named explains the evidence."""

    begin_ns: int
    end_ns: int
    fault: str


def shadows(history: History, window: FaultWindow, what: str) -> list[Shadow]:
    """The shadows that other executed faults cast on ``window``'s evidence of class ``what``."""
    own = strength(what, window.kind)
    syncers = set(history.syncers) - {window.unit} if what in _OF_BOTH_ENDS else set()
    found = []
    for other in history.faults:
        if other is window or other.executed_ns is None or other.kind == "noop":
            continue
        everybody = other.kind == "kill_proxy" and what in _OF_BOTH_ENDS
        if other.unit != window.unit and other.unit not in syncers and not everybody:
            continue
        if other.kind in _DEATHS and window.kind in _DEATHS:
            continue
        theirs = strength(what, other.kind)
        if other.unit in syncers and other.kind not in _DEATHS and other.kind != "pause":
            continue
        if theirs > own:
            found.append(_of(history, other, what))
    return found


def strength(what: str, kind: str) -> int:
    """How surely a fault of ``kind`` causes evidence of class ``what``; 0 where it does not."""
    if kind in _DEATHS:
        return _DEAD if STRENGTH.get(what) else 0
    return STRENGTH.get(what, {}).get(kind, 0)


def within(at_ns: int, cast: Sequence[Shadow]) -> bool:
    """Whether an instant is in one of the shadows."""
    return any(s.begin_ns <= at_ns <= s.end_ns for s in cast)


def lit_ns(begin_ns: int, end_ns: int, cast: Sequence[Shadow]) -> int:
    """How much of an interval no shadow covers."""
    total, at = max(0, end_ns - begin_ns), begin_ns
    for shadow in sorted(cast, key=lambda s: s.begin_ns):
        low, high = max(at, shadow.begin_ns), min(end_ns, shadow.end_ns)
        if high > low:
            total -= high - low
            at = high
    return total


def _of(history: History, other: FaultWindow, what: str) -> Shadow:
    begin = other.asked_ns if other.asked_ns is not None else other.executed_ns or 0
    end = max(begin, other.last_executed_ns or begin)
    if other.lasting:
        end = max(end, other.until_ns(history.end_ns))
    if other.kind in _DEATHS:
        end = max(end, _back_ns(history, other.unit, begin, end))
    late = LATE_NS if what in _OF_BOTH_ENDS else 0
    return Shadow(begin, end + late, other.fault)


def _back_ns(history: History, unit: str, begin_ns: int, end_ns: int) -> int:
    """When a unit that died in the interval took its next step (or was ready, if it takes none)."""
    lives = history.lives.get(unit, [])
    if not any(
        lf.ended_ns is not None and begin_ns <= lf.ended_ns <= end_ns + LATE_NS for lf in lives
    ):
        return end_ns
    for life in lives:
        if life.begin_ns <= begin_ns or life.ended_by(end_ns):
            continue
        if life.first_step is not None:
            return life.first_step.event.t_ns
        if unit in history.syncers and life.ready_ns is not None:
            return life.ready_ns
    return history.end_ns
