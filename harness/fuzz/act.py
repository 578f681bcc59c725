"""One experiment in virtual time, from its table to its events, as ``diloco-chaos run`` does it.

Two acts: in the fault window anything may break but nothing forbidden may happen; in the quiet
tail everything is healed and the run must converge. What it then still waits for is asked of the
nodes themselves, because a journal only shows what happened and not what was missing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness.runner
from harness.compose import check, compose
from harness.events import AnyEvent, TailEnded
from harness.fuzz.scratch import scratch
from harness.journal import MemoryJournal
from harness.rundir import RunDir
from harness.runtimes.simulated import SimulatedRuntime
from harness.spec import read_table

Table = Mapping[str, Any]
"""An experiment as TOML would give it."""


@dataclass(frozen=True)
class Ran:
    """What one run left: its events in order, its journal's bytes, and what it still awaits."""

    events: tuple[AnyEvent, ...]
    journal: bytes
    pending: Mapping[str, str]
    """Unit to what its node was waiting for when the quiet tail ended; empty for no reason."""


def perform(table: Table, seed: int, name: str = "fuzz") -> Ran:
    """Run ``table`` with ``seed`` in the simulated runtime.

    Raises :class:`harness.errors.SpecError` when the table is no sound experiment.
    """
    draft = read_table({**table, "runtime": "simulated"}, name, "", gates={})
    checked = check(draft, seed)
    # Where units' logs would go, if one of them crashed.
    with scratch() as base, tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as at:
        folder = Path(at)
        experiment = compose(checked, run=name, directory=folder)
        events: list[AnyEvent] = []
        pending: dict[str, str] = {}

        def observe(event: AnyEvent) -> None:
            events.append(event)
            if type(event) is TailEnded and isinstance(experiment.runtime, SimulatedRuntime):
                pending.update(experiment.runtime.pending())

        journal = MemoryJournal()
        harness.runner.run(experiment, RunDir(folder), observer=observe, journal=journal)
        return Ran(tuple(events), journal.data, pending)
