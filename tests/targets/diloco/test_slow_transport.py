"""One long message over a slow link, on real sockets: what is busy is not silent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from faults.base import LinkState
from harness.runtimes.places import Ports
from harness.runtimes.proxy_server import ProxyServer
from targets.diloco.liveness import Link
from targets.diloco.messages import Fragment, Payload
from targets.diloco.params import DilocoParams
from targets.diloco.transport import ANSWER_TIMEOUT_MS, PartSize, ping_timeout_ms
from targets.diloco.wire import CHUNK_BYTES, CHUNK_BYTES_MIN
from tests.targets.diloco.links import Recorder, dialling, identity, listening, until

KB_S = 400
SIZE = 1_600_000
PARAMS = DilocoParams(heartbeat_ms=250, silence_ms_max=1500)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyServer, Ports]]:
    folder = tmp_path_factory.mktemp("proxy")
    ports = Ports(directory=folder / "ports")
    with open(folder / "proxy.log", "ab", buffering=0) as log:
        made = ProxyServer(ports, log, "embedded", seed=7)
        yield made, ports
        made.stop()
        ports.release()


class Watched(Recorder):
    """Keeps the liveness of its link as the nodes do, without heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.link = Link("peer", PARAMS)
        self.silences: list[str] = []

    def look(self) -> None:
        verdict, why = self.link.check(time.monotonic_ns())
        if verdict == "silent":
            self.silences.append(why)

    def connected(self, peer: str) -> None:
        super().connected(peer)
        self.link.opened(time.monotonic_ns())

    def arriving(self, peer: str) -> None:
        super().arriving(peer)
        self.look()
        self.link.heard_ns = time.monotonic_ns()

    def received(self, peer: str, message: object) -> None:
        super().received(peer, message)
        self.look()
        self.link.heard_ns = time.monotonic_ns()


@pytest.mark.parametrize("upwards", [True, False])
def test_a_message_that_takes_longer_than_the_silence_bound_shows_while_it_comes(
    proxy: tuple[ProxyServer, Ports], upwards: bool
) -> None:
    server, ports = proxy
    syncer, learner = Watched(), Watched()
    # As units have it: nothing but the answer to a ping may take its time.
    patience: dict[str, Any] = {
        "ping_timeout_ms": ping_timeout_ms(PARAMS.silence_ms_max),
        "answer_timeout_ms": ANSWER_TIMEOUT_MS,
    }
    me = identity(**patience)
    with listening(syncer, me=identity("syncer", **patience)) as (listener, _):
        name = f"slow-{'up' if upwards else 'down'}"
        address = server.links.create(
            name, f"127.0.0.1:{ports.take()}", f"127.0.0.1:{listener.port}"
        )
        port = int(address.rpartition(":")[2])
        with dialling(port, me, sink=learner) as (dialer, _):
            until("connected", lambda: learner.up() and syncer.up())
            server.links.set_state(name, LinkState(bandwidth_kb_s=KB_S))
            sender, receiver = (dialer, syncer) if upwards else (listener, learner)
            peer = "syncer" if upwards else "learner-0"
            payload = Payload("f32", SIZE, "d", bytes(SIZE))
            sender.send(peer, Fragment(1, 1, 1, payload, {}))
            took = until("it came", lambda: receiver.messages, timeout_s=15)
            assert took > PARAMS.silence_ms_max / 1000, "the link was not slow"
            assert receiver.silences == []
            assert len(receiver.parts) > took / PARAMS.silence_ms_max * 1000
            assert "disconnected" not in syncer.kinds() + learner.kinds()
        server.links.set_state(name, LinkState())


def test_parts_fit_the_link_and_start_small() -> None:
    part = PartSize()
    assert part.nbytes == CHUNK_BYTES_MIN
    part.took(1000, 1e-9)  # the buffers took it
    assert part.nbytes == CHUNK_BYTES_MIN
    sizes = []
    for _ in range(4):
        part.took(16 << 20, 0.1)
        sizes.append(part.nbytes)
    assert sizes == [1 << 16, 1 << 18, 1 << 20, CHUNK_BYTES]
    part.took(1 << 20, 2.0)
    assert part.nbytes == (1 << 20) // 20
    part.took(1 << 20, 1000.0)
    assert part.nbytes == CHUNK_BYTES_MIN
