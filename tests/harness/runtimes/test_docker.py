"""The docker runtime on a real engine: the contract, and what only it does."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import targets
from faults.base import LinkState
from harness.errors import ControlError, FaultSkipped, LaunchError
from harness.events import (
    HarnessFailed,
    LinkDown,
    LinkUp,
    ProxyChanged,
    Step,
    UnitExited,
    UnitSpawned,
    UnitStarted,
)
from harness.leftovers import RUN_LABEL
from harness.runtimes import docker_places
from harness.runtimes.base import RunContext, opened
from harness.runtimes.docker import DockerRuntime
from harness.runtimes.docker_engine import Engine
from harness.runtimes.docker_removal import expired_runs, remove_run
from targets.base import Target
from tests.contracts import runtime_contract
from tests.contracts.runtime_contract import NS, Stage, Watch, assert_clean, watched

pytestmark = [pytest.mark.docker, pytest.mark.slow]

Make = Callable[..., DockerRuntime]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DILOCO_CHAOS_CACHE", str(tmp_path / "cache"))
    count = iter(range(100))

    def made(**options: object) -> DockerRuntime:
        number = next(count)
        run = f"test-{os.getpid()}-{tmp_path.name}-{number}".lower()
        return DockerRuntime(RunContext(run, 1, tmp_path / f"run{number}", options))

    return made


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(timeout_s=20)
    yield made
    made.close()


def counter(**params: object) -> Target:
    return targets.load("counter")({"step_time_s": 0.02, **params}, 1)


def diloco() -> Target:
    params = {"learners": 2, "trainer": "scripted", "step_time_s": 0.02}
    return targets.load("diloco")({**params, "fragments": 2, "sync_every": 2}, 1)


STAGES = {
    "counter": (counter, "counter-1", "counter-0"),
    "diloco": (diloco, "learner-1", "learner-0"),
}
LINKED = {name for name in runtime_contract.CHECKS if "link" in name}


@pytest.fixture
def simple(make: Make) -> Stage:
    return Stage(make, *STAGES["counter"])


@pytest.fixture
def linked(make: Make) -> Stage:
    return Stage(make, *STAGES["diloco"])


@pytest.mark.parametrize("name", runtime_contract.CHECKS)
def test_contract(simple: Stage, name: str) -> None:
    runtime_contract.CHECKS[name](simple)


@pytest.mark.parametrize("name", sorted(LINKED))
def test_contract_with_links(linked: Stage, name: str) -> None:
    runtime_contract.CHECKS[name](linked)


def test_the_restart_policy_brings_back_a_unit_killed_from_inside(
    simple: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the host's processes cannot be reached, the signal is sent inside the container."""
    monkeypatch.setattr(docker_places, "_signal_from_host", lambda *_: False)
    with watched(simple) as watch:
        first = len(watch.seen)
        assert "from inside" in watch.runtime.kill(simple.victim)
        gone = watch.until(UnitExited, lambda e: e.unit == simple.victim, first)
        assert gone.code == 137
        assert watch.until(UnitSpawned, lambda e: e.unit == simple.victim, first).by == "policy"
        second = len(watch.seen)
        watch.until(UnitStarted, lambda e: e.incarnation == 2, first)
        assert "from inside" in watch.runtime.terminate(simple.victim, 5 * NS)
        assert watch.until(UnitExited, lambda e: e.unit == simple.victim, second).code == 0
    assert_clean(watch.runtime)


def test_every_line_of_every_life_arrives_exactly_once(simple: Stage) -> None:
    with watched(simple) as watch:
        for life in (2, 3):
            first = len(watch.seen)
            watch.runtime.kill(simple.victim)
            watch.until(
                UnitStarted,
                lambda e, n=life: e.unit == simple.victim and e.incarnation == n,  # type: ignore[misc]
                first,
            )
            watch.steps(simple.victim)
    watch.seen += watch.runtime.poll(watch.runtime.clock.now_ns())
    steps = [
        (e.incarnation, e.step)
        for e in watch.seen
        if isinstance(e, Step) and e.unit == simple.victim
    ]
    assert len(steps) == len(set(steps))
    for life in (1, 2, 3):
        numbers = [step for incarnation, step in steps if incarnation == life]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_killed_frozen_unit_comes_back_frozen(simple: Stage) -> None:
    with watched(simple) as watch:
        first = len(watch.seen)
        watch.runtime.apply(simple.victim, "frozen", True)
        watch.runtime.kill(simple.victim)
        watch.until(UnitSpawned, lambda e: e.unit == simple.victim, first)
        lives = [e for e in watch.during(NS) if isinstance(e, Step) and e.unit == simple.victim]
        assert not lives
        watch.runtime.apply(simple.victim, "frozen", False)
        watch.until(UnitStarted, lambda e: e.unit == simple.victim, first)
        watch.steps(simple.victim)


def test_off_the_network_and_back_with_the_same_address(linked: Stage, engine: Engine) -> None:
    with watched(linked) as watch:
        runtime = watch.runtime
        assert isinstance(runtime, DockerRuntime)
        place = runtime._place(linked.victim)
        first = len(watch.seen)
        assert runtime.apply(linked.victim, "network", False)
        assert runtime.apply(linked.victim, "network", False) == ""
        watch.until(LinkDown, lambda e: linked.victim in (e.unit, e.peer), first)
        second = len(watch.seen)
        runtime.apply(linked.victim, "network", True)
        attrs = engine.inspect(place.container)
        assert attrs is not None
        networks = attrs["NetworkSettings"]["Networks"]
        assert networks[place.network]["IPAddress"] == place.address
        watch.until(LinkUp, lambda e: e.unit == linked.victim, second)


def test_links_are_restored_after_the_proxy_died(linked: Stage) -> None:
    with watched(linked) as watch:
        runtime = watch.runtime
        assert isinstance(runtime, DockerRuntime)
        runtime.apply(linked.victim, "link", LinkState(latency_ms=5))
        attrs = runtime._engine.inspect(runtime._proxy_container)
        assert attrs is not None
        first = len(watch.seen)
        os.kill(attrs["State"]["Pid"], 9)
        watch.until(ProxyChanged, lambda e: e.what == "the proxy ended", first)
        watch.until(ProxyChanged, lambda e: e.what == "every link restored", first)
        assert any("latency" in toxic for toxic in runtime._links.toxics())
        watch.until(LinkUp, lambda e: e.unit == linked.victim, first)
        watch.steps(linked.victim)


def test_the_base_limit_waits_until_the_unit_trains(simple: Stage, make: Make) -> None:
    stage = Stage(lambda: make(unit_cpus=0.5), *STAGES["counter"])
    with watched(stage) as watch:
        runtime = watch.runtime
        assert isinstance(runtime, DockerRuntime)
        place = runtime._place(stage.victim)

        def quota() -> int:
            attrs = runtime._engine.inspect(place.container)
            assert attrs is not None
            return int(attrs["HostConfig"]["CpuQuota"])

        assert quota() == 5_000
        runtime.apply(stage.victim, "cpu_share", 0.2)
        assert quota() == 2_000
        runtime.apply(stage.victim, "cpu_share", None)
        assert quota() == 5_000
        first = len(watch.seen)
        runtime.kill(stage.victim)
        watch.until(UnitSpawned, lambda e: e.unit == stage.victim, first)
        # Joined has not been polled yet, so the new life still starts without a limit.
        assert quota() == -1
        watch.steps(stage.victim)
        assert quota() == 5_000


def test_a_failed_start_leaves_nothing(make: Make) -> None:
    runtime = make(image="diloco-chaos-none:latest")
    try:
        with pytest.raises(LaunchError, match=r"no image diloco-chaos-none.*prepare\.sh"):
            runtime.open(counter())
    finally:
        runtime.close()
    assert_clean(runtime)


def test_an_image_that_cannot_run_leaves_nothing(make: Make, engine: Engine) -> None:
    """An image without python: the container starts and ends at once, again and again."""
    image = f"diloco-chaos-test-empty:{os.getpid()}"
    nothing = io.BytesIO()
    tarfile.open(fileobj=nothing, mode="w").close()
    engine.api.import_image_from_data(
        nothing.getvalue(), repository=image.partition(":")[0], tag=str(os.getpid())
    )
    runtime = make(image=image)
    try:
        with pytest.raises(LaunchError, match=r"counter-. ended with status 127 .*python"):
            runtime.open(counter())
    finally:
        runtime.close()
        engine.api.remove_image(image)
    assert_clean(runtime)


def test_a_container_removed_by_somebody_else_is_said(simple: Stage, engine: Engine) -> None:
    with watched(simple) as watch:
        runtime = watch.runtime
        assert isinstance(runtime, DockerRuntime)
        engine.api.remove_container(runtime._place(simple.victim).container, force=True)
        with pytest.raises(ControlError, match=f"container of {simple.victim} is gone"):
            runtime.kill(simple.victim)
    assert not [e for e in watch.runtime.poll(0) if isinstance(e, HarnessFailed)]
    assert_clean(watch.runtime)


def test_two_runs_at_once_do_not_meet(make: Make) -> None:
    first, second = make(), make()
    with opened(first, counter()), opened(second, counter()):
        one, two = Watch(first), Watch(second)
        one.steps("counter-0")
        two.steps("counter-0")
        first.close()
        two.steps("counter-0")
        two.steps("counter-1")
    assert_clean(first)
    assert_clean(second)


def test_killing_nobody_is_skipped(simple: Stage, engine: Engine) -> None:
    with watched(simple) as watch:
        runtime = watch.runtime
        assert isinstance(runtime, DockerRuntime)
        # An operator's stop: the restart policy does not act.
        engine.api.stop(runtime._place(simple.victim).container, timeout=5)
        with pytest.raises(FaultSkipped, match="no process"):
            runtime.kill(simple.victim)
        assert "next start" in runtime.apply(simple.victim, "frozen", True)


def test_expired_things_are_found_and_removed(engine: Engine) -> None:
    run = f"test-expired-{os.getpid()}"
    labels = {RUN_LABEL: run, "diloco-chaos.expires-at": "1"}
    engine.api.create_network(f"diloco-chaos-{run}", internal=True, labels=labels)
    try:
        assert run in expired_runs(engine)
    finally:
        assert remove_run(engine, run) == []
    assert run not in expired_runs(engine)
