"""However a search is ended, nothing outlives it, and what it had found is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands import clean, fuzz
from harness.events import AnyEvent
from harness.fuzz import act, scratch
from harness.fuzz.campaign import Failure, Progress
from harness.fuzz.draw import draw
from harness.journal import MemoryJournal

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def eventually(true: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def session(leader: int) -> list[int]:
    """Living processes of the session that ``leader`` began, itself excepted."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(set(found) - {leader})


def in_use(pid: int) -> tuple[list[Path], list[Path]]:
    """(temporary folders, semaphores) of the process."""
    folders = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link) if link.is_symlink() else ""
        folders += [Path(target)] if scratch.PREFIX in target else []
    maps = Path(f"/proc/{pid}/maps").read_text()
    return folders, [Path(name) for name in set(re.findall(r"/dev/shm/sem\.\S+", maps))]


@pytest.fixture
def search(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A search of minutes, by two workers that have begun."""
    command = [sys.executable, "-m", "harness", "fuzz", "--minutes", "5", "--processes", "2"]
    process = subprocess.Popen(
        [*command, "--first", "1", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "seeds from 1" in process.stdout.readline()
        # two that search, one that keeps track
        eventually(lambda: len(session(process.pid)) >= 3, "the workers did not begin")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and all that it began
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("everybody", [True, False], ids=["group", "alone"])
def test_a_signal_ends_the_search_with_one_line(
    number: signal.Signals, everybody: bool, search: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A terminal signals every process of the group, ``kill`` only the first one."""
    folders, semaphores = in_use(search.pid)
    assert len(folders) == 1
    assert semaphores
    (os.killpg if everybody else os.kill)(search.pid, number)
    out, said = search.communicate(timeout=60)
    assert said == f"diloco-chaos: interrupted by signal {number.value}\n"
    assert search.returncode == 128 + number
    assert re.search(r"^\d+ seeds in \d+ s: every promise was kept so far$", out, re.M), out
    eventually(lambda: not session(search.pid), f"{session(search.pid)} were left behind")
    eventually(lambda: not any(s.exists() for s in semaphores), f"{semaphores}: one is left")
    assert not folders[0].exists()
    assert list(tmp_path.iterdir()) == []


@linux
def test_workers_do_not_outlive_a_search_that_was_killed(
    search: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders, semaphores = in_use(search.pid)
    search.kill()
    search.wait(60)
    eventually(lambda: not session(search.pid), f"{session(search.pid)} were left behind")
    eventually(lambda: not any(s.exists() for s in semaphores), f"{semaphores}: one is left")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(clean, "docker_missing", lambda: True)
    assert main(["clean"]) == 0
    assert len(folders) == 1
    assert not folders[0].exists()


def test_only_what_has_no_owner_is_cleaned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(clean, "docker_missing", lambda: True)
    monkeypatch.setattr(scratch, "places", lambda: (tmp_path,))
    left = tmp_path / f"{scratch.PREFIX}left"
    (left / "run").mkdir(parents=True)
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(tmp_path)
    with scratch.scratch() as owned:
        with scratch.scratch() as inner:
            assert inner == owned
        assert main(["clean", "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"expired": [str(left)]}
        assert left.exists()
        assert main(["clean", "--json"]) == 0
        (done,) = json.loads(capsys.readouterr().out)["cleaned"]
        assert (done["removed"], done["problems"]) == ([f"directory {left}"], [])
        assert owned.exists()
        assert not left.exists()
    assert not owned.exists()


class Alarmed(MemoryJournal):
    """Somebody stops the search in the middle of a run."""

    def append(self, event: AnyEvent) -> None:
        signal.raise_signal(signal.SIGTERM)
        super().append(event)


def test_a_failure_that_is_not_shrunk_yet_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A simulated run is no reason to go on: neither it nor the shrinking takes the signal."""
    before = signal.getsignal(signal.SIGTERM)
    failure = Failure(7, draw(7), "tokens", "a step was merged twice")
    monkeypatch.setattr(fuzz, "search", lambda *_, **__: iter([Progress(3, 1.0, failure)]))
    monkeypatch.setattr(act, "MemoryJournal", Alarmed)
    assert main(["fuzz", "--seeds", "3", "--json", "--out", str(tmp_path)]) == 143
    told = json.loads(capsys.readouterr().out)
    assert (told["interrupted"], told["failure"]["seed"]) == (15, 7)
    assert (tmp_path / "fuzz-tokens-7.toml").exists()
    assert signal.getsignal(signal.SIGTERM) == before
