"""The smallest experiment that still fails in the same way.

hypothesis does the searching: an experiment is described by what is *taken away* from the one that
failed (faults, settings, learners, precision of the instants), so that hypothesis' notion of simple
is ours, and every candidate is a part of an experiment known to fail.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

Table = dict[str, Any]

KEEP_OF = 8
"""Each part is dropped with one chance in so many, so that a random candidate keeps most."""

_SPARE_PARAMS = (
    "speeds",
    "batches",
    "stale_steps_max",
    "pull_ms_max",
    "heartbeat_ms",
    "silence_ms_max",
    "blocking",
    "merge",
)
_SPARE_OPTIONS = (
    "stall_heals",
    "latency_ms",
    "restart_ms",
    "fsync_ms",
    "clock_skew_ms",
    "clock_drift_ppm",
)


def shrink(
    table: Table, fails: Callable[[Table], bool], *, seed: int, seconds: float = 120.0
) -> Table:
    """The simplest part of ``table`` for which ``fails`` is true; ``table`` if none is simpler.

    ``fails`` must be true for ``table`` itself. Stops looking after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    known: dict[str, bool] = {}

    def condition(candidate: Table) -> bool:
        key = repr(candidate)
        if key not in known:
            known[key] = time.monotonic() < deadline and fails(candidate)
        return known[key]

    # Faults first, one run for each: what is drawn after that is about few faults.
    table = thinned(table, condition)
    try:
        smallest: Table = find(
            parts(table),
            condition,
            settings=settings(
                max_examples=200,
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
            random=Random(seed),
        )
    except NoSuchExample:
        smallest = table
    return _without_spare_faults(smallest, condition)


def thinned(table: Table, condition: Callable[[Table], bool]) -> Table:
    """``table`` without the faults that are not needed for ``condition``; one look at each."""
    at = 0
    while at < len(table["fault"]):
        fewer = {**table, "fault": [f for i, f in enumerate(table["fault"]) if i != at]}
        if condition(fewer):
            table = fewer
        else:
            at += 1
    return table


def _without_spare_faults(table: Table, condition: Callable[[Table], bool]) -> Table:
    """Drop faults one at a time, then two, as long as the rest still fails.

    hypothesis stops at a minimum of its own moves, which may hold a fault or two that only mattered
    before the others went.
    """
    for size in (1, 2):
        for chosen in itertools.combinations(range(len(table["fault"])), size):
            fewer = {**table, "fault": [f for i, f in enumerate(table["fault"]) if i not in chosen]}
            if condition(fewer):
                return _without_spare_faults(fewer, condition)
    return table


@st.composite
def parts(draw: st.DrawFn, table: Table) -> Table:
    """Experiments made from ``table`` by taking away. Simpler draws take away more."""

    def drop() -> bool:
        return draw(st.integers(0, KEEP_OF - 1)) == 0

    out = copy.deepcopy(table)
    params, options = out["target"]["params"], out["runtime_options"]
    out["fault"] = [fault for fault in out["fault"] if not drop()]
    for fault in out["fault"]:
        for name in ("at_s", "for_s"):
            if name in fault and drop():
                fault[name] = max(float(round(fault[name])), 0.5)
    for name in _SPARE_PARAMS:
        if name in params and drop():
            del params[name]
    for name in _SPARE_OPTIONS:
        if name in options and drop():
            del options[name]
    learners = params["learners"]
    fewer = draw(st.integers(1, learners))
    if fewer < learners and not ({"speeds", "batches"} & params.keys()):
        _keep_learners(out, fewer)
    return out


def _keep_learners(table: Table, count: int) -> None:
    """Only the first ``count`` learners stay; faults on the others go, as does what is over."""
    params = table["target"]["params"]
    names = {"syncer", *(f"learner-{i}" for i in range(count))}
    params["learners"] = count
    params["quorum"] = min(params["quorum"], count)
    table["fault"] = [f for f in table["fault"] if set(f["where"]) <= names]
    for name in ("clock_skew_ms", "clock_drift_ppm"):
        if name in table["runtime_options"]:
            kept = {u: v for u, v in table["runtime_options"][name].items() if u in names}
            table["runtime_options"][name] = kept
