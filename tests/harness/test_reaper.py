"""The dead-man: the harness is killed in the middle of a fault, and nothing is left."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import leftovers, reaper
from harness.errors import LaunchError
from harness.leftovers import (
    CGROUP_PREFIX,
    MANIFEST,
    RUN_LABEL,
    RUN_VARIABLE,
    Undone,
    cgroups_of,
    clean,
    expired,
    own,
    processes_of,
    read_manifest,
    start_ticks,
    undo,
)
from harness.reaper import Reaper
from harness.runtimes.places import state_dir

SOON_S = 60.0


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline, f"in {SOON_S} s it did not come to be that {what}"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DILOCO_CHAOS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def run(tmp_path: Path) -> str:
    return f"reaper-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def sleeper(run: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(marked: bool = True) -> subprocess.Popen[bytes]:
        env = {**os.environ, **({RUN_VARIABLE: run} if marked else {})}
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        started.append(subprocess.Popen(command, env=env, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


HARNESS = """
import sys, time
from pathlib import Path
import targets
from faults.base import LinkState
from harness.runtimes.base import RunContext
from harness.runtimes.process import ProcessRuntime
runtime = ProcessRuntime(RunContext(sys.argv[1], 1, Path(sys.argv[2]), {"proxy": "embedded"}))
params = {"learners": 2, "trainer": "scripted", "step_time_s": 0.02}
runtime.open(targets.load("diloco")({**params, "fragments": 2, "sync_every": 2}, 1))
seen = set()
while len(seen) < 2:
    for event in runtime.poll(runtime.clock.now_ns() + 10**9):
        if type(event).__name__ == "Step":
            seen.add(event.unit)
runtime.apply("learner-0", "frozen", True)
runtime.apply("learner-1", "link", LinkState(stalled=True))
if "cpu_quota" in runtime.offers:
    runtime.apply("learner-1", "cpu_share", 0.5)
print("faults are on", flush=True)
time.sleep(600)
"""


@pytest.mark.live
def test_nothing_is_left_when_the_harness_is_killed_amid_faults(run: str, tmp_path: Path) -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, run, str(tmp_path / "run")], stdout=subprocess.PIPE
    )
    assert harness.stdout is not None
    try:
        assert harness.stdout.readline() == b"faults are on\n"
        units = processes_of(run)
        assert len(units) == 4  # syncer, two learners (one of them frozen), proxy
        note = state_dir() / f"{run}.json"
        assert note.exists()
        assert list(expired(state_dir())) == []
        assert clean(state_dir()) == []  # a living owner's run is left alone
        assert processes_of(run) == units
    finally:
        harness.kill()
        harness.wait()
        harness.stdout.close()
    wait_for(lambda: not note.exists(), "the reaper is through")
    assert processes_of(run) == []
    assert cgroups_of(run) == []
    assert not (tmp_path / "run" / "work").exists()
    assert read_manifest(tmp_path / "run" / MANIFEST)[-1]["kind"] == "reaped"
    assert "undone in" in (tmp_path / "run" / "reaper.log").read_text()


def test_a_run_that_ends_in_order_is_not_touched(
    run: str, tmp_path: Path, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    dead_man = Reaper(run, tmp_path)
    process = sleeper(marked=False)
    dead_man.record_process("bystander", process.pid)
    pid = dead_man.pid
    dead_man.done()
    dead_man.done()
    assert start_ticks(pid) is None
    assert process.poll() is None
    assert list(state_dir().iterdir()) == []
    assert not (tmp_path / "reaper.log").exists()


def test_the_end_of_the_pipe_alone_makes_the_reaper_act(
    run: str, tmp_path: Path, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    dead_man = Reaper(run, tmp_path)
    registered, marked, stranger = sleeper(marked=False), sleeper(), sleeper(marked=False)
    os.killpg(registered.pid, signal.SIGSTOP)
    dead_man.record_process("frozen", registered.pid)
    dead_man._file.write(b'{"kind": "process", "pid": 12')  # the harness died while writing
    assert dead_man._process.stdin is not None
    dead_man._process.stdin.close()
    assert dead_man._process.wait(SOON_S) == 0
    dead_man._file.close()
    assert registered.wait(SOON_S) == -signal.SIGKILL
    assert marked.wait(SOON_S) == -signal.SIGKILL
    assert stranger.poll() is None


def test_a_reused_process_id_is_not_killed(
    run: str, tmp_path: Path, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    stranger = sleeper(marked=False)
    entry = {"kind": "process", "name": "u", "pid": stranger.pid, "start": 1}
    (tmp_path / MANIFEST).write_text(json.dumps(entry) + "\n")
    done = undo(run, tmp_path / MANIFEST, time.monotonic() + SOON_S)
    assert (done.removed, done.problems) == ([], [])
    assert stranger.poll() is None


def test_a_manifest_cannot_make_undo_delete_what_is_not_of_the_run(
    run: str, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    mine = tmp_path / "mine"
    own(mine, run)
    other = tmp_path / "other"
    own(other, "another-run")
    entries = [
        *({"kind": "remove", "path": str(p)} for p in (precious, other, mine)),
        {"kind": "remove", "path": "."},
        {"kind": "cgroup", "path": str(precious)},
        {"kind": "process", "pid": -1, "start": None},
        {"kind": "process", "pid": 1, "start": start_ticks(1)},
        {"kind": "process"},
        ["not an entry"],
    ]
    (tmp_path / MANIFEST).write_text("".join(json.dumps(e) + "\n" for e in entries))
    done = undo(run, tmp_path / MANIFEST, time.monotonic() + SOON_S)
    assert done.removed == [f"directory {mine}"]
    assert [p.partition(" is ")[2] for p in done.problems] == [
        f"no cgroup of run {run}; left alone"
    ]
    assert precious.exists()
    assert other.exists()


def test_clean_undoes_what_even_the_reaper_left(
    run: str, tmp_path: Path, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Owner and reaper are both gone, as after a killed container or a crashed machine."""
    process = sleeper()
    state_dir().mkdir(parents=True)
    manifest = tmp_path / MANIFEST
    manifest.write_text("")
    note = {"kind": "run", "run": run, "owner": 2**22 - 1, "owner_start": 5}
    (state_dir() / f"{run}.json").write_text(json.dumps({**note, "manifest": str(manifest)}))
    assert list(expired(state_dir())) == [run]
    (done,) = clean(state_dir())
    assert done.removed == [f"process {process.pid}"]
    assert done.problems == []
    assert process.wait(SOON_S) == -signal.SIGKILL
    assert list(state_dir().iterdir()) == []
    assert clean(state_dir()) == []


def test_what_cannot_be_undone_is_said_and_kept_for_later(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine(run: str, url: str | None, done: Undone) -> None:
        raise ConnectionError("no engine answers")

    monkeypatch.setattr(leftovers, "remove_from_engine", engine)
    state_dir().mkdir(parents=True)
    manifest = tmp_path / MANIFEST
    mine = tmp_path / "mine"
    own(mine, run)
    entries = [{"kind": "docker"}, {"kind": "remove", "path": str(mine)}]
    manifest.write_text("".join(json.dumps(e) + "\n" for e in entries))
    note = {"kind": "run", "run": run, "owner": 2**22 - 1, "owner_start": 5}
    (state_dir() / f"{run}.json").write_text(json.dumps({**note, "manifest": str(manifest)}))
    (done,) = clean(state_dir())
    assert done.problems == ["ConnectionError: no engine answers"]
    assert done.removed == [f"directory {mine}"]  # one failure does not keep the rest
    assert list(expired(state_dir())) == [run]


def test_a_frozen_run_id_is_looked_for_exactly(
    run: str, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = sleeper()
    wait_for(lambda: process.pid in processes_of(run), "the child has its environment")
    assert processes_of(run[:-1]) == []
    assert processes_of(run + "0") == []


def test_cgroups_of_another_run_are_not_found(tmp_path: Path) -> None:
    for name in ("r1.u", "r11.u", "r1"):
        (tmp_path / "cpu" / f"{CGROUP_PREFIX}{name}").mkdir(parents=True)
    assert [p.name for p in cgroups_of("r1", tmp_path)] == [f"{CGROUP_PREFIX}r1.u"]


def test_no_run_without_a_dead_man(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LaunchError, match="manifest"):
        Reaper(run, tmp_path / "not" / "there")
    monkeypatch.setattr(reaper, "_READY", b"other\n")
    with pytest.raises(LaunchError, match="did not start"):
        Reaper(run, tmp_path)


@pytest.mark.docker
def test_what_a_run_has_on_an_engine_is_found_by_its_label(run: str, tmp_path: Path) -> None:
    from harness.runtimes.docker_engine import Engine

    try:
        engine = Engine(timeout_s=10)
    except LaunchError as error:
        pytest.skip(str(error))
    names = [f"{run}-mine", f"{run}-other"]
    try:
        for name, label in zip(names, (run, f"{run}-other"), strict=True):
            engine.client.volumes.create(name, labels={RUN_LABEL: label})
        (tmp_path / MANIFEST).write_text('{"kind": "docker"}\n')
        done = undo(run, tmp_path / MANIFEST, time.monotonic() + SOON_S)
        assert (done.removed, done.problems) == ([f"volume {names[0]}"], [])
        left = {v.name for v in engine.client.volumes.list()}
        assert names[1] in left
        assert names[0] not in left
        again = undo(run, tmp_path / MANIFEST, time.monotonic() + SOON_S)
        assert (again.removed, again.problems) == ([], [])
    finally:
        undo(f"{run}-other", tmp_path / MANIFEST, time.monotonic() + SOON_S)
        engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_is_gone_is_a_problem_and_no_traceback(
    run: str, tmp_path: Path, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = sleeper()
    wait_for(lambda: process.pid in processes_of(run), "the child has its environment")
    entry = {"kind": "docker", "url": f"unix://{tmp_path}/no.sock"}
    (tmp_path / MANIFEST).write_text(json.dumps(entry) + "\n")
    done = undo(run, tmp_path / MANIFEST, time.monotonic() + SOON_S)
    assert done.removed == [f"process {process.pid}"]
    assert len(done.problems) == 1
    assert "no.sock" in done.problems[0]
    gc.collect()  # the Docker client leaves its socket to be found here
