"""The counter target: its node alone, in the simulator's terms, and as a real process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import targets
from harness.errors import SpecError
from harness.events import AnyEvent, Joined, Step, UnitEnded, UnitReady, UnitStarted, decode
from targets.base import Effect, Node, Note, Save, Started, Stop, StopAsked, Work, WorkDone
from targets.counter import Count, Counted, create, params_schema
from targets.unit_config import UnitConfig, write_unit_config


def started(incarnation: int = 1, step: int = 0, unit: str = "counter-0", **params: Any) -> Node:
    node = create(params, 1).node(unit)
    node.handle(Started(incarnation, {"step": step} if step else {}), 5)
    return node


def count(node: Node, step: int) -> list[Effect]:
    return node.handle(WorkDone(Count(step), Counted(began_at_ns=10)), 60)


def test_a_unit_joins_and_counts() -> None:
    node = create({"tokens": 7}, 1).node("counter-1")
    joined, work = node.handle(Started(1), 5)
    assert isinstance(joined, Note)
    assert isinstance(joined.event, Joined)
    assert work == Work(Count(1))
    saved, noted, again = count(node, 1)
    assert (saved, again) == (Save("step", 1), Work(Count(2)))
    assert isinstance(noted, Note)
    step = noted.event
    assert isinstance(step, Step)
    assert (step.unit, step.step, step.began_at_ns, step.t_ns) == ("counter-1", 1, 10, 60)
    assert (step.tokens, step.nominal_ns) == (7, 50_000_000)
    assert node.deadline_ns() is None


def test_a_later_life_goes_on_where_the_last_one_was() -> None:
    effects = create({}, 1).node("counter-0").handle(Started(2, {"step": 41}), 5)
    assert effects[-1] == Work(Count(42))


def test_asked_to_stop_it_says_so_and_stops() -> None:
    note, stop = started().handle(StopAsked(10**9), 70)
    assert isinstance(note, Note)
    assert isinstance(note.event, UnitEnded)
    assert stop == Stop("asked to stop", 0)


@pytest.mark.parametrize(
    ("unit", "incarnation", "step", "exits"),
    [
        ("counter-0", 1, 3, True),
        ("counter-0", 1, 2, False),
        ("counter-0", 2, 3, False),
        ("counter-1", 1, 3, False),
    ],
)
def test_it_exits_unasked_only_as_told(unit: str, incarnation: int, step: int, exits: bool) -> None:
    last = count(started(incarnation, unit=unit, exit_at_step=3), step)[-1]
    assert (last == Stop("had enough", 3)) is exits


def test_a_mute_unit_never_starts() -> None:
    effects = create({"mute": True}, 1).node("counter-0").handle(Started(1), 5)
    assert [type(e) for e in effects] == [Note]
    assert len(create({"mute": True}, 1).node("counter-1").handle(Started(1), 5)) == 2


def test_steady_after_enough_steps_of_everybody() -> None:
    steady = create({"units": 2, "steady_steps": 2}, 1).steady()
    for unit in ("counter-0", "counter-0", "counter-0", "counter-1"):
        steady.observe(Step(t_ns=1, unit=unit, incarnation=1, step=1, began_at_ns=0, tokens=1))
    assert steady.verdict() == (False, "steps still missing: counter-1 (1)")
    steady.observe(Step(t_ns=1, unit="counter-1", incarnation=1, step=2, began_at_ns=0, tokens=1))
    assert steady.verdict()[0]


def test_all_mistakes_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        create({"units": 0, "step_time_s": 0, "unit": 3}, 1)
    assert len(caught.value.problems) == 3
    assert set(params_schema()["properties"]) == set(create({}, 1).params)


def test_what_it_consists_of() -> None:
    target = create({"units": 3}, 1)
    assert [u.name for u in target.units()] == ["counter-0", "counter-1", "counter-2"]
    assert target.fragments() == ()
    assert target.worker("counter-0").run(Count(1)) == Counted()
    assert target.worker("counter-0").cost_ns(Count(1)) == 50_000_000
    assert targets.load("counter") is create
    with pytest.raises(KeyError, match="counter-3"):
        target.node("counter-3")


# --- the real process ---------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    def begin(**params: Any) -> subprocess.Popen[bytes]:
        target = create({"step_time_s": 0.02, **params}, 1)
        config = UnitConfig(
            run="r", token="t", unit="counter-0", role="learner", target="counter", seed=1,
            params=dict(target.params), state_dir=str(tmp_path / "state"),
            control_file=str(tmp_path / "control"), cache_dir=str(tmp_path / "cache"),
        )  # fmt: skip
        path = tmp_path / "unit.json"
        write_unit_config(path, config)
        command = [sys.executable, "-m", target.module(), str(path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    return begin


def next_event(process: subprocess.Popen[bytes]) -> AnyEvent:
    """The unit's next line; ends with the unit, which every caller also kills or stops."""
    assert process.stdout is not None
    return decode(process.stdout.readline())


@pytest.mark.live
def test_a_killed_process_resumes_its_count_and_ends_when_asked(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = start()
    kinds = [type(next_event(process)) for _ in range(4)]
    assert kinds == [UnitStarted, UnitReady, Joined, Step]
    process.kill()
    rest = [decode(line) for line in process.communicate(timeout=10)[0].splitlines()]
    last = max([1, *(e.step for e in rest if isinstance(e, Step))])

    process = start()
    again = next_event(process)
    assert isinstance(again, UnitStarted)
    assert again.incarnation == 2
    next_event(process)
    joined, step = next_event(process), next_event(process)
    assert isinstance(joined, Joined)
    assert isinstance(step, Step)
    assert joined.step in (last, last + 1)  # saved before it is journalled
    assert step.step == joined.step + 1
    assert step.t_ns - step.began_at_ns >= 10_000_000
    process.send_signal(signal.SIGTERM)
    lines = process.communicate(timeout=10)[0].splitlines()
    assert isinstance(decode(lines[-1]), UnitEnded)
    assert process.returncode == 0


@pytest.mark.live
def test_a_process_that_had_enough_exits_with_3(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = start(exit_at_step=2)
    lines = process.communicate(timeout=20)[0].splitlines()
    assert isinstance(decode(lines[-1]), UnitEnded)
    assert process.returncode == 3
