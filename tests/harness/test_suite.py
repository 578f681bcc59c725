"""Suites: read with every mistake, run with one seed, judged together, judged again from disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import suite
from harness.__main__ import main
from harness.commands.run import prepare
from harness.errors import SpecError
from reports.together import TOGETHER
from tests.harness.specs import spec_text

KILL = '[[fault]]\nkind = "kill"\nwhere = "one"\nat_s = 2\n'
GROUP = (
    'title = "x"\ntogether = ["a", "b"]\nseeds = [1]\n[[group]]\ntitle = "g"\narms = ["a", "b"]\n'
)
SPMD = 'name = "spmd"\nparams = { workers = 3, step_time_s = 0.1 }\n'


def folder(tmp_path: Path, gate: float = 1.1) -> Path:
    """A suite of a decoupled and an SPMD experiment of three units each."""
    text = spec_text(KILL, duration_s=12)
    (tmp_path / "decoupled.toml").write_text(text)
    head, _, rest = text.partition('name = "diloco"')
    (tmp_path / "spmd.toml").write_text(head + SPMD + rest[rest.index("[[fault]]") :])
    path = tmp_path / "both.toml"
    path.write_text(
        'title = "both"\ntogether = ["decoupled.toml", "spmd.toml"]\n'
        f"[gate]\ngoodput_ratio_min = {gate}\n"
    )
    return path


def test_built_in_suites_name_built_in_experiments() -> None:
    assert "headline" in suite.names()
    for name in suite.names():
        found = suite.find(name, TOGETHER)
        assert found is not None
        for member in found.together:
            prepare(member, 7)


def test_the_headline_kills_the_same_numbers_at_the_same_instants() -> None:
    drawn = [
        [(p.kind, p.at_ns, p.unit.rpartition("-")[2]) for p in prepare(name, 11).planned]
        for name in ("headline-decoupled", "headline-spmd")
    ]
    assert len(drawn[0]) > 5
    assert drawn[0] == drawn[1]


def test_an_experiment_is_no_suite(tmp_path: Path) -> None:
    assert suite.find("kill-one", TOGETHER) is None
    assert suite.find("no-such-thing", TOGETHER) is None
    folder(tmp_path)
    assert suite.find(str(tmp_path / "spmd.toml"), TOGETHER) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('title = "x"\ntogether = ["a"]', "together: "),
        ('together = ["a", "b"]', "title: missing"),
        ('title = "x"\ntogether = ["a", "b"]\nspeed = 1', "speed: unknown key"),
        ('title = "x"\ntogether = ["a", "b"]\n[gate]\ngoodput_min = 1', "unknown gate of a suite"),
        ('title = "x"\ntogether = ["a/c.toml", "c"]', "c is named twice"),
        ('title = "x"\ntogether = ["a", "b"]\nseeds = [true]', "expected a number, got True"),
        ('title = "x"\ntogether = ["a", "b"]\nseed = true', "expected a number, got True"),
        ('title = "x"\ntogether = ["a", "b"]\n[gate]\ngap = true', "expected a number, got True"),
        (f"{GROUP}gap_max = {{ b = true }}", "group.0.gap_max.b: expected a number, got True"),
        (f"{GROUP}gap_max = {{ b = inf }}", "group.0.gap_max.b: input should be a finite number"),
        (f"{GROUP}gap_max = {{ b = nan }}", "group.0.gap_max.b: input should be a finite number"),
        (f'{GROUP}gap_max = {{ b = "1" }}', "group.0.gap_max.b: expected a number, got '1'"),
        ('title = "x"\ntogether = ["a", "b"]\nseed = inf', "seed: input should be a finite number"),
        ('title = "x"\ntogether = ["a", "b"]\nseeds = [nan]', "seeds.0: input should be a finite"),
        ('title = "x"\ntogether = ["a", "b"]\n[gate]\nloss_ratio_max = inf', "a finite number"),
    ],
)
def test_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as error:
        suite.read(text, "s", TOGETHER)
    assert problem in str(error.value)


def test_all_run_with_one_seed_and_end_on_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["run", str(folder(tmp_path)), "--seed", "4", "--quiet", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.count("seed 4, run ") == 2
    assert "gate goodput_ratio_min: ×" in text
    assert f"side by side: {out / 'compare.html'}" in text
    for member in ("decoupled", "spmd"):
        assert (out / member / "report.html").exists()
    page = (out / "compare.html").read_text()
    assert 'href="decoupled/report.html"' in page
    assert 'href="spmd/report.html"' in page

    assert main(["gate", str(out), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)
    assert kept == json.loads((out / "suite.json").read_text())
    assert set(kept["runs"]) == {"decoupled", "spmd"}
    before = (out / "compare.html").read_bytes()
    (out / "compare.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "compare.html").read_bytes() == before


def test_a_missed_gate_of_the_suite_exits_1(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = folder(tmp_path, gate=50)
    assert main(["run", str(path), "--seed", "4", "--quiet", "--json", "--out", str(out)]) == 1
    assert main(["gate", str(out)]) == 1


def test_mistakes_of_every_member_show_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path)
    for member in ("decoupled.toml", "spmd.toml"):
        file = tmp_path / member
        file.write_text(file.read_text().replace("step_time_s", "step_tine_s"))
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("step_tine_s: unknown parameter") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", [[], ["--seeds", "1,2"]])
def test_all_members_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: list[str]
) -> None:
    path = folder(tmp_path)
    for member in ("decoupled.toml", "spmd.toml"):
        (tmp_path / member).rename(tmp_path / f"other-{member}")
    assert main(["run", str(path), *seeds, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "both: 2 problems" in said
    for member in ("decoupled", "spmd"):
        assert f"{member}: no such file and no built-in experiment" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", [[], ["--seeds", "1,2"]])
def test_members_that_wait_for_each_other_leave_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: list[str]
) -> None:
    path = folder(tmp_path)
    for member, other in (("decoupled", "spmd"), ("spmd", "decoupled")):
        file = tmp_path / f"{member}.toml"
        file.write_text(f'resume = "{other}"\n{file.read_text()}')
    assert main(["run", str(path), *seeds, "--out", str(tmp_path / "out")]) == 2
    assert "wait for each other" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--control", "x"], "--control: is of one experiment"),
        (["--resume", "x"], "--resume: is of one experiment"),
        (["--seeds", ""], "'' is no list like 1,2,3"),
        (["--seeds", "1,,2"], "'1,,2' is no list like 1,2,3"),
        (["--seeds", "1", "--seed", "2"], "there is a --seed, too"),
        (["--jobs", "2"], "has no seeds, so one run goes on at a time"),
        (["--set", "learners"], "'learners' is not KEY=VALUE"),
    ],
)
def test_options_that_a_suite_cannot_follow_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    """They were taken without a word, and meant nothing."""
    assert main(["run", str(folder(tmp_path)), *given, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "1 problem\n" in error
    assert not (tmp_path / "out").exists()


def test_a_suites_folder_is_not_used_twice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = str(folder(tmp_path))
    assert main(["run", path, "--seed", "4", "--quiet", "--json", "--out", str(out)]) == 0
    assert main(["run", path, "--seed", "4", "--quiet", "--json", "--out", str(out)]) == 2


@pytest.mark.parametrize("jobs", ["0", "-3", "1.5", "many", ""])
def test_a_number_of_jobs_that_is_none_is_refused(
    jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "headline", f"--jobs={jobs}"])
    assert ended.value.code == 2
    assert "is no whole number of 1 or more" in capsys.readouterr().err
