"""What the live line says, and for how long."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.commands.progress import Progress
from harness.compose import compose
from harness.events import AnyEvent, FaultExecuted, SteadyState, Step, WindowEnded
from tests.harness.specs import checked

KILL = '[[fault]]\nkind = "kill"\nat_s = 2\n'


def steps(*seconds: int) -> list[AnyEvent]:
    """A step at each of those instants."""
    return [
        Step(
            t_ns=s * 10**9,
            unit="learner-0",
            incarnation=1,
            step=s,
            tokens=64,
            loss=1.0,
            compute_ns=1,
            began_at_ns=0,
        )
        for s in seconds
    ]


def said(folder: Path, faults: str, events: list[AnyEvent]) -> list[str]:
    """The lines of a run in real time, without a terminal."""
    experiment = compose(checked(faults), run="r", directory=folder / "out")
    live: Any = SimpleNamespace(clock=None)
    out = io.StringIO()
    with Progress(replace(experiment, runtime=live), out, quiet=False) as progress:
        for event in events:
            progress.observe(event)
    return out.getvalue().splitlines()


def test_an_event_s_text_does_not_stay(tmp_path: Path) -> None:
    steady = SteadyState(t_ns=10 * 10**9, why="")
    lines = said(tmp_path, KILL, [steady, *steps(12, 16, 21)])
    assert lines[0].endswith("steady state reached")
    assert len(lines) == 3
    assert not any("steady" in line for line in lines[1:])


def test_without_faults_nothing_is_called_a_fault_or_healed(tmp_path: Path) -> None:
    events: list[AnyEvent] = [SteadyState(t_ns=10**9, why=""), *steps(7)]
    events += [WindowEnded(t_ns=9 * 10**9), *steps(20)]
    lines = said(tmp_path, "", events)
    assert "trains  6/12 s" in lines[1]
    assert "quiet tail" in lines[-1]
    assert not any("fault" in line or "healed" in line for line in lines)


def test_with_faults_they_are_counted_and_healed(tmp_path: Path) -> None:
    hit = FaultExecuted(t_ns=3 * 10**9, fault="f1", kind="kill", unit="learner-1")
    events: list[AnyEvent] = [SteadyState(t_ns=10**9, why=""), hit, WindowEnded(t_ns=9 * 10**9)]
    lines = said(tmp_path, KILL, events)
    assert "faults  2/12 s" in lines[1]
    assert lines[1].endswith("1 faults  f1 kill on learner-1")
    assert lines[-1].endswith("everything healed")
