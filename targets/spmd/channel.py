"""The control channel between workers and launcher: one JSON object a line over TCP.

A worker dials (through its proxy link), says who it is and with which token, and is answered with
the launcher's incarnation. It carries a few hundred bytes a second, so nothing here is clever.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from targets.spmd.messages import AnyMessage

LINE_BYTES_MAX = 1 << 16
RETRY_S = 0.1
DIAL_S = 2.0
SEND_S = 5.0
"""A peer that takes nothing for so long is given up."""
FLUSH_S = 0.2
"""How long closing waits for what is queued."""


class Sink(Protocol):
    """Who is told what happens on the links."""

    def connected(self, peer: str) -> None:
        """A link to ``peer`` works; one of an earlier session is gone."""
        ...

    def disconnected(self, peer: str, why: str) -> None:
        """The link to ``peer`` broke."""
        ...

    def received(self, peer: str, message: Any) -> None:
        """A message came."""
        ...

    def noted(self, what: str, detail: str) -> None:
        """Something worth keeping."""
        ...


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """First line in each direction: who speaks. The launcher sends no token back."""

    run: str
    unit: str
    incarnation: int
    token: str = ""


class _Refused(Exception):
    """The peer may not speak; the message says why."""


class Session:
    """One connection: a thread that writes what is queued, and lines that are read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.peer = ""
        self.incarnation = 0
        self.silenced = False
        """Given up from this side: the sink hears nothing more of it."""
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = sock.makefile("rb")
        self._drained = threading.Event()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def line(self) -> bytes:
        """The next line, empty at the end. Raises ``ValueError`` for one that is too long."""
        line = self._reader.readline(LINE_BYTES_MAX + 1)
        if len(line) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
        return line if line.endswith(b"\n") else b""

    def put(self, value: Any) -> None:
        """Queue one object. Never blocks."""
        self._queue.put(msgspec.json.encode(value) + b"\n")

    def write(self) -> None:
        """Body of the writing thread; ends with the connection."""
        try:
            while (data := self._queue.get()) is not None:
                self.sock.sendall(data)
        except OSError:
            self.end()
        self._drained.set()

    def finish(self) -> None:
        """Send what is queued if that goes quickly, then end."""
        self._queue.put(None)
        self._drained.wait(FLUSH_S)
        self.end()

    def end(self) -> None:
        """Break the connection; both threads of it end."""
        self._queue.put(None)
        with contextlib.suppress(OSError):  # it was broken already
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class _Channel:
    """What both ends share."""

    def __init__(self, me: Card, sink: Sink) -> None:
        self._me = me
        self._sink = sink
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def send(self, peer: str, message: Any) -> None:
        """Queue ``message``; dropped when there is no link."""
        session = self._sessions.get(peer)
        if session is not None:
            session.put(message)

    def disconnect(self, peer: str, why: str) -> None:
        """Give the link up, without telling the sink."""
        session = self._sessions.get(peer)
        if session is not None:
            session.silenced = True
            # Not here: the caller holds locks, and what breaks the link must not wait for them.
            threading.Thread(target=session.end, daemon=True).start()

    def _serve(self, session: Session) -> None:
        """Read until the end. The caller has read the peer's card."""
        with self._lock:
            old = self._sessions.get(session.peer)
            if old is not None and old.incarnation > session.incarnation:
                session.end()
                return
            self._sessions[session.peer] = session
        if old is not None:
            old.silenced, told = True, old.silenced
            old.end()
            if not told:
                self._sink.disconnected(session.peer, "replaced by a newer connection")
        self._sink.connected(session.peer)
        why = "the peer closed the connection"
        try:
            while line := session.line():
                message = msgspec.json.decode(line, type=AnyMessage)
                if not session.silenced:
                    self._sink.received(session.peer, message)
        except (msgspec.MsgspecError, ValueError) as error:
            why = f"not a message: {error}"
            self._sink.noted("message-refused", f"from {session.peer}: {error}")
        except OSError as error:
            why = error.strerror or str(error)
        session.end()
        with self._lock:
            if self._sessions.get(session.peer) is session:
                del self._sessions[session.peer]
        if not session.silenced and not self._closing.is_set():
            self._sink.disconnected(session.peer, why)

    def _close_sessions(self) -> None:
        for session in list(self._sessions.values()):
            session.silenced = True
            session.finish()


class Listener(_Channel):
    """The launcher's end. ``address`` is ``host:port``; raises ``OSError`` when it is taken."""

    def __init__(self, me: Card, sink: Sink, address: str, units: Sequence[str]) -> None:
        super().__init__(me, sink)
        self._units = frozenset(units)
        host, _, port = address.rpartition(":")
        self._server = socket.create_server((host, int(port)), backlog=64)
        self.port: int = self._server.getsockname()[1]

    def start(self) -> None:
        """Begin to accept."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def close(self) -> None:
        """Stop accepting and end every link."""
        self._closing.set()
        self._server.close()
        self._close_sessions()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._admit, args=(Session(sock),), daemon=True).start()

    def _admit(self, session: Session) -> None:
        session.sock.settimeout(DIAL_S)
        try:
            card = self._checked(session.line())
        except (_Refused, OSError, ValueError) as error:
            if str(error) and not isinstance(error, OSError):
                self._sink.noted("connection-refused", str(error))
            session.end()
            return
        session.peer, session.incarnation = card.unit, card.incarnation
        session.sock.settimeout(None)
        me = self._me
        session.put(Card(run=me.run, unit=me.unit, incarnation=me.incarnation))
        threading.Thread(target=session.write, name="write", daemon=True).start()
        self._serve(session)

    def _checked(self, line: bytes) -> Card:
        if not line:
            raise OSError("nothing was said")
        try:
            card = msgspec.json.decode(line, type=Card)
        except msgspec.MsgspecError as error:
            raise _Refused(f"no card: {error}") from error
        if not hmac.compare_digest(card.token.encode(), self._me.token.encode()):
            raise _Refused(f"{card.unit[:64]!r} has a wrong token")
        if card.run != self._me.run:
            raise _Refused(f"{card.unit[:64]!r} is of run {card.run[:64]!r}")
        if card.unit not in self._units:
            raise _Refused(f"{card.unit[:64]!r} is no worker of this run")
        return card


class Dialer(_Channel):
    """A worker's end: keeps one connection to ``peer`` open, whatever happens."""

    def __init__(self, me: Card, sink: Sink, peer: str, address: str) -> None:
        super().__init__(me, sink)
        self._peer = peer
        host, _, port = address.rpartition(":")
        self._address = host, int(port)

    def start(self) -> None:
        """Begin to dial."""
        threading.Thread(target=self._manage, name="dial", daemon=True).start()

    def close(self) -> None:
        """Stop dialling and end the link, after what is queued if that goes quickly."""
        self._closing.set()
        self._close_sessions()

    def _manage(self) -> None:
        while not self._closing.is_set():
            try:
                sock = socket.create_connection(self._address, timeout=DIAL_S)
            except OSError:
                self._closing.wait(RETRY_S)
                continue
            session = Session(sock)
            session.put(self._me)
            threading.Thread(target=session.write, name="write", daemon=True).start()
            try:
                card = msgspec.json.decode(session.line(), type=Card)
            except (OSError, msgspec.MsgspecError, ValueError):
                # A proxy accepts for a launcher that is not there; it is tried again.
                session.end()
                self._closing.wait(RETRY_S)
                continue
            sock.settimeout(None)
            session.peer, session.incarnation = self._peer, card.incarnation
            self._serve(session)
            self._closing.wait(RETRY_S)
