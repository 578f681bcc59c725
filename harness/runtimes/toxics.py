"""From a link's condition to the toxics that bring it about; refuses what no server checks."""

from __future__ import annotations

import math

from faults.base import LinkState

Toxics = dict[str, tuple[str, str, dict[str, int]]]
"""Toxic name to (type, stream, attributes)."""


def toxics_for(state: LinkState) -> Toxics:
    """The toxics that put a link into ``state``; ``refused`` is no toxic.

    Raises ``ValueError`` naming a value that no link can have.
    """
    _check(state)
    wanted: list[tuple[str, str, dict[str, int]]] = []
    if state.silent_up:
        wanted.append(("timeout", "upstream", {"timeout": 0}))
    if state.silent_down:
        wanted.append(("timeout", "downstream", {"timeout": 0}))
    if state.cut_bytes is not None:
        wanted.append(("limit_data", "upstream", {"bytes": state.cut_bytes}))
    for stream in ("upstream", "downstream"):
        if state.reset:
            wanted.append(("reset_peer", stream, {"timeout": 0}))
        if state.stalled or state.bandwidth_kb_s is not None:
            rate = 0 if state.stalled else max(1, round(state.bandwidth_kb_s or 0))
            wanted.append(("bandwidth", stream, {"rate": rate}))
        if state.latency_ms:
            wanted.append(("latency", stream, {"latency": round(state.latency_ms), "jitter": 0}))
    return {f"{kind}_{stream}": (kind, stream, values) for kind, stream, values in wanted}


def _check(state: LinkState) -> None:
    if not (math.isfinite(state.latency_ms) and 0 <= state.latency_ms <= 3_600_000):
        raise ValueError(f"latency_ms is {state.latency_ms}; it lies between 0 and 3600000")
    rate = state.bandwidth_kb_s
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"bandwidth_kb_s is {rate}; it is above 0 (a standstill is stalled)")
    if state.cut_bytes is not None and state.cut_bytes < 1:
        raise ValueError(f"cut_bytes is {state.cut_bytes}; it is at least 1")


def ends_links(toxic: tuple[str, str, dict[str, int]]) -> bool:
    """Whether taking the toxic off ends connections, or may hang."""
    kind, _, values = toxic
    return kind in ("timeout", "reset_peer", "limit_data") or values.get("rate") == 0
