"""The fuzz command: clean on the real protocol, and a broken promise becomes a file to keep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
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


def children(pid: int) -> list[int]:
    """Processes that ``pid`` began and that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_an_interrupted_search_ends_with_one_line(tmp_path: Path) -> None:
    """As a terminal does it: the signal goes to every process of the group."""
    command = [sys.executable, "-m", "harness", "fuzz", "--minutes", "5", "--processes", "2"]
    search = subprocess.Popen(
        [*command, "--first", "1", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert search.stdout is not None
        assert "seeds from 1" in search.stdout.readline()
        deadline = time.monotonic() + 60
        while len(begun := children(search.pid)) < 3:  # two that search, one that keeps track
            assert time.monotonic() < deadline, f"the search began only {begun}"
            time.sleep(0.02)
        os.killpg(search.pid, signal.SIGINT)
        _, said = search.communicate(timeout=60)
    finally:
        if search.poll() is None:
            os.killpg(search.pid, signal.SIGKILL)
            search.communicate()
    assert said == "diloco-chaos: interrupted by signal 2\n"
    assert search.returncode == 130
    deadline = time.monotonic() + 30
    while left := [pid for pid in begun if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"{left} were left behind"
        time.sleep(0.02)
