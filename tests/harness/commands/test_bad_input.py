"""Wrong, missing, doubled, huge and unreadable arguments and files: exit 2 and a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import load
from faults.base import read_params
from harness.__main__ import main
from harness.errors import SpecError
from harness.sim.options import sim_options
from tests.harness.specs import spec_text

HUGE = "9" * 5000


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files and folders of the wrong kind, to be in."""
    monkeypatch.chdir(tmp_path)
    Path("ok.toml").write_text(spec_text("", duration_s=4))
    Path("digits.toml").write_text(f'title = "t"\nseed = {HUGE}\n')
    Path("deep.toml").write_text(f"a = {'[' * 3000}{']' * 3000}\n")
    long = spec_text("", duration_s=4).replace("duration_s = 4", f"duration_s = {HUGE[:400]}")
    Path("long.toml").write_text(long)
    Path("suite.toml").write_text('title = "t"\ntogether = "x"\n')
    Path("folder").mkdir()
    Path("kept").mkdir()
    Path("kept/x.suite.toml").write_bytes(b"\xff\xfe")
    Path("whole").mkdir()
    Path("whole/x.suite.toml").write_text('title = "t"\ntogether = ["a", "b"]\n')
    return tmp_path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("run digits.toml", "not valid TOML: an integer has thousands of digits"),
        ("run deep.toml", "lie too deep in each other"),
        ("run long.toml", "duration_s: input should be a valid number, got 9999"),
        ("run suite.toml", "together: input should be a list, got 'x'"),
        (f"run ok.toml --set learners={HUGE}", "is not KEY=VALUE with a TOML value"),
        ("run ok.toml --set learners=3 --set learners=4", "learners is set twice"),
        ("run ok.toml --set learners=true", "learners: Input should be a valid integer, not True"),
        ("run ok.toml --control whole", "whole is a suite; name one of its runs"),
        ("run ok.toml --jobs 2", "has no seeds"),
        ("report kept", "cannot be read"),
        ("gate kept", "cannot be read"),
        ("replay kept", "cannot be read"),
        ("replay whole --until -1", "-1 is no global step"),
        ("twin ok.toml --live folder", "there is no run here"),
        ("twin ok.toml --live nowhere", "there is no run here"),
        ("fuzz --minutes inf", "--minutes must be finite"),
        ("fuzz --seeds 1 --shrink-s nan", "--shrink-s must be finite"),
        ("fuzz --seeds 1 --shrink-s -1", "--shrink-s must be finite"),
        ("fuzz --seeds 1 --out ok.toml", "ok.toml is no folder"),
        ("simulate --sweep quorum --paper", "give one of them"),
        ("simulate --fit", "--fit repeats the calibration of --paper"),
        ("bandwidth --parameters inf", "parameters must be positive and finite"),
        ("bandwidth --gbit-s inf", "--gbit-s must be positive and finite"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_runs(
    place: Path, capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    before = sorted(place.rglob("*"))
    assert main(given.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert max(map(len, error.splitlines())) < 6000
    assert sorted(place.rglob("*")) == before


def test_a_long_number_is_not_repeated_in_full(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "long.toml"]) == 2
    assert "9" * 60 not in capsys.readouterr().err


def test_a_page_that_cannot_be_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ok.toml", "--seed", "1", "--quiet", "--out", "run"]) == 0
    assert main(["compare", "run", "run", "--html", "folder"]) == 2
    assert "cannot write to folder" in capsys.readouterr().err


@pytest.mark.parametrize("value", [True, -1.0, float("nan"), float("inf"), 10**400, "3"])
def test_a_faults_numbers_are_numbers(value: object) -> None:
    _, problems = read_params(load("straggle"), {"factor": value})
    assert len(problems) == 1
    assert problems[0].startswith("factor: ")


@pytest.mark.parametrize("value", [True, -1.0, float("nan"), float("inf"), 10**400, "3"])
@pytest.mark.parametrize("name", ["step_jitter_ms", "load_ms", "clock_skew_ms", "latency_ms"])
def test_a_simulated_runs_numbers_are_numbers(name: str, value: object) -> None:
    given: object = value
    if name == "clock_skew_ms":
        if value == -1.0:
            return  # a clock may be behind
        given = {"learner-0": value}
    elif name == "latency_ms":
        given = [0.0, value]
    with pytest.raises(SpecError) as error:
        sim_options({name: given})
    assert error.value.exit_status == 2
