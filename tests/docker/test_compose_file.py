"""docker-compose.yml, docker/toxiproxy.json and the target agree. Needs no engine."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

import targets
from harness.runtimes.compose_environment import describe
from harness.runtimes.docker_engine import ROLE_LABEL, UNIT_LABEL
from harness.runtimes.linktable import LinkTable

ROOT = Path(__file__).resolve().parents[2]
LINKS = json.loads((ROOT / "docker" / "toxiproxy.json").read_text())
FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def environment(service: str) -> dict[str, str]:
    """As compose hands it over when nothing is set outside."""
    given = FILE["services"][service]["environment"]
    return {k: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(v)) for k, v in given.items()}


UNITS = [name for name in FILE["services"] if name != "toxiproxy"]


@pytest.fixture(scope="module")
def target() -> Any:
    found = describe(environment("syncer"))
    return targets.load(found.target)(found.params, found.seed)


def test_every_unit_of_the_target_is_a_service(target: Any) -> None:
    assert {unit.name for unit in target.units()} == set(UNITS)
    for unit in target.units():
        service = FILE["services"][unit.name]
        assert environment(unit.name)["CHAOS_UNIT"] == unit.name
        assert service["labels"][UNIT_LABEL] == unit.name
        assert service["labels"][ROLE_LABEL] == unit.info.role
        assert service["restart"] == "always"
        assert service["init"] is True


def test_every_link_is_on_the_proxy_and_dialled_by_its_unit(target: Any) -> None:
    listens = {proxy["name"]: proxy["listen"].rpartition(":")[2] for proxy in LINKS}
    table = LinkTable(target.units())
    assert set(listens) == {link.name for link in table.links}
    assert {proxy["upstream"] for proxy in LINKS} == {f"{unit}:7000" for unit in UNITS}
    for unit in target.units():
        dialled = {k: f"toxiproxy:{listens[f'{unit.name}-to-{k}']}" for k in unit.links}
        assert describe(environment(unit.name)).peers == dialled


def test_only_the_control_port_is_published_on_loopback() -> None:
    published = {name: s["ports"] for name, s in FILE["services"].items() if "ports" in s}
    assert set(published) == {"toxiproxy"}
    assert all(port.startswith("127.0.0.1:") for port in published["toxiproxy"])
    assert FILE["networks"]["links"]["internal"] is True
    assert "version" not in FILE


def test_no_service_sets_cpus() -> None:
    """With ``cpus`` the engine refuses to change the quota of a running container."""
    assert not any("cpus" in service for service in FILE["services"].values())


def test_a_unit_gets_its_config_from_the_environment(target: Any) -> None:
    script = runpy.run_path(str(ROOT / "docker" / "compose_unit.py"))
    variables = environment("learner-2")
    module, config = script["config_of"](describe(variables), variables)
    assert module == target.module()
    assert (config.unit, config.role, config.listen) == ("learner-2", "learner", "0.0.0.0:7000")
    assert config.peers["syncer"] == "toxiproxy:21002"
    assert set(config.peers) == {"syncer", "learner-0", "learner-1", "learner-3"}
    assert config.params == dict(target.params)
    variables = environment("syncer")
    assert script["config_of"](describe(variables), variables)[1].listen == "0.0.0.0:7000"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "CHAOS_UNIT"),
        ({"CHAOS_UNIT": "a", "CHAOS_SEED": "x"}, "CHAOS_SEED is 'x'"),
        ({"CHAOS_UNIT": "a", "CHAOS_PARAMS": "learners"}, "CHAOS_PARAMS has the word 'learners'"),
        ({"CHAOS_UNIT": "a", "CHAOS_PEERS": "=b"}, "CHAOS_PEERS has the word '=b'"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        describe(variables)


def test_values_are_json_or_text() -> None:
    words = "learners=4 grace=false step_time_s=0.5 trainer=lm speeds=[1.0,0.5]"
    assert describe({"CHAOS_UNIT": "a", "CHAOS_PARAMS": words}).params == {
        "learners": 4,
        "grace": False,
        "step_time_s": 0.5,
        "trainer": "lm",
        "speeds": [1.0, 0.5],
    }
