"""How long things take in a simulated run, and how honest its disks and clocks are.

The defaults are of the size that real processes on one host show; a twin check replaces them
with the durations of a live run. They come from the spec's ``[runtime_options]`` table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from harness.errors import SpecError


class SimOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations in milliseconds unless the name says otherwise.

    A pair is a range from which each occurrence is drawn evenly, from the run's own seed.
    """

    spawn_ms: tuple[float, float] = (20.0, 60.0)
    """From the start of a process to its first event line."""
    import_ms: tuple[float, float] = (400.0, 800.0)
    compile_ms: tuple[float, float] = (150.0, 400.0)
    """Compiling with a warm cache; see ``cold_compile_ms`` for the first life of a unit."""
    cold_compile_ms: tuple[float, float] = (1000.0, 2000.0)
    syncer_ready_ms: tuple[float, float] = (200.0, 500.0)
    """Imports of a unit that does not train; it compiles nothing."""
    restart_ms: tuple[float, float] = (50.0, 250.0)
    """From a unit's exit until the supervisor starts it again."""
    restart: bool = True
    """Whether dead units are started again at all."""
    latency_ms: tuple[float, float] = (0.1, 0.6)
    """One way, of every message on a healthy link."""
    bandwidth_kb_s: float | None = None
    """Of every healthy link, each direction; None is unlimited."""
    dial_timeout_ms: float = 1000.0
    """How long a dialling unit waits for an answer before it tries anew."""
    backoff_ms: tuple[float, float] = (50.0, 1000.0)
    """First and longest pause between two attempts to connect; it doubles in between."""
    stall_heals: str = "lossless"
    """``lossless``: what was held arrives; ``recreate``: healing closes the connection, as
    recreating a Toxiproxy proxy does; ``either``: drawn for each heal."""
    fsync_ms: tuple[float, float] = (0.2, 2.0)
    """How long a durable write takes; a unit handles nothing else meanwhile."""
    disk: str = "honest"
    """``honest``: what was synced survives. ``lying``: a crash loses the writes of the last
    ``unsynced_ms`` although they were reported done (no protocol can be safe on such a disk)."""
    unsynced_ms: float = 0.0
    step_jitter_ms: float = 1.0
    """Lateness of a paced step's end, drawn evenly from zero to this."""
    step_gap_ms: float = 0.0
    """How much of a paced step's time goes by before the step itself begins (its driver, and
    fragments being adopted); the deadline stays where it is."""
    step_cv: float = 0.0
    """Speed variance: the coefficient of variation of a paced step's duration, drawn from a normal
    distribution for each step. What a step takes beyond its nominal time counts as slowed."""
    load_ms: float | None = None
    """How long a learner takes to load a whole model when it joins; None is the worker's guess."""
    compute_share: float = 0.5
    """Share of a paced step that needs the CPU; a quota below this slows the step."""
    clock_skew_ms: Mapping[str, float] = {}
    """Unit to how far its clock is ahead of the run's."""
    clock_drift_ppm: Mapping[str, float] = {}
    """Unit to how fast its clock gains, in parts per million."""
    stop_grace_ms: float = 5000.0
    """What units get to end in good order when the run closes."""
    lose_in_flight: float = 0.5
    """Probability that a killed unit's last messages, still on their way, are lost with it."""

    def problems(self) -> list[str]:
        """Every value that makes no sense; empty when sound."""
        found = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, tuple) and not 0 <= value[0] <= value[1] < math.inf:
                found.append(f"{name} is {list(value)}: needs 0 <= first <= second, both finite")
            elif isinstance(value, float) and not 0 <= value < math.inf:
                found.append(f"{name} is {value}: must be finite and not negative")
            elif isinstance(value, Mapping):
                found += [
                    f"{name}.{unit} is {by}: must be finite"
                    for unit, by in value.items()
                    if not math.isfinite(by)
                ]
        for name, allowed in (
            ("stall_heals", ("lossless", "recreate", "either")),
            ("disk", ("honest", "lying")),
        ):
            if getattr(self, name) not in allowed:
                found.append(f"{name} is {getattr(self, name)!r}: one of {', '.join(allowed)}")
        if self.bandwidth_kb_s == 0:
            found.append("bandwidth_kb_s is 0: leave it out for unlimited, or use a stall fault")
        if not 0 < self.compute_share <= 1:
            found.append(f"compute_share is {self.compute_share}: needs 0 < share <= 1")
        if self.lose_in_flight > 1:
            found.append(f"lose_in_flight is {self.lose_in_flight}: a probability")
        return found


def sim_options(table: Mapping[str, Any]) -> SimOptions:
    """The options in ``table``; raises :class:`SpecError` naming every mistake it can see."""
    try:
        options = msgspec.convert(dict(table), SimOptions)
    except (msgspec.ValidationError, OverflowError) as error:
        raise SpecError("runtime_options", [str(error)]) from error
    problems = options.problems()
    if problems:
        raise SpecError("runtime_options", problems)
    return options
