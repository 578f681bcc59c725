"""The fuzz command: clean on the real protocol, and a broken promise becomes a file to keep."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands import fuzz
from harness.fuzz.campaign import Failure, Progress
from harness.fuzz.draw import draw


def test_a_few_seeds_are_clean(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["fuzz", "--seeds", "10", "--first", "5", "--processes", "1", "--json"]
    assert main([*given, "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failure"]) == (10, None)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_promise_is_written_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failure = Failure(7, draw(7), "tokens", "a step was merged twice")
    monkeypatch.setattr(fuzz, "search", lambda *_, **__: iter([Progress(3, 1.0, failure)]))
    monkeypatch.setattr(fuzz, "minimal", lambda found, *_, **__: found)
    assert main(["fuzz", "--seeds", "3", "--out", str(tmp_path)]) == 1
    path = tmp_path / "fuzz-tokens-7.toml"
    text = path.read_text()
    assert text.startswith("# tokens: a step was merged twice")
    assert tomllib.loads(text)["target"] == json.loads(json.dumps(failure.table["target"]))
    assert f"diloco-chaos run {path} --runtime simulated --seed 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given", [["--seeds", "-1"], ["--minutes", "0"], ["--seeds", "3", "--processes", "-2"]]
)
def test_nonsense_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", *given]) == 2
    assert "must be positive" in capsys.readouterr().err
