"""Connections through the embedded proxy: two sockets, two directions, stages in between.

Without toxics a direction is one ``write`` for each ``read`` plus backpressure; that is all the
cost a healthy link has.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from typing import cast

from harness.runtimes.embedded_toxics import KINDS, Receiver, Stage, Toxic

STREAMS = ("upstream", "downstream")
_LINGER_0 = struct.pack("ii", 1, 0)


class End(asyncio.Protocol):
    """One socket of a link: what is read here goes into ``out``, what is written comes by
    ``into``."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.out: Direction | None = None
        self.into: Direction | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait with reading until the other side is there."""
        self.transport = cast(asyncio.Transport, transport)
        # Not at once: up to Python 3.11 the loop starts to read after this call, come what may.
        asyncio.get_running_loop().call_soon(self.transport.pause_reading)
        self.link.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Into the first stage, or straight out on the other side."""
        assert self.out is not None
        self.out.feed(data)

    def eof_received(self) -> bool:
        """The peer closed; what is under way still arrives (True keeps our side open)."""
        if self.out is not None:
            self.out.eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; the other side learns it through the stages."""
        if self.out is not None:
            self.out.eof()
        self.link.lost()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        if self.into is not None:
            self.into.blocked = True
            self.into.balance()

    def resume_writing(self) -> None:
        """The socket takes more again."""
        if self.into is not None:
            self.into.blocked = False
            self.into.balance()


class Direction:
    """From one socket to the other, through this direction's stages."""

    def __init__(self, link: Link, source: End, dest: End) -> None:
        self.link = link
        self.source = source
        self.dest = dest
        self.stages: list[Stage] = []
        self.head: Receiver = Writer(self)
        self.tail = self.head
        self.blocked = False
        self.received = 0
        self.sent = 0
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Data from the source."""
        self.received += len(data)
        self.head.feed(data)
        if self.stages:
            self.balance()

    def eof(self) -> None:
        """The source ended; only the first call counts."""
        if not self._ended:
            self._ended = True
            self.head.eof()

    def balance(self) -> None:
        """Read the source exactly when what is read can go somewhere."""
        transport = self.source.transport
        if transport is None or transport.is_closing():
            return
        if self.blocked or any(stage.full for stage in self.stages):
            transport.pause_reading()
        elif not self._ended:
            transport.resume_reading()

    def close(self) -> None:
        """End the whole connection."""
        self.link.abort()

    def reset(self) -> None:
        """End the whole connection with RST."""
        self.link.abort(reset=True)

    def add(self, stage: Stage) -> None:
        """Put a stage at the end of the chain."""
        self.stages.append(stage)
        self._chain()
        stage.begin()
        self.balance()

    def remove(self, toxic: Toxic) -> None:
        """Take the toxic's stage out; what it holds goes on first, so order is kept."""
        for stage in [s for s in self.stages if s.toxic is toxic]:
            stage.removed()
            self.stages.remove(stage)
        self._chain()
        self.balance()

    def changed(self, toxic: Toxic) -> None:
        """The toxic has new attributes."""
        for stage in self.stages:
            if stage.toxic is toxic:
                stage.changed()
        self.balance()

    def stop(self) -> None:
        """Cancel every timer."""
        for stage in self.stages:
            stage.stop()

    def _chain(self) -> None:
        nexts: list[Receiver] = [*self.stages[1:], self.tail]
        for stage, following in zip(self.stages, nexts, strict=False):
            stage.next = following
        self.head = self.stages[0] if self.stages else self.tail


class Writer:
    """The end of a chain: the destination's socket."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction

    def feed(self, data: bytes) -> None:
        """Write, unless there is nobody left to write to."""
        transport = self._direction.dest.transport
        if transport is not None and not transport.is_closing():
            self._direction.sent += len(data)
            transport.write(data)

    def eof(self) -> None:
        """Close the destination once everything is written (Toxiproxy knows no half-close)."""
        transport = self._direction.dest.transport
        if transport is not None:
            transport.close()


class Link:
    """One client connection and the connection to the upstream that was dialled for it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.client = End(self)
        self.server = End(self)
        self.directions: dict[str, Direction] = {}
        self._dial: asyncio.Task[None] | None = None
        self._open = 2

    def arrived(self, end: End) -> None:
        """A socket is connected."""
        if end is self.client:
            self.proxy.links.add(self)
            self._dial = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        host, port = split_address(self.proxy.upstream)
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.server, host, port)
        except OSError:
            # Nobody there: the client sees its new connection end, as behind Toxiproxy.
            self._open = 1
            self.abort()
            return
        self._join()

    def _join(self) -> None:
        if any(e.transport is None or e.transport.is_closing() for e in (self.client, self.server)):
            self.abort()
            return
        for stream, source, dest in (
            ("upstream", self.client, self.server),
            ("downstream", self.server, self.client),
        ):
            direction = Direction(self, source, dest)
            self.directions[stream] = direction
            source.out = dest.into = direction
        for toxic in self.proxy.toxics:
            self.add(toxic)
        for direction in self.directions.values():
            direction.balance()

    def add(self, toxic: Toxic) -> None:
        """Put the toxic to work here, or not, as its toxicity decides."""
        direction = self.directions.get(toxic.stream)
        if direction is not None and self.proxy.rng.random() < toxic.toxicity:
            direction.add(KINDS[toxic.type].stage(toxic, direction, self.proxy.rng))

    def abort(self, reset: bool = False) -> None:
        """Close both sockets at once, whatever is under way."""
        if self._dial is not None and not self.directions:
            self._dial.cancel()
        for direction in self.directions.values():
            direction.stop()
        for end in (self.client, self.server):
            if end.transport is not None:
                if reset:
                    # A socket that is gone already cannot be told how to go.
                    with contextlib.suppress(OSError):
                        raw = end.transport.get_extra_info("socket")
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
                end.transport.abort()

    def lost(self) -> None:
        """One socket is gone; with the second the link is."""
        self._open -= 1
        if self._open <= 0 or not self.directions:
            for stream, direction in self.directions.items():
                direction.stop()
                self.proxy.count(stream, direction)
            self.proxy.links.discard(self)


class Proxy:
    """A listening address, an upstream, and the toxics between."""

    def __init__(self, name: str, listen: str, upstream: str, rng: random.Random) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.rng = rng
        self.toxics: list[Toxic] = []
        self.links: set[Link] = set()
        self.closed_bytes = {stream: [0, 0] for stream in STREAMS}
        self._server: asyncio.Server | None = None

    @property
    def enabled(self) -> bool:
        """Whether the proxy listens."""
        return self._server is not None

    async def start(self) -> None:
        """Listen; raises ``OSError`` when the address cannot be had."""
        host, port = split_address(self.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        raw = socket.create_server((host, port), family=family, backlog=1024)
        raw.setblocking(False)
        self.listen = f"{host}:{raw.getsockname()[1]}"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self).client, sock=raw)

    def stop(self) -> None:
        """Refuse new connections and end the open ones at once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in tuple(self.links):
            link.abort()

    def add_toxic(self, toxic: Toxic) -> None:
        """Put a toxic on every open and every later connection."""
        self.toxics.append(toxic)
        for link in tuple(self.links):
            link.add(toxic)

    def change_toxic(self, toxic: Toxic) -> None:
        """Let the connections follow a toxic's new attributes."""
        for link in tuple(self.links):
            for direction in link.directions.values():
                direction.changed(toxic)

    def remove_toxic(self, toxic: Toxic) -> None:
        """Take a toxic off again."""
        self.toxics.remove(toxic)
        for link in tuple(self.links):
            for direction in link.directions.values():
                direction.remove(toxic)

    def count(self, stream: str, direction: Direction) -> None:
        """Keep the byte counts of a link that ended."""
        self.closed_bytes[stream][0] += direction.received
        self.closed_bytes[stream][1] += direction.sent

    def bytes_of(self, stream: str) -> tuple[int, int]:
        """(received, sent) of a stream so far, open connections included."""
        received, sent = self.closed_bytes[stream]
        for link in self.links:
            if direction := link.directions.get(stream):
                received += direction.received
                sent += direction.sent
        return received, sent


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` in two; raises ``ValueError`` saying what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address {address!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)
