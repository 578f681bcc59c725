"""The proxy contract on both servers, and how a server is found and started."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import LaunchError
from harness.leftovers import start_ticks
from harness.runtimes import proxy_server
from harness.runtimes.places import Ports
from harness.runtimes.proxy_server import ProxyServer, command, describe, locate
from tests.contracts import proxy_contract

CHOICES = ["embedded", pytest.param("toxiproxy", marks=pytest.mark.toxiproxy)]


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    made = Ports(directory=tmp_path / "ports")
    yield made
    made.release()


@pytest.fixture(scope="module", params=CHOICES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyServer]:
    if request.param == "toxiproxy" and locate() is None:
        pytest.skip("no Toxiproxy server on this machine")
    folder = tmp_path_factory.mktemp("proxy")
    ports = Ports(directory=folder / "ports")
    with open(folder / "proxy.log", "ab", buffering=0) as log:
        made = ProxyServer(ports, log, request.param)
        try:
            yield made
        finally:
            made.stop()
            ports.release()


@pytest.mark.parametrize("name", proxy_contract.CHECKS)
def test_contract(server: ProxyServer, ports: Ports, name: str) -> None:
    with proxy_contract.bench(server.links, ports) as bench:
        proxy_contract.CHECKS[name](bench)


def test_a_server_says_what_it_is(server: ProxyServer) -> None:
    assert server.version.split(" ")[0] in ("embedded", "toxiproxy")
    assert server.version == describe(server.version.split(" ")[0])


def test_a_busy_control_port_is_tried_again_elsewhere(
    ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, open(tmp_path / "log", "ab") as log:
        offers = iter([taken.getsockname()[1], ports.take()])
        monkeypatch.setattr(ports, "take", lambda: next(offers))
        made = ProxyServer(ports, log, "embedded")
        try:
            assert not made.links.address.endswith(f":{taken.getsockname()[1]}")
        finally:
            made.stop()


def test_a_port_on_which_another_proxy_answers_is_not_ours(
    server: ProxyServer, ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = int(server.links.address.rpartition(":")[2])
    offers = iter([foreign, ports.take()])
    monkeypatch.setattr(ports, "take", lambda: next(offers))
    with open(tmp_path / "log", "ab") as log:
        made = ProxyServer(ports, log, "embedded")
        try:
            assert made.links.address != server.links.address
        finally:
            made.stop()


def test_a_server_that_cannot_start_is_one_clear_error(
    ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(proxy_server, "command", lambda choice, port, seed: broken)
    with (
        open(tmp_path / "log", "ab") as log,
        pytest.raises(LaunchError, match=r"did not come up.*exit status 3.*log"),
    ):
        ProxyServer(ports, log)


def test_no_process_is_left_when_the_start_is_interrupted(ports: Ports, tmp_path: Path) -> None:
    seen: list[int] = []

    def interrupt(process: subprocess.Popen[bytes]) -> None:
        seen.append(process.pid)
        raise KeyboardInterrupt

    with open(tmp_path / "log", "ab") as log, pytest.raises(KeyboardInterrupt):
        ProxyServer(ports, log, "embedded", started=interrupt)
    assert [start_ticks(pid) for pid in seen] == [None]


def test_a_named_server_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(proxy_server.VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(LaunchError, match="no program that can be run"):
        locate()
    monkeypatch.setenv(proxy_server.VARIABLE, sys.executable)
    assert command("auto", 1, 0)[0] == sys.executable


def test_without_a_server_the_embedded_one_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(proxy_server.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GOBIN", raising=False)
    monkeypatch.delenv("GOPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert locate() is None
    assert describe("auto") == "embedded"
    with pytest.raises(LaunchError, match="go install"):
        command("toxiproxy", 1, 0)


def test_a_server_is_found_in_the_current_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(proxy_server.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    program = tmp_path / proxy_server.LOCAL
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert locate() == str(program)
