"""The adapter's own promises, against servers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from faults.base import LinkState
from harness.errors import ControlError
from harness.runtimes.toxics import ends_links, toxics_for
from harness.runtimes.toxiproxy import Links

Answer = Callable[[bytes], bytes]


class Fake:
    """A server that reads a request and says what ``answer`` makes of it; b"" is silence."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.requests: list[bytes] = []
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._open.append(connection)
                self.requests.append(connection.recv(65536))
                if reply := self._answer(self.requests[-1]):
                    connection.sendall(reply)
                    connection.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
        for connection in self._open:
            connection.close()


@pytest.fixture
def fake() -> Iterator[Callable[[Answer], Fake]]:
    made: list[Fake] = []

    def make(answer: Answer) -> Fake:
        made.append(Fake(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()


def http(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def test_a_server_that_never_answers_is_an_error_within_the_deadline(
    fake: Callable[[Answer], Fake],
) -> None:
    links = Links("127.0.0.1", fake(lambda _: b"").port, call_s=0.2)
    for call in (
        links.version,
        links.names,
        links.toxics,
        lambda: links.create("a", "127.0.0.1:0", "127.0.0.1:1"),
        lambda: links.delete("a"),
    ):
        began = time.monotonic()
        with pytest.raises(ControlError, match=r"did not answer within 0.2 s.*end the server"):
            call()
        assert time.monotonic() - began < 10


def test_a_link_whose_change_failed_is_made_anew_by_the_next(
    fake: Callable[[Answer], Fake],
) -> None:
    """The stuck server of the field notes: removing a toxic hangs; later calls work again."""
    stuck = True

    def answer(request: bytes) -> bytes:
        line = request.split(b"\r\n")[0].decode()
        if "toxics" in line and stuck:
            return b""
        if line.startswith("GET /proxies "):
            return http(200, "{}")
        if line.startswith("POST /proxies "):
            return http(
                201, '{"name": "a", "listen": "127.0.0.1:9", "upstream": "u:1", "enabled": true}'
            )
        return http(204, "") if line.startswith("DELETE") else http(200, "{}")

    server = fake(answer)
    links = Links("127.0.0.1", server.port, call_s=0.2, probe=False)
    links.create("a", "127.0.0.1:9", "u:1")
    with pytest.raises(ControlError, match="put latency_upstream on link a"):
        links.set_state("a", LinkState(latency_ms=5))
    stuck = False
    assert links.set_state("a", LinkState()) == "link created anew"
    lines = [r.split(b" HTTP")[0] for r in server.requests]
    assert lines[-2:] == [b"DELETE /proxies/a", b"POST /proxies"]
    assert links.set_state("a", LinkState()) == ""


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (http(500, "disk on fire"), "answered 500: disk on fire"),
        (http(200, "not json"), "does not answer like a proxy server.*JSON"),
        (http(200, "{}"), "KeyError"),
        (b"SSH-2.0-OpenSSH\r\n", "no proxy server at"),
    ],
)
def test_odd_answers_are_clear_errors(
    fake: Callable[[Answer], Fake], reply: bytes, message: str
) -> None:
    with pytest.raises(ControlError, match=message):
        Links("127.0.0.1", fake(lambda _: reply).port, call_s=2).version()


def test_a_link_that_hangs_keeps_no_other_waiting(fake: Callable[[Answer], Fake]) -> None:
    asked = threading.Event()

    def answer(request: bytes) -> bytes:
        line = request.split(b"\r\n")[0].decode()
        if line.startswith("POST /proxies "):
            return http(201, '{"listen": "127.0.0.1:9"}')
        if "/proxies/a/" in line:
            asked.set()
            return b""
        return http(200, "{}")

    server = fake(answer)
    links = Links("127.0.0.1", server.port, call_s=60, probe=False)
    for name in ("a", "b"):
        links.create(name, "127.0.0.1:9", "u:1")
    failed: list[ControlError] = []

    def hang() -> None:
        try:
            links.set_state("a", LinkState(latency_ms=5))
        except ControlError as error:
            failed.append(error)

    stuck = threading.Thread(target=hang, daemon=True)
    stuck.start()
    assert asked.wait(10), "the call that hangs was never made"
    assert links.set_state("b", LinkState(latency_ms=5)) == ""
    assert stuck.is_alive()
    server.close()
    stuck.join(10)
    assert failed, "the call on link a did not end with its server"


def test_nobody_there_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ControlError, match=r"no proxy server at 127.0.0.1:\d+ .*refused"):
        Links("127.0.0.1", port).version()


def test_each_adapter_has_its_own_server_and_the_users_client_is_left_alone(
    fake: Callable[[Answer], Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    import toxiproxy.api

    before = (toxiproxy.api.APIConsumer.host, toxiproxy.api.APIConsumer.port)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not capture local calls
    servers = [fake(lambda _, n=n: http(200, f'{{"version": "{n}"}}')) for n in "12"]  # type: ignore[misc]
    one, two = (Links("127.0.0.1", server.port) for server in servers)
    assert [one.version(), two.version(), one.version()] == ["1", "2", "1"]
    assert (toxiproxy.api.APIConsumer.host, toxiproxy.api.APIConsumer.port) == before


def test_every_condition_has_its_toxics() -> None:
    full = LinkState(
        silent_up=True,
        silent_down=True,
        stalled=True,
        reset=True,
        latency_ms=1.6,
        bandwidth_kb_s=0.2,
        cut_bytes=7,
    )
    found = {(kind, stream): dict(values) for kind, stream, values in toxics_for(full).values()}
    both = ("upstream", "downstream")
    assert found == {
        ("limit_data", "upstream"): {"bytes": 7},
        **{("timeout", s): {"timeout": 0} for s in both},
        **{("reset_peer", s): {"timeout": 0} for s in both},
        **{("bandwidth", s): {"rate": 0} for s in both},
        **{("latency", s): {"latency": 2, "jitter": 0} for s in both},
    }
    assert toxics_for(LinkState()) == toxics_for(LinkState(refused=True)) == {}
    slow = toxics_for(LinkState(bandwidth_kb_s=0.2))
    assert slow["bandwidth_upstream"][2] == {"rate": 1}  # never the 0 that means a standstill


def test_only_latency_and_bandwidth_can_be_taken_off_a_living_link() -> None:
    keeps = toxics_for(LinkState(latency_ms=5, bandwidth_kb_s=10))
    ends = toxics_for(LinkState(silent_up=True, reset=True, stalled=True, cut_bytes=5))
    assert not any(map(ends_links, keeps.values()))
    assert all(map(ends_links, ends.values()))


@pytest.mark.parametrize(
    "state",
    [
        LinkState(latency_ms=-5),
        LinkState(latency_ms=float("nan")),
        LinkState(bandwidth_kb_s=0),
        LinkState(bandwidth_kb_s=-1),
        LinkState(bandwidth_kb_s=float("inf")),
        LinkState(cut_bytes=0),
    ],
)
def test_impossible_values_are_refused(state: LinkState) -> None:
    with pytest.raises(ValueError, match="is"):
        toxics_for(state)
