"""What every proxy server must do behind the adapter; run against the embedded and the real one.

Each ``check_*`` takes a :class:`Bench`: a server's adapter and one healthy link to an echo server.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import requests

from faults.base import LinkState
from harness.errors import ControlError
from harness.runtimes.places import Ports
from harness.runtimes.toxiproxy import Links

SOON_S = 10.0
"""Longest wait for what must come."""
QUIET_S = 0.25
"""How long to listen for what must not come."""

BROKEN = (
    LinkState(silent_up=True, silent_down=True),
    LinkState(silent_up=True),
    LinkState(silent_down=True),
    LinkState(refused=True),
    LinkState(stalled=True),
    LinkState(reset=True),
    LinkState(latency_ms=5),
    LinkState(bandwidth_kb_s=500, latency_ms=1),
    LinkState(cut_bytes=100),
    LinkState(refused=True, stalled=True, latency_ms=3),
)


class Echo:
    """An echo server. ``accepted`` holds its end of every connection, in order."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self.accepted.append(connection)
                self._spawn(self._answer, connection)

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End every connection and every thread."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self.accepted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(SOON_S)


class Bench:
    """One link under test."""

    def __init__(self, links: Links, ports: Ports, name: str) -> None:
        self.links = links
        self.name = name
        self.echo = Echo()
        self.address = links.create(name, f"127.0.0.1:{ports.take()}", self.echo.address)
        self._open: list[socket.socket] = []

    def put(self, **state: object) -> str:
        """Bring the link into a state."""
        return self.links.set_state(self.name, LinkState(**state))  # type: ignore[arg-type]

    def connect(self) -> socket.socket:
        """A new connection through the link."""
        host, _, port = self.address.rpartition(":")
        client = socket.create_connection((host, int(port)), timeout=SOON_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.append(client)
        return client

    def api(self, method: str, path: str, **options: object) -> requests.Response:
        """A call past the adapter."""
        return requests.request(
            method,
            f"http://{self.links.address}{path}",
            timeout=SOON_S,
            headers={"Connection": "close"},
            **options,  # type: ignore[arg-type]
        )

    def toxic(self, kind: str, stream: str = "upstream", **attributes: int) -> str:
        """Add a toxic past the adapter; returns its path."""
        body = {"type": kind, "stream": stream, "attributes": attributes}
        path = f"/proxies/{self.name}/toxics"
        assert self.api("POST", path, json=body).status_code == 200
        return f"{path}/{kind}_{stream}"

    def far_end(self, number: int = -1) -> socket.socket:
        """The echo server's end of a connection."""
        wait_for(lambda: bool(self.echo.accepted), "the proxy dials its upstream")
        return self.echo.accepted[number]

    def close(self) -> None:
        """Remove everything."""
        for client in self._open:
            client.close()
        self.links.delete(self.name)
        self.echo.close()


def wait_for(true: Callable[[], bool], what: str) -> None:
    """Until ``true()``, at most :data:`SOON_S`."""
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline, f"in {SOON_S} s it did not come to be that {what}"
        time.sleep(0.005)


def receive(client: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes."""
    data = bytearray()
    while len(data) < count:
        more = client.recv(count - len(data))
        assert more, f"the connection ended after {len(data)} of {count} bytes"
        data += more
    return bytes(data)


def echo(client: socket.socket, data: bytes = b"hello") -> None:
    """Send and get back."""
    client.sendall(data)
    assert receive(client, len(data)) == data


def quiet(client: socket.socket) -> bool:
    """Whether neither data nor an end comes for a while."""
    return not select.select([client], [], [], QUIET_S)[0]


def how_it_ends(client: socket.socket) -> str:
    """``fin`` or ``rst``; fails when the connection stays."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        return "rst"
    except TimeoutError:
        pytest.fail(f"the connection is still open after {SOON_S} s")
    return "fin"


# --- a healthy link -----------------------------------------------------------------------------


def check_bytes_arrive_whole_and_in_order(bench: Bench) -> None:
    client = bench.connect()
    data = bytes(range(256)) * 32_768  # 8 MiB: more than every buffer between
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join(SOON_S)


def check_each_end_hears_of_the_others(bench: Bench) -> None:
    near = bench.connect()
    echo(near)
    near.close()
    assert how_it_ends(bench.far_end()) == "fin"
    other = bench.connect()
    echo(other)
    bench.far_end().shutdown(socket.SHUT_RDWR)
    assert how_it_ends(other) == "fin"


def check_nobody_upstream_ends_the_connection(bench: Bench) -> None:
    bench.echo.close()
    assert how_it_ends(bench.connect()) in ("fin", "rst")


def check_a_link_has_a_name_of_its_own(bench: Bench) -> None:
    assert bench.name in bench.links.names()
    with pytest.raises(ControlError, match="already exists"):
        bench.links.create(bench.name, "127.0.0.1:0", bench.echo.address)
    with pytest.raises(ControlError, match="no link nobody"):
        bench.links.set_state("nobody", LinkState())
    bench.links.delete(bench.name)
    bench.links.delete(bench.name)
    assert bench.name not in bench.links.names()


def check_a_busy_port_is_an_error(bench: Bench) -> None:
    with pytest.raises(ControlError, match="in use"):
        bench.links.create("second", bench.echo.address, bench.echo.address)


# --- each condition -----------------------------------------------------------------------------


def check_latency_counts_in_each_direction(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.put(latency_ms=60)
    began = time.monotonic()
    echo(client)
    assert time.monotonic() - began >= 0.119
    bench.put()
    echo(client)  # the connection has lived through it


def check_latency_does_not_narrow_the_link(bench: Bench) -> None:
    client = bench.connect()
    bench.put(latency_ms=50)
    began = time.monotonic()
    for _ in range(100):
        client.sendall(b"x" * 100)
    receive(client, 10_000)
    # One after the other they would take ten seconds.
    assert time.monotonic() - began < 5


def check_bandwidth_is_a_bound(bench: Bench) -> None:
    client = bench.connect()
    bench.put(bandwidth_kb_s=200)
    began = time.monotonic()
    echo(client, b"x" * 60_000)
    assert time.monotonic() - began >= 0.25  # 0.3 s at the rate, less a first burst
    bench.put()
    echo(client, b"x" * 60_000)


def check_silence_is_silent_and_healing_ends_it(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.put(silent_up=True, silent_down=True)
    client.sendall(b"anybody?")
    assert quiet(client)
    late = bench.connect()  # accepted, and dialled as well, but that is all
    wait_for(lambda: len(bench.echo.accepted) == 2, "the upstream is dialled in silence too")
    late.sendall(b"anybody?")
    assert quiet(late)
    bench.put()
    assert how_it_ends(client) == "fin"
    assert how_it_ends(late) == "fin"
    echo(bench.connect())


def check_silence_can_be_one_way(bench: Bench) -> None:
    for state, heard_near, heard_far in (
        ({"silent_up": True}, True, False),
        ({"silent_down": True}, False, True),
    ):
        client = bench.connect()
        echo(client)
        far = bench.far_end()
        bench.put(**state)
        if heard_near:
            far.sendall(b"down")
            assert receive(client, 4) == b"down"
        if heard_far:
            client.sendall(b"up")  # the echo server takes it; its answer is lost
        client.sendall(b"more")
        assert quiet(client)
        bench.put()
        assert how_it_ends(client) in ("fin", "rst")


def check_a_stall_loses_nothing(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    path = bench.toxic("bandwidth", rate=0)
    client.sendall(b"patience")
    assert quiet(client)
    assert bench.api("DELETE", path).status_code == 204
    assert receive(client, 8) == b"patience"


def check_healing_a_stall_makes_the_link_anew(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.put(stalled=True)
    client.sendall(b"patience")
    assert quiet(client)
    assert "anew" in bench.put()
    how_it_ends(client)
    echo(bench.connect())


def check_healing_does_not_hang_on_a_link_that_died_stalled(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.put(stalled=True)
    client.sendall(b"x" * 200_000)
    bench.far_end().close()
    client.close()
    bench.put()
    echo(bench.connect())


def check_refused_ends_and_refuses(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.put(refused=True)
    assert how_it_ends(client) == "fin"
    with pytest.raises(ConnectionRefusedError):
        bench.connect()
    bench.put()
    echo(bench.connect())


def check_reset_comes_with_the_next_byte(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.put(reset=True)
    assert quiet(client)
    client.sendall(b"x")
    how_it_ends(client)
    fresh = bench.connect()
    fresh.sendall(b"x")
    assert how_it_ends(fresh) == "rst"
    bench.put()
    echo(bench.connect())


def check_cut_lets_so_many_bytes_through(bench: Bench) -> None:
    bench.put(cut_bytes=10)
    client = bench.connect()
    far = bench.far_end
    client.sendall(b"0123456789abcdef")
    how_it_ends(client)
    assert far() is not None
    bench.put()
    echo(bench.connect())


# --- toxics past the adapter --------------------------------------------------------------------


def check_timeout_ends_the_connection_after_its_time(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    bench.toxic("timeout", timeout=100)
    client.sendall(b"x")
    assert how_it_ends(client) == "fin"


def check_slow_close_keeps_the_end_back(bench: Bench) -> None:
    client = bench.connect()
    echo(client)
    far = bench.far_end()
    bench.toxic("slow_close", "downstream", delay=300)
    began = time.monotonic()
    far.shutdown(socket.SHUT_RDWR)
    assert how_it_ends(client) == "fin"
    assert time.monotonic() - began >= 0.29


def check_a_changed_toxic_holds_at_once(bench: Bench) -> None:
    client = bench.connect()
    path = bench.toxic("latency", latency=1)
    echo(client)
    reply = bench.api("POST", path, json={"attributes": {"latency": 100}})
    assert reply.json()["attributes"] == {"latency": 100, "jitter": 0}
    began = time.monotonic()
    echo(client)
    assert time.monotonic() - began >= 0.099


def check_a_slicer_keeps_every_byte(bench: Bench) -> None:
    client = bench.connect()
    bench.toxic("slicer", average_size=100, size_variation=20, delay=10)
    echo(client, bytes(range(256)) * 40)


def check_populate_and_reset(bench: Bench) -> None:
    other = {"name": "other", "listen": "127.0.0.1:0", "upstream": bench.echo.address}
    reply = bench.api("POST", "/populate", json=[other])
    assert reply.status_code == 201
    assert [p["name"] for p in reply.json()["proxies"]] == ["other"]
    bench.toxic("latency", latency=1)
    bench.api("POST", f"/proxies/{bench.name}", json={"enabled": False})
    assert bench.api("POST", "/reset").status_code == 204
    state = bench.api("GET", f"/proxies/{bench.name}").json()
    assert (state["enabled"], state["toxics"]) == (True, [])
    assert bench.api("DELETE", "/proxies/other").status_code == 204


def check_mistakes_have_a_status(bench: Bench) -> None:
    path = f"/proxies/{bench.name}/toxics"
    bench.toxic("latency", latency=1)
    for method, where, body, status in (
        ("POST", path, {"type": "latency", "stream": "upstream"}, 409),
        ("POST", path, {"type": "nonsense"}, 400),
        ("POST", path, {"type": "latency", "stream": "sideways"}, 400),
        ("DELETE", f"{path}/nothing", None, 404),
        ("GET", "/proxies/nobody", None, 404),
        ("POST", "/proxies", {"name": "lonely"}, 400),
    ):
        reply = bench.api(method, where, json=body)
        assert (reply.status_code, bool(reply.json()["error"])) == (status, True), (where, body)


# --- the adapter's promises ---------------------------------------------------------------------


def check_impossible_states_never_reach_the_server(bench: Bench) -> None:
    for state in ({"latency_ms": -5}, {"bandwidth_kb_s": 0}, {"cut_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(state))):
            bench.put(**state)
    assert bench.links.toxics() == ()


def check_any_state_can_follow_any_other(bench: Bench) -> None:
    for first, second in itertools.permutations(BROKEN, 2):
        bench.links.set_state(bench.name, first)
        bench.links.set_state(bench.name, second)
        bench.links.set_state(bench.name, second)
        bench.put()
        assert bench.links.toxics() == (), (first, second)
    echo(bench.connect())


def check_restoring_a_link_that_is_there_is_no_mistake(bench: Bench) -> None:
    """A change that is tried again while a server starts anew may come before the restoring."""
    bench.put(latency_ms=5)
    before = bench.links.toxics()
    assert bench.links.restore() == 1
    assert bench.links.toxics() == before != ()
    echo(bench.connect())
    bench.put()
    assert bench.links.toxics() == ()


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
"""Every check by name."""


@contextlib.contextmanager
def bench(links: Links, ports: Ports, name: str = "learner-0-to-syncer") -> Iterator[Bench]:
    """A bench that is removed afterwards, whatever happens."""
    made = Bench(links, ports, name)
    try:
        yield made
    finally:
        made.close()
