"""The target as the harness sees it, and its twin in virtual time under faults."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import targets
from harness.compose import check, compose
from harness.errors import SpecError
from harness.events import Step, Waited, WorldEnded, WorldFormed
from harness.journal import read_journal
from harness.rundir import RunDir
from harness.runner import run
from harness.spec import read_text
from reports.build import analyse
from reports.gate import GATES
from reports.history import History, read_history
from targets.spmd.target import create


def test_it_is_in_the_table() -> None:
    target = targets.load("spmd")({"workers": 3}, 1)
    assert [u.name for u in target.units()] == ["launcher", "worker-0", "worker-1", "worker-2"]
    assert [u.info.role for u in target.units()] == ["syncer", "learner", "learner", "learner"]
    assert target.fragments() == ()
    assert target.module() == "targets.spmd.serve"


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(SpecError) as error:
        create(
            {"workers": 0, "workers_min": 9, "batsch": 3, "variant": "magic", "data": "/nowhere"},
            1,
        )
    text = str(error.value)
    for part in ("workers", "batsch: unknown parameter (did you mean batch?)", "variant"):
        assert part in text


def test_rules_over_several_parameters() -> None:
    with pytest.raises(SpecError, match="workers_min is 5 but there are only 2"):
        create({"workers": 2, "workers_min": 5}, 1)
    with pytest.raises(SpecError, match="at least two heartbeats"):
        create({"heartbeat_ms": 600, "silence_ms_max": 1000}, 1)
    with pytest.raises(SpecError, match="neither cpython-docs"):
        create({"data": "/no/such/text"}, 1)


def test_unknown_units_are_refused() -> None:
    with pytest.raises(KeyError):
        create({}, 1).node("worker-9")


# --- in virtual time ----------------------------------------------------------------------------


def simulated(tmp_path: Path, faults: str, **params: Any) -> History:
    settings = {"workers": 3, "step_time_s": 0.1, "checkpoint_every": 10, **params}
    listed = ", ".join(
        f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in settings.items()
    )
    text = f"""
title = "test"
runtime = "simulated"
duration_s = 20
quiet_tail_s = 6
[target]
name = "spmd"
params = {{ {listed} }}
{faults}
"""
    checked = check(read_text(text, "test", gates=GATES), 3)
    experiment = compose(checked, run="r", directory=tmp_path)
    directory = RunDir.create(tmp_path, checked.spec, "r", 3)
    run(experiment, directory)
    return read_history(tmp_path)


KILL = """
[[fault]]
kind = "kill"
where = ["worker-1"]
at_s = 4.55
"""


def test_one_death_ends_all_and_costs_what_was_done_since_the_checkpoint(tmp_path: Path) -> None:
    history = simulated(tmp_path, KILL)
    analysis = analyse(history)
    assert analysis.report.verdict.outcome == "passed", analysis.report.verdict.reasons
    assert [w.event.step for w in history.worlds] == [0, 50]
    assert len(history.exits) >= 3
    lost_ns = {one.unit: one.totals()["lost"] for one in analysis.ledger.learners}
    ends = max(
        s.event.step
        for s in history.steps("worker-0")
        if s.event.t_ns < history.worlds[1].event.t_ns
    )
    for unit, ns in lost_ns.items():
        # The steps behind the checkpoint, and the one that was running.
        assert (ends - 50) * 0.1e9 <= ns <= (ends - 50 + 1.2) * 0.1e9, unit
    assert analysis.report.goodput.uptime_ratio is not None
    assert analysis.report.goodput.uptime_ratio < 1


def test_steps_are_in_lockstep(tmp_path: Path) -> None:
    history = simulated(tmp_path, KILL)
    by_step: dict[int, set[int]] = {}
    for unit in history.learners:
        for seen in history.steps(unit):
            by_step.setdefault(seen.event.step, set()).add(seen.event.t_ns // 1_000_000)
    spans = [max(times) - min(times) for times in by_step.values() if len(times) > 1]
    again = [step for step, times in by_step.items() if max(times) - min(times) > 200]
    assert spans
    assert all(step > 50 for step in again), "only what was rolled back is done twice"


def test_a_frozen_worker_holds_everybody_up(tmp_path: Path) -> None:
    pause = '[[fault]]\nkind = "pause"\nwhere = ["worker-1"]\nat_s = 4\nfor_s = 2\n'
    history = simulated(tmp_path, pause)
    assert len(history.worlds) == 1
    waits = [
        w.event.t_ns - w.event.began_at_ns
        for life in history.lives["worker-0"]
        for w in life.waited
    ]
    assert 1.8e9 < max(waits) < 2.2e9


def test_a_worker_frozen_for_too_long_ends_the_world(tmp_path: Path) -> None:
    pause = '[[fault]]\nkind = "pause"\nwhere = ["worker-1"]\nat_s = 4\nfor_s = 8\n'
    history = simulated(tmp_path, pause, silence_ms_max=2000)
    (ended,) = [w.event for w in history.worlds_ended]
    assert ended.because == "worker-1"
    assert analyse(history).report.verdict.outcome == "passed"


def test_a_slow_chip_slows_all(tmp_path: Path) -> None:
    slow = '[[fault]]\nkind = "straggle"\nwhere = ["worker-2"]\nat_s = 4\nfor_s = 6\nfactor = 3.0\n'
    history = simulated(tmp_path, slow)
    gaps = [b.event.t_ns - a.event.t_ns for a, b in pairwise(list(history.steps("worker-0")))]
    assert sum(0.28e9 < gap < 0.33e9 for gap in gaps) >= 15
    assert (
        sum(w.event.t_ns - w.event.began_at_ns for w in history.lives["worker-0"][0].waited) > 3e9
    )


def test_the_elastic_one_goes_on_without_a_frozen_worker(tmp_path: Path) -> None:
    pause = '[[fault]]\nkind = "pause"\nwhere = ["worker-1"]\nat_s = 2\nfor_s = 10\n'
    history = simulated(tmp_path, pause, variant="elastic", silence_ms_max=1000, regroup_s=0.5)
    sizes = [len(w.event.members) for w in history.worlds]
    assert sizes == [3, 2, 3]
    first, small, whole = [w.event for w in history.worlds]
    assert small.members == ("worker-0", "worker-2")
    assert whole.step > small.step, "the returner's old checkpoint is not gone back to"
    assert [w.event.planned for w in history.worlds_ended] == [False, True]
    lost = [one.totals()["lost"] for one in analyse(history).ledger.learners]
    assert first.step == 0
    assert lost[0] < 1.5e9, "leaving at a checkpoint costs nothing"
    assert analyse(history).report.verdict.outcome == "passed"


def test_the_launchers_death_is_survived(tmp_path: Path) -> None:
    kill = '[[fault]]\nkind = "kill"\nwhere = ["launcher"]\nat_s = 4\n'
    history = simulated(tmp_path, kill)
    worlds = [w.event.world for w in history.worlds]
    assert worlds == sorted(set(worlds)), "numbers of worlds do not repeat"
    last = max(s.event.t_ns for s in history.steps("worker-0"))
    assert history.end_ns - last < 1e9, "training goes on at the end"
    analysis = analyse(history)
    assert analysis.report.verdict.outcome == "passed", analysis.report.verdict.reasons
    assert analysis.healing[0].reintegrate_ns is not None


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    simulated(tmp_path / "a", KILL)
    simulated(tmp_path / "b", KILL)
    assert (tmp_path / "a/journal.jsonl").read_bytes() == (
        tmp_path / "b/journal.jsonl"
    ).read_bytes()


def test_world_events_survive_the_journal(tmp_path: Path) -> None:
    simulated(tmp_path, KILL)
    kinds = [type(e) for e in read_journal(tmp_path / "journal.jsonl").events]
    assert kinds.count(WorldFormed) == 2
    assert kinds.count(WorldEnded) == 1
    assert Step in kinds
    assert Waited in kinds
