"""What the README states, measured: each module has ``measure() -> list[Figure]``.

``python -m tests.bench`` runs all of them, ``python -m tests.bench chips_simpy`` those that are
named. Ratios are taken within one run, on one machine, so that they mean something elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured number beside its bar."""

    name: str
    value: float
    unit: str
    """Of the value: s, MB, x, runs/min, ..."""
    bar: str
    """The bar in words, for example ``<= 3 s``; empty when there is none."""
    ok: bool
    """Whether the value meets the bar; True when there is none."""
