"""docker-compose.yml as users run it, and the attached runtime on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import targets
from faults.base import LinkState, Tuning
from harness.errors import LaunchError, SpecError
from harness.events import (
    LinkDown,
    LinkUp,
    Merged,
    ProxyChanged,
    ResidueFound,
    Step,
    UnitExited,
    UnitSpawned,
    UnitStarted,
)
from harness.runtimes.attached import AttachedRuntime
from harness.runtimes.base import RunContext, opened
from harness.runtimes.compose_project import PROJECT_LABEL, discover
from harness.runtimes.docker_engine import Engine
from harness.runtimes.docker_image import ROOT
from targets.base import Target
from tests.contracts.runtime_contract import NS, Watch, assert_clean

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PARAMS = "learners=4 quorum=1 fragments=2 sync_every=2 trainer=scripted step_time_s=0.05"


@pytest.fixture(scope="session")
def compose() -> list[str]:
    """The command of whichever compose there is."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    ).returncode:
        pytest.skip("neither docker-compose nor docker compose is installed")
    return ["docker", "compose"]


@pytest.fixture(scope="module")
def project(compose: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standing cluster that runs this checkout's sources."""
    name = f"diloco-chaos-test-{os.getpid()}"
    override = tmp_path_factory.mktemp("compose") / "override.yml"
    mounts = [f"{ROOT}/{package}:/app/{package}:ro" for package in ("harness", "faults", "targets")]
    mounts.append(f"{ROOT}/docker/compose_unit.py:/app/compose_unit.py:ro")
    volumes = ", ".join(f'"{mount}"' for mount in [*mounts, "state:/unit", "cache:/cache"])
    names = ["syncer", *(f"learner-{n}" for n in range(4))]
    text = "".join(f"  {unit}: {{volumes: [{volumes}]}}\n" for unit in names)
    override.write_text(f"services:\n{text}")
    files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(override)]
    command = [*compose, *files, "-p", name]
    environment = {**os.environ, "DILOCO_CHAOS_PARAMS": PARAMS, "DILOCO_CHAOS_PROXY_PORT": "0"}
    try:
        up = subprocess.run(
            [*command, "up", "-d"], env=environment, capture_output=True, text=True, check=False
        )
        assert up.returncode == 0, up.stderr
        yield name
    finally:
        down = subprocess.run(
            [*command, "down", "-v", "--timeout", "3"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert down.returncode == 0, down.stderr


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def attached(project: str, tmp_path: Path) -> Iterator[AttachedRuntime]:
    runtime = AttachedRuntime(RunContext("attached-run", 1, tmp_path / "run"), project)
    yield runtime
    runtime.close()


def target_of(runtime: AttachedRuntime) -> Target:
    found = runtime.project
    return targets.load(found.target)(found.params, found.seed)


def states(project: str) -> dict[str, tuple[bool, bool]]:
    """Unit to (running, paused), straight from the engine."""
    engine = Engine(timeout_s=20)
    boxes = engine.containers({PROJECT_LABEL: project})
    found = {str(b.name): (b.attrs["State"]["Running"], b.attrs["State"]["Paused"]) for b in boxes}
    engine.close()
    return found


def test_a_project_says_what_it_is(attached: AttachedRuntime) -> None:
    target = target_of(attached)
    assert target.params["sync_every"] == 2
    assert set(attached.project.units) == {unit.name for unit in target.units()}


def test_faults_hit_heal_and_leave_the_cluster_training(
    attached: AttachedRuntime, project: str
) -> None:
    before = states(project)
    target = target_of(attached)
    with opened(attached, target):
        assert attached.proxy.startswith("toxiproxy 2.")
        watch = Watch(attached)
        watch.until(Merged)
        assert watch.until(UnitSpawned, lambda e: e.unit == "learner-0").by == "orchestrator"
        for unit in ("learner-0", "learner-1", "learner-2", "learner-3"):
            watch.steps(unit)

        first = len(watch.seen)
        attached.kill("learner-0")
        assert watch.until(UnitExited, lambda e: e.unit == "learner-0", first).signal == 9
        assert watch.until(UnitSpawned, lambda e: e.unit == "learner-0", first).by == "policy"
        watch.until(UnitStarted, lambda e: e.unit == "learner-0", first)
        watch.steps("learner-0")

        attached.apply("learner-1", "tuning", Tuning(hang=True))
        watch.during(NS // 2)
        assert watch.stands_still("learner-1")

        second = len(watch.seen)
        attached.apply("learner-2", "link", LinkState(refused=True))
        watch.until(LinkDown, lambda e: e.unit == "learner-2", second)
        attached.apply("learner-3", "network", False)
        watch.until(LinkDown, lambda e: "learner-3" in (e.unit, e.peer), second)
        attached.apply("learner-0", "cpu_share", 0.5)
        attached.apply("learner-0", "frozen", True)
        # Everything is still broken here: close heals it.
    assert_clean(attached)
    assert states(project) == before
    again = AttachedRuntime(RunContext("again", 1, attached._context.directory / "2"), project)
    with opened(again, target):
        watch = Watch(again)
        for unit in ("learner-0", "learner-1", "learner-2", "learner-3"):
            watch.steps(unit)
            # Contributing again, not only stepping by itself.
            watch.until(
                Merged,
                lambda e, u=unit: any(c.unit == u for c in e.contributions),  # type: ignore[misc]
            )
    assert_clean(again)


KILLED = """
import os, sys, pathlib
import targets
from faults.base import LinkState, Tuning
from harness.runtimes.attached import AttachedRuntime
from harness.runtimes.base import RunContext

runtime = AttachedRuntime(RunContext("killed", 1, pathlib.Path(sys.argv[2])), sys.argv[1])
found = runtime.project
runtime.open(targets.load(found.target)(found.params, found.seed))
runtime.apply("learner-0", "tuning", Tuning(hang=True))
runtime.apply("learner-1", "link", LinkState(silent_up=True, silent_down=True))
runtime.apply("learner-2", "network", False)
runtime.apply("learner-3", "cpu_share", 0.3)
runtime.apply("learner-3", "frozen", True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_run_held_is_healed_by_its_reaper(project: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", KILLED, project, str(folder)], cwd=ROOT)
    assert killed.returncode == -9
    deadline = time.monotonic() + 60
    while b'"reaped"' not in (folder / "manifest.jsonl").read_bytes():
        assert time.monotonic() < deadline, (folder / "reaper.log").read_text()
        time.sleep(0.05)
    after = AttachedRuntime(RunContext("after", 1, tmp_path / "2"), project)
    with opened(after, target_of(after)):
        watch = Watch(after)
        for unit in ("learner-0", "learner-1", "learner-2", "learner-3"):
            watch.steps(unit)
        assert not [e for e in watch.seen if isinstance(e, ProxyChanged)]
    assert after.residue(0) == ResidueFound(t_ns=0)


def test_what_nobody_healed_is_healed_on_attaching(project: str, tmp_path: Path) -> None:
    """As when the machine of the run went down together with its reaper."""
    first = AttachedRuntime(RunContext("first", 1, tmp_path / "1"), project)
    target = target_of(first)
    first.open(target)
    first.apply("learner-1", "link", LinkState(silent_up=True, silent_down=True))
    first._links.known = lambda: ()  # type: ignore[method-assign]  # closing forgets the links
    first.close()
    assert first.residue(0).toxics
    second = AttachedRuntime(RunContext("second", 1, tmp_path / "2"), project)
    with opened(second, target):
        watch = Watch(second)
        # A fault on a unit touches its links to other learners, too.
        watch.until(ProxyChanged, lambda e: "learner-1-to-syncer was broken" in e.what)
        watch.until(LinkUp, lambda e: e.unit == "learner-1")
    assert second.residue(0) == ResidueFound(t_ns=0)


def test_another_target_than_the_running_one_is_refused(attached: AttachedRuntime) -> None:
    other = targets.load("diloco")({**attached.project.params, "learners": 6}, 0)
    with pytest.raises(LaunchError, match=r"learner-4.*has no container"):
        attached.open(other)
    slower = targets.load("diloco")({**attached.project.params, "step_time_s": 0.5}, 0)
    with pytest.raises(LaunchError, match=r"step_time_s is 0\.05 there and 0\.5 here"):
        attached.open(slower)


def test_no_such_project() -> None:
    engine = Engine(timeout_s=20)
    try:
        with pytest.raises(SpecError, match="no compose project nobody-has-this"):
            discover(engine, "nobody-has-this")
    finally:
        engine.close()


def test_every_step_line_since_attaching_is_new(attached: AttachedRuntime) -> None:
    with opened(attached, target_of(attached)):
        watch = Watch(attached)
        watch.steps("learner-0", 5)
        assert all(e.t_ns >= 0 for e in watch.seen if isinstance(e, Step))
