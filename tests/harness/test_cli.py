"""The command line as a user or a CI step sees it: exit statuses, words, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import COMMANDS, main
from tests.harness.specs import spec_text

KILL = '[[fault]]\nkind = "kill"\nwhere = "learner-1"\nat_s = 2\n'
FILES = ("journal.jsonl", "report.json", "report.html", "summary.md", "junit.xml", "metrics.prom")


def spec(tmp_path: Path, faults: str = KILL, **head: float) -> str:
    path = tmp_path / "exp.toml"
    path.write_text(spec_text(faults, **head))
    return str(path)


def test_a_pass_exits_0_and_leaves_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["run", spec(tmp_path), "--seed", "3", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("seed 3, run ")
    assert f"repeat with: diloco-chaos run {spec(tmp_path)} --runtime simulated --seed 3" in text
    assert text.rstrip().endswith(f"report: {out / 'report.html'}")
    assert all((out / name).stat().st_size > 0 for name in FILES)
    assert (out / "spec.toml").read_text() == Path(spec(tmp_path)).read_text()
    assert json.loads((out / "spec.resolved.json").read_text())["seed"] == 3
    assert "python" in json.loads((out / "host.json").read_text())


@pytest.mark.parametrize(
    ("faults", "head", "status", "outcome"),
    [
        (KILL, {}, 0, "passed"),
        (KILL + "[gate]\ngoodput_min = 0.999\n", {}, 1, "deviated"),
        (
            '[[fault]]\nkind = "straggle"\nwhere = "learner-1"\nat_s = 2\nfor_s = 3\n'
            "factor = 1.0\n",
            {},
            3,
            "no-effect",
        ),
        (KILL, {"baseline_s_max": 0.1}, 3, "baseline-not-met"),
        ('[[fault]]\nkind = "kill"\nwhere = "learner-1"\nat_step = 99999\n', {}, 3, "no-effect"),
    ],
)
def test_exit_statuses(
    tmp_path: Path, faults: str, head: dict[str, float], status: int, outcome: str
) -> None:
    out = tmp_path / "out"
    given = ["run", spec(tmp_path, faults, **head), "--seed", "3", "--out", str(out), "--quiet"]
    assert main(given) == status
    report = json.loads((out / "report.json").read_text())
    assert report["verdict"]["outcome"] == outcome
    assert report["verdict"]["conclusive"] == (status in (0, 1))
    assert main(["gate", str(out)]) == status, "the gate judges as the run did"


def test_report_computes_the_same_bytes_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["run", spec(tmp_path), "--seed", "3", "--out", str(out)]) == 0
    before = {name: (out / name).read_bytes() for name in FILES}
    for name in FILES[1:]:
        (out / name).unlink()
    assert main(["report", str(out)]) == 0
    assert {name: (out / name).read_bytes() for name in FILES} == before


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", spec(tmp_path), "--seed", "3", "--out", str(tmp_path / "o"), "--json"]
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["run", "no-such-thing"], "no such file and no built-in experiment"),
        (["run", "kill-one", "--set", "learners"], "is not KEY=VALUE"),
        (["run", "kill-one", "--set", "learners=0"], "learners"),
        (["run", "kill-one", "--set", "quorum=9"], "quorum is 9"),
        (["run", "kill-one", "--set", 'data="/no/such/corpus"'], "/no/such/corpus"),
        (["report", "/no/such/run"], "there is no run here"),
        (["bandwidth", "--datacenters", "1"], "datacenters must be at least 2"),
        (["simulate", "--chips", "10"], "need at least"),
        (["simulate", "--mtbi-chip-s", "0"], "mtbi_chip_s must be positive"),
    ],
)
def test_bad_input_is_one_clear_error(
    argv: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(argv)
    error = capsys.readouterr().err
    assert status in (2, 4)
    assert part in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_foresaw_is_the_harness_own_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr("harness.commands.simulate.simulate", crash)
    assert main(["simulate"]) == 4
    assert "nobody thought of it" in capsys.readouterr().err


def test_an_unwritable_or_used_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["run", spec(tmp_path), "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot write to" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["run", spec(tmp_path), "--out", str(out)]) == 0
    before = (out / "journal.jsonl").read_bytes()
    assert main(["run", spec(tmp_path), "--out", str(out)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (out / "journal.jsonl").read_bytes() == before


def test_lists_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert {"kill", "partition"} <= set(tables["faults"])
    assert {"kill-one", "mixed-storm", "noop"} <= set(tables["experiments"])
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "diloco-chaos experiment"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert COMMANDS[command] in capsys.readouterr().out


UNFIT = """
title = "Faults that cannot apply"
duration_s = 5
[target]
name = "diloco"
params = { learners = 2, fragments = 2, sync_every = 2, trainer = "scripted" }
[[fault]]
kind = "straggle"
where = "syncer"
factor = 2.0
at_s = 1
[[fault]]
kind = "torn_write"
where = "learner-1"
at_s = 1
[[fault]]
kind = "kill"
where = "proxy"
at_s = 1
[[fault]]
kind = "disk_full"
at_s = 1
"""


def test_faults_that_cannot_apply_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "unfit.toml"
    spec.write_text(UNFIT)
    assert main(["run", str(spec), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "f1.where: syncer: straggle cannot apply: it takes no training steps" in error
    assert "f2.where: learner-1: torn_write cannot apply: it keeps no durable state" in error
    assert "f3.where: proxy: kill cannot apply" in error
    assert "f4" not in error, "drawn among those to which it applies"
    assert not (tmp_path / "run").exists()
