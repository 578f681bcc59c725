"""How a container's memory limit is lowered, and when it cannot be: on a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import ControlError
from harness.runtimes import docker_memory
from harness.runtimes.base import RunContext
from harness.runtimes.docker import DockerRuntime
from harness.runtimes.docker_engine import Engine
from harness.runtimes.docker_places import Place
from tests.harness.runtimes.fake_engine import FakeEngine

USED = 300 << 20
BUSY = (500, {"message": "unable to set memory limit"})


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngine]:
    made = FakeEngine(tmp_path / "engine.sock", {})
    made.answers["GET /containers/c1/stats"] = {"memory_stats": {"usage": USED}}
    made.answers["POST /containers/c1/exec"] = {"Id": "e1"}
    made.answers["POST /exec/e1/start"] = {}
    yield made
    made.close()


@pytest.fixture
def engine(fake: FakeEngine) -> Iterator[Engine]:
    made = Engine(fake.url, 2)
    yield made
    made.close()


def test_a_unit_that_grows_meanwhile_gets_a_little_more(fake: FakeEngine, engine: Engine) -> None:
    answers = iter([BUSY, BUSY, (200, {"Warnings": None})])
    fake.answers["POST /containers/c1/update"] = lambda _path: next(answers)
    ballast = docker_memory.press(engine, Place("learner-1", "c1"))
    assert ballast.limit_bytes == USED + 3 * docker_memory.SLACK_BYTES
    assert ballast.name == "e1"


def test_a_limit_that_is_never_taken_starts_no_ballast(fake: FakeEngine, engine: Engine) -> None:
    fake.answers["POST /containers/c1/update"] = BUSY
    with pytest.raises(ControlError, match=r"limit the memory of learner-1.*unable to set"):
        docker_memory.press(engine, Place("learner-1", "c1"))
    assert fake.asked.count("POST /containers/c1/update") == docker_memory.TRIES
    assert "POST /containers/c1/exec" not in fake.asked


@pytest.mark.parametrize("able", [True, False])
def test_memory_is_offered_where_the_engine_can_limit_it(
    fake: FakeEngine, tmp_path: Path, able: bool
) -> None:
    fake.answers["GET /info"] = {"MemoryLimit": able, "MemTotal": 1 << 34}
    runtime = DockerRuntime(RunContext("r", 1, tmp_path / "run", {"engine": fake.url}))
    assert ("memory" in runtime.offers) == able
    assert runtime.offers >= {"state", "proxy"}


def test_another_machines_proxy_cannot_be_killed(tmp_path: Path) -> None:
    options = {"engine": "tcp://127.0.0.1:9", "call_s": 0.1}
    runtime = DockerRuntime(RunContext("r", 1, tmp_path / "run", options))
    assert "proxy" not in runtime.offers
