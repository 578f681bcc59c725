"""A real world of two processes under a kill and a freeze, through the harness."""

from __future__ import annotations

import pytest

from harness.compose import check, compose
from harness.rundir import RunDir
from harness.runner import run
from harness.spec import read_text
from reports.build import analyse
from reports.gate import GATES
from reports.history import History, read_history

pytestmark = [pytest.mark.slow, pytest.mark.live]

SPEC = """
title = "test"
duration_s = 16
quiet_tail_s = 6
baseline_s_max = 300
[target]
name = "spmd"
params = { workers = 2, step_time_s = 0.2, batch = 2, checkpoint_every = 5, silence_ms_max = 2000 }
[[fault]]
kind = "kill"
where = ["worker-1"]
at_s = 1.7
[[fault]]
kind = "pause"
where = ["worker-0"]
at_s = 9
for_s = 4
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    directory = tmp_path_factory.mktemp("spmd")
    checked = check(read_text(SPEC, "test", gates=GATES), 3)
    experiment = compose(checked, run="spmd-live-test", directory=directory)
    run(experiment, RunDir.create(directory, checked.spec, "spmd-live-test", 3))
    return read_history(directory)


def test_the_run_explains_itself(history: History) -> None:
    report = analyse(history).report
    assert [w.event.members for w in history.worlds][:2] == [("worker-0", "worker-1")] * 2
    broken = [i for i in report.invariants if i.valid is False]
    assert broken == []
    assert report.residue.processes == []
    assert report.faults.effective == 2


def test_a_death_is_noticed_at_once_and_costs_the_steps_since_the_checkpoint(
    history: History,
) -> None:
    killed = next(f for f in history.faults if f.kind == "kill")
    ended = history.worlds_ended[0].event
    assert ended.because == "worker-1"
    survivor = next(s.event for s in history.exits if s.event.unit == "worker-0")
    assert survivor.code == 75
    assert killed.executed_ns is not None
    assert survivor.t_ns - killed.executed_ns < 10e9, "a collective must not hang on the dead"
    again = history.worlds[1].event
    assert again.step % 5 == 0
    lost = [s for s in history.steps("worker-0") if s.event.t_ns < again.t_ns]
    assert again.step <= max(s.event.step for s in lost)
    starts = {
        life.joined.event.digests["state"]
        for unit in history.learners
        for life in history.lives[unit]
        if life.joined is not None and life.joined.event.step == again.step
    }
    assert len(starts) == 1, "both go on from the same state"


def test_a_frozen_peer_does_not_hold_the_others_for_ever(history: History) -> None:
    ended = [w.event for w in history.worlds_ended if w.event.because == "worker-0"]
    assert len(ended) == 1
    assert "heard nothing" in ended[0].why
    assert len(history.worlds) == 3, "after the thaw they train on"
    assert history.worlds[2].event.step >= history.worlds[1].event.step


def test_the_replicas_have_the_same_loss(history: History) -> None:
    losses: dict[tuple[int, int], set[float | None]] = {}
    for unit in history.learners:
        for life in history.lives[unit]:
            for seen in life.steps:
                key = (life.incarnation or 0, seen.event.step)
                losses.setdefault(key, set()).add(seen.event.loss)
    assert len(losses) > 20
    assert all(len(found) == 1 for found in losses.values())
