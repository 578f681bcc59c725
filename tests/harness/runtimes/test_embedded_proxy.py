"""What the embedded proxy does beyond the contract: validation, counters, toxicity, its limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.runtimes import embedded_proxy
from harness.runtimes.embedded_http import ApiError
from harness.runtimes.embedded_links import split_address
from harness.runtimes.embedded_proxy import Server
from harness.runtimes.embedded_toxics import KINDS, Bandwidth, Latency, Toxic
from harness.runtimes.places import Ports
from harness.runtimes.proxy_server import ProxyServer
from tests.contracts.proxy_contract import Bench, bench, echo, quiet, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("proxy")
    ports = Ports(directory=folder / "ports")
    with open(folder / "proxy.log", "ab", buffering=0) as log:
        made = ProxyServer(ports, log, "embedded", seed=7)
        yield made
        made.stop()
        ports.release()


@pytest.fixture
def link(server: ProxyServer, tmp_path: Path) -> Iterator[Bench]:
    ports = Ports(directory=tmp_path / "ports")
    with bench(server.links, ports) as made:
        yield made
    ports.release()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"type": "latency", "toxicity": 5}, "toxicity is 5"),
        ({"type": "latency", "toxicity": -0.1}, "toxicity"),
        ({"type": "latency", "toxicity": True}, "toxicity"),
        ({"type": "latency", "attributes": {"latency": -5}}, "latency.latency is -5"),
        ({"type": "latency", "attributes": {"latency": 1.5}}, "whole number"),
        ({"type": "latency", "attributes": {"lateness": 5}}, "it has latency, jitter"),
        ({"type": ["latency"]}, "invalid toxic type"),
        ([], "bad request body"),
    ],
)
def test_impossible_values_are_refused(link: Bench, body: Any, words: str) -> None:
    reply = link.api("POST", f"/proxies/{link.name}/toxics", json=body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]
    assert link.links.toxics() == ()


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "upstream": "nowhere"},
        {"name": "x", "upstream": "host:99999"},
        {"name": "x", "upstream": "h:1", "listen": "h:x"},
        {"name": "x", "upstream": "h:1", "enabled": "yes"},
        "text",
    ],
)
def test_a_proxy_that_cannot_be_is_refused(link: Bench, body: Any) -> None:
    assert link.api("POST", "/proxies", json=body).status_code == 400
    assert "x" not in link.links.names()


def test_bytes_are_counted_while_the_connection_is_open(link: Bench) -> None:
    def counted(what: str, stream: str) -> int:
        pattern = rf'{what}_bytes_total{{direction="{stream}",.*proxy="{link.name}".*}} (\d+)'
        found = re.search(pattern, link.api("GET", "/metrics").text)
        assert found is not None
        return int(found.group(1))

    client = link.connect()
    echo(client, b"x" * 1000)
    for what in ("received", "sent"):
        for stream in ("upstream", "downstream"):
            assert counted(what, stream) == 1000
    link.toxic("timeout", timeout=0)
    client.sendall(b"lost")
    wait_for(lambda: counted("received", "upstream") == 1004, "what came in is counted")
    assert counted("sent", "upstream") == 1000


def test_toxicity_zero_touches_nothing(link: Bench) -> None:
    body = {"type": "timeout", "toxicity": 0, "stream": "upstream"}
    assert link.api("POST", f"/proxies/{link.name}/toxics", json=body).status_code == 200
    echo(link.connect())


def test_a_silent_link_pushes_back_in_the_end(link: Bench) -> None:
    link.toxic("timeout", timeout=0)
    client = link.connect()
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.sendall(b"x" * 100_000_000)


def test_an_upstream_that_changes_ends_old_connections(link: Bench) -> None:
    client = link.connect()
    echo(client)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        upstream = f"127.0.0.1:{other.getsockname()[1]}"
        reply = link.api("POST", f"/proxies/{link.name}", json={"upstream": upstream})
        assert reply.json()["listen"] == link.address
        assert client.recv(1) == b""
        fresh = link.connect()
        accepted, _ = other.accept()
        accepted.sendall(b"new")
        assert fresh.recv(3) == b"new"
        accepted.close()


def test_a_web_page_cannot_drive_it(link: Bench) -> None:
    host, _, port = link.links.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        head = "DELETE /proxies/x HTTP/1.1\r\nUser-Agent: Mozilla/5.0\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "text", [b"nonsense\r\n\r\n", b"GET\r\n\r\n", b"x" * 200_000, b"POST / HTTP/1.1\r\n"]
)
def test_garbage_on_the_control_port_harms_nobody(link: Bench, text: bytes) -> None:
    host, _, port = link.links.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as client,
        contextlib.suppress(OSError),  # it need not read all of it, nor wait for our goodbye
    ):
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass
    assert link.links.version() == "embedded"


def test_a_body_that_is_too_long_is_refused(link: Bench) -> None:
    assert link.api("POST", "/populate", data="x" * 2_000_000).status_code == 400


def test_one_control_connection_takes_many_requests(link: Bench) -> None:
    host, _, port = link.links.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        for _ in range(3):
            client.sendall(b"GET /version HTTP/1.1\r\n\r\n")
            reply = client.recv(4096)
            assert b"keep-alive" in reply
            assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {"version": "embedded"}


def test_a_stalled_link_is_quiet_for_new_connections_too(link: Bench) -> None:
    link.toxic("bandwidth", rate=0)
    client = link.connect()
    client.sendall(b"x")
    assert quiet(client)


# --- stages on a clock that is set by hand -------------------------------------------------------


class Sink:
    def __init__(self) -> None:
        self.got: list[bytes | None] = []

    def feed(self, data: bytes) -> None:
        self.got.append(data)

    def eof(self) -> None:
        self.got.append(None)


class OneWay:
    def balance(self) -> None:
        pass

    def close(self) -> None:
        pass

    def reset(self) -> None:
        pass


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_jitter_is_drawn_from_the_seed() -> None:
    async def arrivals(seed: int) -> list[float]:
        stage = Latency(
            Toxic("l", "latency", "upstream", 1, {"latency": 20, "jitter": 15}),
            OneWay(),
            random.Random(seed),
        )
        planned: list[float] = []
        stage._arm = lambda at_s, action: planned.append(at_s - stage._queue[0][0])  # type: ignore[method-assign]
        stage.next = Sink()
        for _ in range(5):
            stage.feed(b"x")
            stage._release()
        return [round(p, 9) for p in planned]

    async def check() -> None:
        first = await arrivals(1)
        assert first == await arrivals(1)
        assert first != await arrivals(2)
        assert all(0.005 <= p <= 0.035 for p in first)

    run(check())


def test_what_is_held_goes_on_in_order_when_a_stage_is_removed() -> None:
    async def check() -> None:
        sink = Sink()
        toxic = Toxic("b", "bandwidth", "upstream", 1, {"rate": 0})
        stage = Bandwidth(toxic, OneWay(), random.Random(0))
        stage.next = sink
        stage.feed(b"a" * 10)
        stage.feed(b"b" * 70_000)
        assert stage.full
        stage.eof()
        assert sink.got == []
        stage.removed()
        assert b"".join(d for d in sink.got if d) == b"a" * 10 + b"b" * 70_000
        assert sink.got[-1] is None
        assert not stage.full

    run(check())


def test_every_kind_has_a_stage_and_whole_defaults() -> None:
    for kind in KINDS.values():
        assert all(isinstance(v, int) and v >= 0 for v in kind.defaults.values())


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:70000"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(address)


def test_good_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address(":80") == ("0.0.0.0", 80)


def test_an_unknown_call_is_said_to_be_unknown() -> None:
    async def check() -> None:
        with pytest.raises(ApiError, match="no such call: GET /nothing/here"):
            await Server().answer("GET", "/nothing/here", b"")

    run(check())


def test_a_busy_control_port_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert embedded_proxy.main(["--port", str(busy.getsockname()[1])]) == 1
    assert "cannot listen on 127.0.0.1" in capfd.readouterr().err
