"""The main path, on virtual time: what is journalled, in which order, whatever goes wrong."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.compose import compose
from harness.crew import Crew
from harness.errors import CapabilityError, ControlError
from harness.events import (
    AnyEvent,
    BaselineUnmet,
    FaultAsked,
    FaultEnded,
    FaultExecuted,
    FaultPlanned,
    FaultSkipped,
    HarnessFailed,
    ResidueFound,
    RunEnded,
    RunStarted,
    SteadyState,
    TailEnded,
    WindowEnded,
)
from harness.journal import Journal, read_journal
from harness.rundir import RunDir
from harness.runner import SWITCH_S, Acts, StopFlag, prompt_threads, run, started
from harness.runtimes.base import RunContext
from harness.runtimes.simulated import SimulatedRuntime
from tests.harness.specs import checked

KILL = '[[fault]]\nkind = "kill"\nwhere = "learner-1"\nat_s = 2\n'
PAUSE = '[[fault]]\nkind = "pause"\nwhere = "learner-0"\nat_s = 1\nfor_s = 2\n'


class BrokenRuntime(SimulatedRuntime):
    """A simulated runtime whose machinery fails in one chosen way."""

    broken = ""

    def apply(self, unit: str, resource: Any, setting: Any) -> str:
        if self.broken == "apply" or (self.broken == "undo" and setting is False):
            raise ControlError(f"the engine did not answer within 5 s ({resource} of {unit})")
        return super().apply(unit, resource, setting)

    def open(self, target: Any) -> None:
        if self.broken == "open":
            raise RuntimeError("a bug of ours")
        super().open(target)


def executed(
    tmp_path: Path, faults: str, *, broken: str = "", stop: StopFlag | None = None, **head: Any
) -> list[AnyEvent]:
    """The journal of a simulated run."""

    def make(context: RunContext) -> SimulatedRuntime:
        runtime = BrokenRuntime(context)
        runtime.broken = broken
        return runtime

    found = checked(faults, **head)
    experiment = compose(found, run="r1", directory=tmp_path, make_runtime=make)
    rundir = RunDir.create(tmp_path / "run", found.spec, "r1", found.seed)
    run(experiment, rundir, stop=stop)
    text = read_journal(rundir.journal)
    assert text.problems == ()
    return list(text.events)


def of(events: list[AnyEvent], *kinds: type) -> list[Any]:
    return [e for e in events if isinstance(e, kinds)]


def test_a_run_goes_through_its_phases_in_order(tmp_path: Path) -> None:
    events = executed(tmp_path, KILL + PAUSE)
    order = [
        type(e).__name__
        for e in of(events, RunStarted, SteadyState, WindowEnded, TailEnded, ResidueFound, RunEnded)
    ]
    assert order == [
        "RunStarted",
        "SteadyState",
        "WindowEnded",
        "TailEnded",
        "ResidueFound",
        "RunEnded",
    ]
    assert events[-1].status == "completed"  # type: ignore[union-attr]
    assert of(events, HarnessFailed) == []


def test_intent_comes_before_the_act_and_the_end_after(tmp_path: Path) -> None:
    events = executed(tmp_path, PAUSE)
    facts = of(events, FaultPlanned, FaultAsked, FaultExecuted, FaultEnded)
    assert [type(e) for e in facts] == [FaultPlanned, FaultAsked, FaultExecuted, FaultEnded]
    steady = of(events, SteadyState)[0].t_ns
    assert facts[0].planned_at_ns == steady + 1_000_000_000
    assert facts[1].holds[0].resource == "frozen"
    assert facts[3].t_ns == steady + 3_000_000_000


def test_no_baseline_no_fault(tmp_path: Path) -> None:
    events = executed(tmp_path, KILL + PAUSE, baseline_s_max=0.2)
    assert len(of(events, BaselineUnmet)) == 1
    assert of(events, FaultExecuted, FaultAsked, SteadyState) == []
    assert [e.kind for e in of(events, FaultSkipped)] == ["kill", "pause"]
    assert all("baseline not met" in e.why for e in of(events, FaultSkipped))


def test_what_never_became_due_is_skipped_by_name(tmp_path: Path) -> None:
    late = '[[fault]]\nkind = "kill"\nwhere = "learner-1"\nat_step = 100000\n'
    skipped = of(executed(tmp_path, late), FaultSkipped)
    assert [e.why for e in skipped] == [
        "global step 100000 was not reached within the fault window"
    ]


def test_a_fault_without_an_end_is_healed_at_the_window_s_end(tmp_path: Path) -> None:
    events = executed(tmp_path, PAUSE.replace("for_s = 2\n", ""))
    ended, window = of(events, FaultEnded)[0], of(events, WindowEnded)[0]
    assert ended.t_ns <= window.t_ns


def test_our_own_failure_is_ours_and_the_run_goes_on(tmp_path: Path) -> None:
    events = executed(tmp_path, PAUSE + KILL, broken="apply")
    failed = of(events, HarnessFailed)
    assert failed[0].where == "pause on learner-0"
    assert "did not answer" in failed[0].why
    assert [e.kind for e in of(events, FaultExecuted)] == ["kill"], "the other fault still ran"
    assert of(events, RunEnded)[0].status == "completed"


def test_an_undo_that_fails_is_said(tmp_path: Path) -> None:
    failed = of(executed(tmp_path, PAUSE, broken="undo"), HarnessFailed)
    assert any(e.where == "undo of pause on learner-0" for e in failed)


def test_a_bug_in_our_machinery_still_ends_the_journal(tmp_path: Path) -> None:
    events = executed(tmp_path, KILL, broken="open")
    assert of(events, HarnessFailed)[0].why == "RuntimeError: a bug of ours"
    assert (events[-1].status, of(events, FaultExecuted)) == ("error", [])  # type: ignore[union-attr]


def test_a_signal_heals_and_says_so(tmp_path: Path) -> None:
    events = executed(tmp_path, PAUSE, stop=StopFlag(signal.SIGTERM))
    assert events[-1].status == "interrupted"  # type: ignore[union-attr]
    assert of(events, FaultExecuted) == []


def test_a_missing_capability_stops_it_before_it_starts(tmp_path: Path) -> None:
    class Poor(SimulatedRuntime):
        """Offers nothing but killing."""

        offers = frozenset({"kill"})

    with pytest.raises(CapabilityError) as caught:
        compose(checked(PAUSE + KILL), run="r1", directory=tmp_path, make_runtime=Poor)
    assert len(caught.value.problems) == 1
    for word in ("pause", "freeze", "simulated"):
        assert word in caught.value.problems[0]


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        executed(tmp_path / name, KILL + PAUSE)
    a, b = ((tmp_path / n / "run" / "journal.jsonl").read_bytes() for n in ("a", "b"))
    assert a == b


def test_threads_are_prompt_during_a_run_and_as_before_after_it() -> None:
    before = sys.getswitchinterval()
    with prompt_threads():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before


class LiveRuntime(SimulatedRuntime):
    """Says that it is live, with a proxy that answers as late as the test wants, or never well."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.killed = threading.Event()
        self.refuses = False

    def apply(self, unit: str, resource: Any, setting: Any) -> str:
        if resource == "link" and not setting.healthy:
            assert self.killed.wait(30), "the kill waited 30 s for a link fault"
            if self.refuses:
                raise ControlError("no proxy server")
        return super().apply(unit, resource, setting)

    def kill(self, unit: str) -> str:
        note = super().kill(unit)
        self.killed.set()
        return note


CUT = '[[fault]]\nkind = "partition"\nwhere = "learner-1"\nat_s = 2\nfor_s = 2\n'


def coincident(tmp_path: Path, *, refuses: bool) -> list[AnyEvent]:
    """The journal of a run in which a link fault can only be carried out after a kill that is due
    at the same instant and was asked for later."""

    def make(context: RunContext) -> LiveRuntime:
        runtime = LiveRuntime(context)
        runtime.refuses = refuses
        return runtime

    found = checked(CUT + KILL)
    experiment = compose(found, run="r1", directory=tmp_path, make_runtime=make)
    rundir = RunDir.create(tmp_path / "run", found.spec, "r1", found.seed)
    with Journal(rundir.journal) as journal:
        acts = Acts(experiment, journal, lambda _event: None, StopFlag())
        acts.crew = Crew(experiment.runtime.clock, together=True)
        acts.log(started(experiment))
        assert acts.guarded() == ("completed", "")
        acts.close()
    return list(read_journal(rundir.journal).events)


def test_live_a_kill_does_not_wait_for_a_link_fault(tmp_path: Path) -> None:
    events = coincident(tmp_path, refuses=False)
    assert of(events, HarnessFailed) == []
    kinds = [e.kind for e in of(events, FaultAsked)]
    assert kinds == ["partition", "kill"], "asked for in the plan's order"
    assert sorted(e.kind for e in of(events, FaultExecuted)) == ["kill", "partition"]
    (ended,) = of(events, FaultEnded)
    assert ended.kind == "partition"
    asked = {e.fault: events.index(e) for e in of(events, FaultAsked)}
    assert all(asked[e.fault] < events.index(e) for e in of(events, FaultExecuted))


def test_live_one_fault_s_failure_is_not_the_other_s(tmp_path: Path) -> None:
    events = coincident(tmp_path, refuses=True)
    assert [e.where for e in of(events, HarnessFailed)] == ["partition on learner-1"]
    assert [e.kind for e in of(events, FaultSkipped)] == ["partition"]
    assert [e.kind for e in of(events, FaultExecuted)] == ["kill"]
