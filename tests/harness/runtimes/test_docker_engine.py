"""The docker runtime with an engine that is missing, mute, slow or refuses. Needs no engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import targets
from harness.compose import check, compose
from harness.errors import ControlError, LaunchError, SpecError
from harness.events import HarnessFailed, ResidueFound
from harness.runtimes.base import RunContext
from harness.runtimes.docker import DockerRuntime
from harness.runtimes.docker_engine import REACH_S, Engine
from harness.runtimes.docker_options import OPTIONS, docker_options
from harness.runtimes.docker_places import Hands, Place, quota
from harness.runtimes.docker_watch import since_of
from harness.spec import read_text
from tests.harness.runtimes.fake_engine import HANG, STREAM, VERSION, FakeEngine

CALL_S = 0.3
PATIENCE_S = 20.0
"""Far above what any of this takes; far below what hanging for ever takes."""

SPEC = """
title = "Counts"
runtime = "docker"
duration_s = 5
[target]
name = "counter"
"""

IMAGE = {"Config": {"Labels": {}}}
RUNNING = {"Running": True, "Restarting": False, "Paused": False, "Pid": 1, "Status": "running"}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngine]:
    engine = FakeEngine(tmp_path / "engine.sock", {})
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DILOCO_CHAOS_CACHE", str(tmp_path / "cache"))


def runtime(url: str, folder: Path) -> DockerRuntime:
    options = {"engine": url, "call_s": CALL_S}
    return DockerRuntime(RunContext("fake-run", 1, folder / "run", options))


def fails_to_open(made: DockerRuntime, words: str) -> None:
    began = time.monotonic()
    try:
        with pytest.raises(LaunchError, match=words):
            made.open(targets.load("counter")({}, 1))
    finally:
        made.close()
    assert time.monotonic() - began < PATIENCE_S


def test_no_socket_says_where_and_what_to_do(tmp_path: Path) -> None:
    made = runtime(f"unix://{tmp_path}/none.sock", tmp_path)
    fails_to_open(made, r"none\.sock.*No such file.*--runtime process")
    assert made.residue(3) == ResidueFound(t_ns=3)
    assert not (tmp_path / "run").exists()


def test_a_mute_engine_misses_its_deadline(fake: FakeEngine, tmp_path: Path) -> None:
    fake.answers["GET /version"] = HANG
    fails_to_open(runtime(fake.url, tmp_path), r"did not answer within 0\.3 s")


def test_a_missing_image_names_the_command_that_makes_it(fake: FakeEngine, tmp_path: Path) -> None:
    fails_to_open(runtime(fake.url, tmp_path), r"no image diloco-chaos-toxiproxy.*prepare\.sh")


def test_an_engine_that_falls_mute_while_opening_does_not_hang(
    fake: FakeEngine, tmp_path: Path
) -> None:
    for name in ("diloco-chaos-unit:latest", "diloco-chaos-toxiproxy:latest"):
        fake.answers[f"GET /images/{name}/json"] = IMAGE
    fake.answers["GET /info"] = {"MemoryLimit": True, "MemTotal": 1 << 34}
    fake.answers["GET /events"] = STREAM
    fake.answers["POST /networks/create"] = HANG
    made = runtime(fake.url, tmp_path)
    fails_to_open(made, r"cannot create network .* did not answer within 0\.3 s")
    # Teardown cannot look for what the engine may yet create: that is said, not swallowed.
    failed = [e for e in made.poll(0) if isinstance(e, HarnessFailed)]
    assert any("list containers" in e.why for e in failed)
    with pytest.raises(ControlError):
        made.residue(0)
    assert not (tmp_path / "run" / "work").exists()


@pytest.mark.parametrize("verb", ["pause", "update"])
def test_a_control_call_has_a_deadline(fake: FakeEngine, verb: str) -> None:
    fake.answers["GET /containers/c1/json"] = {"State": RUNNING}
    fake.answers[f"POST /containers/c1/{verb}"] = HANG
    engine = Engine(fake.url, CALL_S)
    hands, place = Hands(engine), Place("learner-1", "c1")
    began = time.monotonic()
    with pytest.raises(ControlError, match=r"learner-1.*did not answer within 0\.3 s"):
        hands.freeze(place, True) if verb == "pause" else hands.limit(place, 0.5)
    assert time.monotonic() - began < PATIENCE_S
    engine.close()


def test_an_engine_that_is_not_there_leaves_no_trace_of_a_run(tmp_path: Path) -> None:
    checked = check(read_text(SPEC, "spec", gates={}), 1)
    for number, (answer, words) in enumerate(
        ((HANG, "did not answer within 0.3 s"), (VERSION, "no image diloco-chaos-toxiproxy"))
    ):
        engine = FakeEngine(tmp_path / f"{number}.sock", {"GET /version": answer})
        folder = tmp_path / f"run-{number}"
        began = time.monotonic()
        try:
            with pytest.raises(LaunchError, match=words):
                compose(
                    checked,
                    run="r",
                    directory=folder,
                    make_runtime=lambda _, url=engine.url: runtime(url, tmp_path),  # type: ignore[misc]
                )
        finally:
            engine.close()
        assert time.monotonic() - began < PATIENCE_S
        assert not folder.exists()


def test_the_first_call_has_a_short_deadline_of_its_own(fake: FakeEngine) -> None:
    patient = Engine(fake.url, 60.0)
    assert (patient.timeout_s, patient.api.timeout) == (60.0, 60.0)
    patient.close()
    fake.answers["GET /version"] = HANG
    began = time.monotonic()
    with pytest.raises(LaunchError, match=f"within {REACH_S:g} s"):
        Engine(fake.url, 60.0)
    assert time.monotonic() - began < PATIENCE_S


def test_state_is_damaged_while_the_engine_may_start_nothing(fake: FakeEngine) -> None:
    stopped = {**RUNNING, "Running": False, "Pid": 0, "Status": "exited"}
    fake.answers["GET /containers/c1/json"] = {"State": stopped}
    fake.answers["POST /containers/c1/update"] = {}
    fake.answers["POST /containers/c1/start"] = (204, None)
    engine = Engine(fake.url, CALL_S)
    asked: list[str] = []

    def act() -> str:
        asked.extend(fake.asked)
        return "done"

    assert Hands(engine).between(Place("learner-1", "c1"), act, 1.0) == "done"
    assert "POST /containers/c1/update" in asked, "the restart policy is off by then"
    assert "POST /containers/c1/start" not in asked
    assert fake.asked[-1] == "POST /containers/c1/start"
    # One that does not stop: said, and started again all the same.
    fake.answers["GET /containers/c1/json"] = {"State": {**RUNNING, "Restarting": True}}
    with pytest.raises(ControlError, match="runs on"):
        Hands(engine).between(Place("learner-1", "c1"), act, 0.1)
    engine.close()


def test_a_refusal_carries_the_engines_words(fake: FakeEngine) -> None:
    fake.answers["GET /containers/c1/json"] = {"State": RUNNING}
    fake.answers["POST /containers/c1/pause"] = (409, {"message": "Container is not happy"})
    engine = Engine(fake.url, CALL_S)
    with pytest.raises(ControlError, match=r"cannot freeze learner-1.*Container is not happy"):
        Hands(engine).freeze(Place("learner-1", "c1"), True)
    engine.close()


def test_freezing_nobody_holds_for_the_next_life(fake: FakeEngine) -> None:
    stopped = {**RUNNING, "Running": False, "Pid": 0, "Status": "exited"}
    fake.answers["GET /containers/c1/json"] = {"State": stopped}
    fake.answers["POST /containers/c1/pause"] = (204, None)
    engine = Engine(fake.url, CALL_S)
    hands, place = Hands(engine), Place("learner-1", "c1")
    assert "next start" in hands.freeze(place, True)
    assert "POST /containers/c1/pause" not in fake.asked
    fake.answers["GET /containers/c1/json"] = {"State": RUNNING}
    hands.started(place)
    assert "POST /containers/c1/pause" in fake.asked
    engine.close()


def test_the_smallest_limit_wins_and_the_base_waits(fake: FakeEngine) -> None:
    fake.answers["POST /containers/c1/update"] = {}
    engine = Engine(fake.url, CALL_S)
    hands, place = Hands(engine), Place("learner-1", "c1", base_share=0.5)
    assert hands.set_quota(place) == "quota -1/10000 us"
    place.ready = True
    assert hands.set_quota(place) == "quota 5000/10000 us"
    assert hands.limit(place, 0.2) == "quota 2000/10000 us"
    assert hands.limit(place, 0.8) == "quota 5000/10000 us"
    hands.died(place)
    assert hands.limit(place, None) == "quota -1/10000 us"
    engine.close()


@pytest.mark.parametrize(
    ("share", "period", "quota_us"),
    [(None, 10_000, -1), (0.2, 10_000, 2_000), (2.0, 10_000, 20_000), (0.05, 20_000, 1_000)],
)
def test_quota(share: float | None, period: int, quota_us: int) -> None:
    assert quota(share) == {"cpu_period": period, "cpu_quota": quota_us}


@pytest.mark.parametrize("share", [0.0, -1.0, 1e-6, float("nan"), float("inf")])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ControlError, match="CPU share"):
        quota(share)


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        docker_options({"imgae": "x", "stop_s": "long", "keep_work": 1})
    assert len(caught.value.problems) == 3
    with pytest.raises(SpecError) as caught:
        docker_options({"sources": "both", "unit_cpus": -1, "call_s": 0})
    assert len(caught.value.problems) == 3
    defaults = docker_options({})
    assert {name: getattr(defaults, name) for name in OPTIONS} == {
        name: default for name, (_, default, _) in OPTIONS.items()
    }


def test_engine_times_keep_their_nanoseconds() -> None:
    assert since_of("2026-01-02T03:04:05.000000006Z") == "1767323045.000000006"
    assert since_of("1970-01-01T00:00:01.500000000Z") == "1.500000000"
