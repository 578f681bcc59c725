"""Both ends of a link for tests: sinks that record, and a TCP proxy that can fall silent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from targets.diloco.transport import Dialer, Identity, Listener, Tls
from targets.diloco.wire import Limits

LIMITS = Limits((1 << 20, 4 << 20))
TOKEN = "a token"
RUN = "run-1"


def until(what: str, condition: Callable[[], Any], timeout_s: float = 10.0) -> float:
    """Poll until ``condition`` holds and return how long that took; fail with ``what``."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.002)
    return time.monotonic() - began


class Recorder:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.messages: list[Any] = []
        self.parts: list[str] = []

    def connected(self, peer: str) -> None:
        self.told.append(("connected", peer))

    def disconnected(self, peer: str, why: str) -> None:
        self.told.append(("disconnected", peer, why))

    def received(self, peer: str, message: Any) -> None:
        self.messages.append(message)

    def arriving(self, peer: str) -> None:
        self.parts.append(peer)

    def noted(self, what: str, detail: str) -> None:
        self.told.append((what, detail))

    def kinds(self) -> list[str]:
        return [entry[0] for entry in self.told]

    def up(self) -> bool:
        """Whether the newest link event says connected."""
        links = [k for k in self.kinds() if k in ("connected", "disconnected")]
        return bool(links) and links[-1] == "connected"


def identity(unit: str = "learner-0", **changes: Any) -> Identity:
    return Identity(**{"run": RUN, "unit": unit, "incarnation": 1, "token": TOKEN, **changes})


@contextmanager
def listening(
    sink: Any = None,
    tls: Tls | None = None,
    learners: tuple[str, ...] = ("learner-0", "learner-1"),
    me: Identity | None = None,
) -> Iterator[tuple[Listener, Any]]:
    """A syncer's end on a free loopback port, and its sink."""
    sink = sink or Recorder()
    listener = Listener(me or identity("syncer"), LIMITS, sink, "127.0.0.1:0", learners, tls)
    listener.start()
    try:
        yield listener, sink
    finally:
        listener.close()


@contextmanager
def dialling(
    port: int, me: Identity | None = None, tls: Tls | None = None, sink: Any = None
) -> Iterator[tuple[Dialer, Any]]:
    """A learner's end, and its sink."""
    sink = sink or Recorder()
    me = me or identity()
    dialer = Dialer(me, LIMITS, sink, "syncer", f"127.0.0.1:{port}", tls)
    dialer.start()
    try:
        yield dialer, sink
    finally:
        dialer.close()


class SilentProxy:
    """Forwards TCP to ``port`` until ``silent`` is set; then it swallows everything instead.

    Connections stay open meanwhile: the half-open link that nobody is told about.
    """

    def __init__(self, port: int) -> None:
        self.silent = False
        self._upstream = port
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in [self._server, *self._sockets]:
            sock.close()

    def __enter__(self) -> SilentProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                upstream = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                return
            self._sockets += [client, upstream]
            for source, sink in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if not self.silent:
                    sink.sendall(data)
            if not self.silent:
                sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other direction or the test closed it
