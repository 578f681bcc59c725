"""Controls: run first, measured into the journal, judged from there; or why there is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.events import ControlMeasured, Evaluated
from harness.journal import read_journal
from harness.suite import Suite, read
from reports.together import TOGETHER

HEAD = 'title = "t"\nruntime = "simulated"\nquiet_tail_s = 4\nbaseline_s_max = 60\n'
PARAMS = (
    'learners = 3, trainer = "quadratic", fragments = 4, sync_every = 4, step_time_s = 0.1, '
    "evaluate_every = 8"
)
KILL = '[[fault]]\nkind = "kill"\nwhere = "one"\nat_s = 3\n'


def spec(
    path: Path, *, head: str = "", params: str = PARAMS, faults: str = KILL, gate: str = ""
) -> Path:
    """An experiment of twelve seconds with one kill."""
    text = f'{head}{HEAD}duration_s = 12\n[target]\nname = "diloco"\nparams = {{ {params} }}\n'
    path.write_text(text + faults + gate)
    return path


def control_of(out: Path) -> dict[str, Any]:
    report = json.loads((out / "report.json").read_text())
    found: dict[str, Any] = next(i for i in report["invariants"] if i["name"] == "control")
    return found


def measured(out: Path) -> ControlMeasured:
    events = read_journal(out / "journal.jsonl").events
    (found,) = [e for e in events if isinstance(e, ControlMeasured)]
    return found


def go(*arguments: str | Path) -> int:
    return main(["run", *map(str, arguments), "--seed", "3", "--quiet"])


def test_true_means_the_same_without_its_faults(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = spec(tmp_path / "a.toml", head="control = true\n", gate="[gate]\nloss_gap_max = 0.1\n")
    assert go(made, "--out", out) == 0
    said = measured(out)
    assert (said.name, said.outcome, said.conclusive) == ("a-control", "passed", True)
    events = read_journal(out / "control" / "journal.jsonl").events
    evaluated = [e for e in events if isinstance(e, Evaluated)]
    assert [(p.tokens, p.loss) for p in said.points] == [
        (e.tokens, e.loss) for e in evaluated[: len(said.points)]
    ]
    report = json.loads((out / "control" / "report.json").read_text())
    assert report["faults"]["planned"] == 0
    assert report["gates"] == []
    assert control_of(out)["valid"] is True
    quality = json.loads((out / "report.json").read_text())["quality"]
    assert quality["control"] == "a-control"
    assert quality["gap_ratio"] < 0.1
    assert quality["control_curve"]


def test_a_named_experiment_can_be_the_control(tmp_path: Path) -> None:
    spec(tmp_path / "calm.toml", faults="")
    made = spec(tmp_path / "a.toml", head='control = "calm.toml"\n')
    assert go(made, "--out", tmp_path / "out") in (0, 1)
    assert measured(tmp_path / "out").name == "calm"


def test_a_finished_run_can_be_named_instead(tmp_path: Path) -> None:
    calm = spec(tmp_path / "calm.toml", faults="")
    assert go(calm, "--out", tmp_path / "calm") == 0
    made = spec(tmp_path / "a.toml", head="control = true\n")
    assert go(made, "--out", tmp_path / "out", "--control", tmp_path / "calm") in (0, 1)
    assert measured(tmp_path / "out").name == "calm"
    assert not (tmp_path / "out" / "control").exists()


def test_the_journal_with_its_control_is_the_same_bytes_again(tmp_path: Path) -> None:
    made = spec(tmp_path / "a.toml", head="control = true\n")
    for out in ("one", "two"):
        go(made, "--out", tmp_path / out)
    one, two = ((tmp_path / out / "journal.jsonl").read_bytes() for out in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("head", "params", "said"),
    [
        ('control = "nowhere"\n', PARAMS, "no such file and no built-in experiment"),
        ("control = true\n", PARAMS.partition(", evaluate")[0], "a is never evaluated"),
        ("control = 3\n", PARAMS, "control: expected true, or the name"),
    ],
)
def test_mistakes_show_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str, params: str, said: str
) -> None:
    made = spec(tmp_path / "a.toml", head=head, params=params)
    assert go(made, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"quadratic"', '"lm"', "trainer is 'lm' there and 'quadratic' here"),
        ("learners = 3", "learners = 3, sequence = 32", "sequence is 32 there and 64 here"),
        ("learners = 3", 'learners = 3, data = "synthetic"', "data is 'synthetic' there and"),
    ],
)
def test_losses_of_another_kind_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    other = spec(tmp_path / "other.toml", faults="", params=PARAMS.replace(old, new))
    made = spec(tmp_path / "a.toml", head='control = "other.toml"\n')
    assert go(made, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    # The same of a finished run; what its journal's first line says is enough to refuse it.
    prepared = go(other, "--out", tmp_path / "other") if '"lm"' not in new else None
    if prepared is not None:
        alone = spec(tmp_path / "b.toml")
        assert go(alone, "--out", tmp_path / "out", "--control", tmp_path / "other") == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_parallel_training_has_the_losses_of_a_language_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = spec(tmp_path / "a.toml", head='control = "quality-spmd"\n')
    assert go(made, "--out", tmp_path / "out") == 2
    assert "trainer is 'lm' there and 'quadratic' here" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_is_the_trainings_failure(tmp_path: Path) -> None:
    """It made the journal's line unreadable, and that was called the harness's own error."""
    path = tmp_path / "run"
    assert go(spec(tmp_path / "a.toml"), "--out", path) == 0
    lines = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    last = [event for event in lines if event["event"] == "evaluated"][-1]
    last["loss"] = None
    (path / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lines))
    assert main(["report", str(path)]) == 0
    report = json.loads((path / "report.json").read_text())
    assert report["verdict"]["exit_status"] == 1
    finite = next(i for i in report["invariants"] if i["name"] == "finite")
    assert finite["valid"] is False
    assert f"after global step {last['clock']} is not finite" in finite["why"]


@pytest.mark.parametrize("which", ["last", "all"])
def test_a_control_whose_loss_is_not_finite_was_evaluated_all_the_same(
    tmp_path: Path, which: str
) -> None:
    """It was called never evaluated; and by its curve before, a run was near to it."""
    calm = tmp_path / "calm"
    assert go(spec(tmp_path / "calm.toml", faults=""), "--out", calm) == 0
    lines = [json.loads(line) for line in (calm / "journal.jsonl").read_text().splitlines()]
    evaluated = [event for event in lines if event["event"] == "evaluated"]
    for event in evaluated if which == "all" else evaluated[-1:]:
        event["loss"] = None
    (calm / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lines))
    out = tmp_path / "out"
    assert go(spec(tmp_path / "a.toml"), "--out", out, "--control", calm) == 3
    assert not measured(out).ended_finite
    assert control_of(out)["why"] == "the control's (calm) last evaluation has no finite loss"


def test_a_control_that_is_not_there_is_the_command_lines_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = spec(tmp_path / "a.toml")
    assert go(made, "--out", tmp_path / "out", "--control", tmp_path / "nowhere") == 2
    assert "there is no run here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_control_that_proves_nothing_makes_the_run_inconclusive(tmp_path: Path) -> None:
    never = PARAMS.replace("evaluate_every = 8", "evaluate_every = 8, quorum = 3")
    dead = '[[fault]]\nkind = "absent"\nwhere = ["learner-0"]\nat_s = 0\nfor_s = 15\n'
    spec(tmp_path / "dead.toml", params=never, faults=dead)
    text = (tmp_path / "dead.toml").read_text().replace("baseline_s_max = 60", "baseline_s_max = 1")
    (tmp_path / "dead.toml").write_text(text)
    made = spec(tmp_path / "a.toml", head='control = "dead.toml"\n')
    assert go(made, "--out", tmp_path / "out") == 3
    assert control_of(tmp_path / "out")["valid"] == "unknown"


# --- suites -------------------------------------------------------------------------------------


def suite_of(tmp_path: Path, more: str = "") -> Path:
    spec(tmp_path / "calm.toml", faults="")
    spec(tmp_path / "chaos.toml", head='control = "calm"\n')
    path = tmp_path / "s.toml"
    path.write_text(f'title = "s"\ntogether = ["chaos.toml", "calm.toml"]\n{more}')
    return path


def test_a_member_is_the_control_of_another_without_running_again(tmp_path: Path) -> None:
    go(suite_of(tmp_path), "--out", tmp_path / "out")
    assert measured(tmp_path / "out" / "chaos").name == "calm"
    assert not (tmp_path / "out" / "chaos" / "control").exists()


def test_a_member_whose_control_is_of_another_loss_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was found when the control had run."""
    path = suite_of(tmp_path)
    spec(tmp_path / "calm.toml", faults="", params=PARAMS.replace("quadratic", "lm"))
    assert go(path, "--out", tmp_path / "out") == 2
    assert "trainer is 'lm' there" in capsys.readouterr().err
    spec(tmp_path / "chaos.toml", head='control = "nowhere"\n')
    assert go(path, "--out", tmp_path / "out") == 2
    assert "chaos: no such file and no built-in experiment" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


GROUP = '[[group]]\ntitle = "pair"\narms = ["calm", "chaos"]\ngap_max = { chaos = 0.5 }\n'


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_seeds_give_one_table_with_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    path = suite_of(tmp_path, f"seeds = [4, 5]\n{GROUP}")
    out = tmp_path / "out"
    assert main(["run", str(path), "--out", str(out), "--jobs", jobs]) == 0
    said = capsys.readouterr().out
    assert "4 of 4: chaos, seed" in said
    assert "bound: chaos at most +50.0% in the mean: met" in said
    for seed in (4, 5):
        assert measured(out / f"seed-{seed}" / "chaos").name == "calm"
    kept = json.loads((out / "suite.json").read_text())
    (group,) = kept["groups"]
    assert [arm["name"] for arm in group["arms"]] == ["calm", "chaos"]
    assert kept["seeds"] == [4, 5]
    loss = group["arms"][1]["loss"]
    assert loss["low"] < loss["mean"] < loss["high"]

    assert main(["gate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == kept
    (out / "suite.txt").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "suite.txt").read_text() in said


def test_seeds_of_the_command_line_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = suite_of(tmp_path)
    out = tmp_path / "out"
    assert main(["run", str(path), "--out", str(out), "--seeds=-9,9", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["seeds"] == [-9, 9]
    assert main(["gate", str(out), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["seeds"] == [-9, 9]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("seeds = [1, 1]", "seeds: one is named twice"),
        (GROUP, "group: needs seeds"),
        (
            'seeds = [1]\n[[group]]\ntitle = "g"\narms = ["calm", "x"]',
            "group 1: x is no member (they are: chaos, calm)",
        ),
        (
            f"seeds = [1]\n{GROUP.replace('chaos = 0.5', 'calm = 0.5')}",
            "group 1: gap_max.calm is not compared with calm there",
        ),
    ],
)
def test_mistakes_of_groups_are_named(more: str, said: str) -> None:
    from harness.errors import SpecError

    text = f'title = "s"\ntogether = ["chaos.toml", "calm.toml"]\n{more}'
    with pytest.raises(SpecError) as error:
        read(text, "s", TOGETHER)
    assert said in str(error.value)


def test_live_runs_are_not_run_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = suite_of(tmp_path)
    given = ["run", str(path), "--seeds", "1", "--jobs", "2", "--runtime", "process"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 2
    assert "would take each other's processors" in capsys.readouterr().err


def test_seeds_belong_to_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = spec(tmp_path / "a.toml")
    assert main(["run", str(made), "--seeds", "1,2", "--out", str(tmp_path / "out")]) == 2
    assert "is no suite" in capsys.readouterr().err


def test_without_groups_all_members_are_one() -> None:
    found: Suite = read('title = "s"\ntogether = ["a", "b"]\nseeds = [1]', "s", TOGETHER)
    (group,) = found.compared()
    assert (group.title, group.arms) == ("s", ("a", "b"))


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_nobody_goes_on_for_a_suite_that_was_killed(tmp_path: Path) -> None:
    path = suite_of(tmp_path, "seeds = [1, 2, 3, 4]\n")
    for name in ("calm", "chaos"):
        file = tmp_path / f"{name}.toml"
        file.write_text(file.read_text().replace("duration_s = 12", "duration_s = 90000"))
    command = [sys.executable, "-m", "harness", "run", str(path), "--jobs", "2"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    ) as suite:
        try:
            deadline = time.monotonic() + 120
            while len(list((tmp_path / "out").glob("seed-*/*/journal.jsonl"))) < 2:
                assert time.monotonic() < deadline, "no two runs began; look at the command"
                assert suite.poll() is None
                time.sleep(0.1)
            # The pool's own bookkeeper is one of them and ends by itself.
            children = children_of(suite.pid)
        finally:
            os.kill(suite.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while left := [pid for pid in children if running(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)
