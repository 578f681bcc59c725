"""gRPC links between learners and the syncer: one bidirectional stream per learner.

The learner dials (through its proxy link) and keeps dialling; the syncer listens. Both ends
turn the stream into four calls on a :class:`Sink`, in order and one at a time per peer:
``connected``, any number of ``received``, ``disconnected``; and ``noted`` for what was refused.

**Detection bound.** A peer that is silent (a half-open link, a frozen process) is noticed within
:data:`DETECTION_BOUND_S` on both ends: HTTP/2 pings every :data:`KEEPALIVE_MS` must be answered
within :data:`PING_TIMEOUT_MS`. The ping timeout is set on both ends because gRPC's keepalive
timeout alone misses a frozen peer for a minute: its kernel still acknowledges. Units, whose
protocol watches for silence itself, leave the answer to a ping :data:`ANSWER_TIMEOUT_MS`: on a slow
link it waits behind the data, and what arrives shows that the link works (``arriving``).

**Bounds and what happens at them.** Frames are at most ``wire.FRAME_BYTES_MAX``. An outbox holds
at most ``OUTBOX_MESSAGES_MAX`` messages and twice the layout's bytes (at least 64 MiB) of
payload; a peer that lets it fill up does not read, so its link is *closed* (nothing is dropped
silently from a link that goes on). A refused frame is dropped and noted; after
:data:`REFUSALS_MAX` in a row the link is closed. A learner's newer session replaces its older
one; a session of an incarnation below the newest seen is refused.

**Security.** Every stream carries the run's bearer token, compared in constant time, and the run
id. With :class:`Tls` both ends show certificates, and a learner's common name must be its unit
name. Without it the token travels in the clear: for loopback and private networks.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from targets.diloco.messages import Heartbeat, Message
from targets.diloco.wire import (
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    FRAME_BYTES_MAX,
    Decoder,
    Encoder,
    FrameRefused,
    Limits,
    payload_bytes,
)

KEEPALIVE_MS = 1000
PING_TIMEOUT_MS = 1000
ANSWER_TIMEOUT_MS = 20_000
"""``Identity.answer_timeout_ms`` of ends that watch each other by heartbeats: a frozen peer is
their affair, and a long message in front of a ping is no reason to end a link."""
DETECTION_BOUND_S = 2.5
"""A silent or frozen peer is noticed within this time: keepalive + ping timeout + 0.5 s for
scheduling. The one place where the bound is stated; the protocol's own ``silence_ms_max`` (1.5 s)
usually notices first."""

RETRY_S = 0.1
"""Pause between two attempts to connect; gRPC's own backoff adds at most 0.5 s."""
OUTBOX_MESSAGES_MAX = 4096
OUTBOX_BYTES_MIN = 64 << 20
REFUSALS_MAX = 8
PART_S = 0.1
MEASURED_BYTES_MIN = 1 << 18
ARRIVING_S = 0.05
"""Of a message that is arriving in parts the sink is told at most so often."""
METHOD = "/diloco_chaos.v1.Syncer/Exchange"

_COMMON: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A little above the longest frame, so that it is the decoder that names the mistake.
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX + (1 << 16)),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX + (1 << 16)),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a busy port is an error, not a shared one
]
CLIENT_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.enable_http_proxy", 0),  # the only proxy on this link is the one that breaks it
    ("grpc.use_local_subchannel_pool", 1),
]


def ping_timeout_ms(silence_ms_max: int) -> int:
    """How long pings may take where the protocol gives a link up after ``silence_ms_max``: a
    little less than that, and not less than usual."""
    return max(PING_TIMEOUT_MS, silence_ms_max - 500)


class Sink(Protocol):
    """Who is told what happens on the links. Called from the transport's threads."""

    def connected(self, peer: str) -> None:
        """A link to ``peer`` works from now on."""
        ...

    def disconnected(self, peer: str, why: str) -> None:
        """The link to ``peer`` broke; not called for a link given up by ``disconnect``."""
        ...

    def received(self, peer: str, message: Message) -> None:
        """A whole, checked message of ``peer``."""
        ...

    def arriving(self, peer: str) -> None:
        """A part of a message of ``peer``, which is not whole yet; told now and then."""
        ...

    def noted(self, what: str, detail: str) -> None:
        """Something was refused: ``connection-refused``, ``frame-refused``."""
        ...


@dataclass(frozen=True)
class Identity:
    """Who this end is."""

    run: str
    unit: str
    incarnation: int
    token: str = field(repr=False)
    ping_timeout_ms: int = PING_TIMEOUT_MS
    """After a ping, how long nothing at all may come."""
    answer_timeout_ms: int = PING_TIMEOUT_MS
    """How long the answer to a ping itself may take. On a slow link it waits behind the data."""

    def patience(self) -> list[tuple[str, Any]]:
        """The gRPC options that say so."""
        return [
            ("grpc.keepalive_timeout_ms", self.ping_timeout_ms),
            ("grpc.http2.ping_timeout_ms", self.answer_timeout_ms),
        ]


@dataclass(frozen=True)
class Tls:
    """PEM files for mutual TLS."""

    ca: Path
    cert: Path
    key: Path

    def server(self) -> grpc.ServerCredentials:
        """Credentials of a server that insists on a certificate of the same authority."""
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)

    def channel(self) -> grpc.ChannelCredentials:
        """Credentials of a client."""
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
        )


class Traffic:
    """Bytes of frames in and out, all links of this process together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes_in = 0
        self.bytes_out = 0

    def count(self, received: int = 0, sent: int = 0) -> None:
        """Add to the counters."""
        with self._lock:
            self.bytes_in += received
            self.bytes_out += sent


class PartSize:
    """How large the parts of a message should be on one stream, by what the last long one took.

    A part shows at the other end once it is whole, and a heartbeat waits until the one before it
    has gone. So a part is what goes in about :data:`PART_S`; a new stream begins with the smallest.
    A link that turns slow is found out with the next message, or given up in the middle of one.
    """

    def __init__(self) -> None:
        self.nbytes = CHUNK_BYTES_MIN

    def took(self, nbytes: int, elapsed_s: float) -> None:
        """``nbytes`` of one message went out in ``elapsed_s``. Of little nothing can be told: the
        buffers on the way take it."""
        if nbytes >= MEASURED_BYTES_MIN:
            wanted = PART_S * nbytes / max(elapsed_s, 1e-6)
            grown = min(int(wanted), 4 * self.nbytes, CHUNK_BYTES)
            self.nbytes = max(grown, CHUNK_BYTES_MIN)


class Outbox:
    """Messages that wait for one stream; bounded. Heartbeats overtake, also between chunks."""

    def __init__(self, bytes_max: int, messages_max: int = OUTBOX_MESSAGES_MAX) -> None:
        self._bytes_max = bytes_max
        self._messages_max = messages_max
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._urgent: deque[Message] = deque()
        self._bytes = 0
        self._closed = False
        self._finishing = False

    def put(self, message: Message) -> bool:
        """Queue ``message``; False when that would pass a bound. Ignored once closed."""
        size = payload_bytes(message)
        with self._changed:
            if self._closed:
                return True
            if (
                len(self._queue) + len(self._urgent) >= self._messages_max
                or self._bytes + size > self._bytes_max
            ):
                return False
            self._bytes += size
            (self._urgent if isinstance(message, Heartbeat) else self._queue).append(message)
            self._changed.notify()
        return True

    def close(self) -> None:
        """End :meth:`frames`; what is still queued is dropped with the link."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._urgent.clear()
            self._changed.notify_all()

    def finish(self) -> None:
        """End :meth:`frames` once what is queued has been taken."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()

    def frames(self, encoder: Encoder, traffic: Traffic) -> Iterator[bytes]:
        """Frames as the stream asks for them; blocks while there is none, ends when closed."""
        part = PartSize()
        while (message := self._take(wait=True)) is not None:
            began = time.monotonic()
            for frame in encoder.frames(message, part.nbytes):
                while (urgent := self._take(wait=False)) is not None:
                    for beat in encoder.frames(urgent):
                        traffic.count(sent=len(beat))
                        yield beat
                if self._closed:
                    return
                traffic.count(sent=len(frame))
                yield frame
            with self._changed:
                self._bytes -= payload_bytes(message)
            part.took(payload_bytes(message), time.monotonic() - began)

    def _take(self, *, wait: bool) -> Message | None:
        """The next message; without ``wait`` only an urgent one."""
        with self._changed:
            while wait and not (self._closed or self._urgent or self._queue or self._finishing):
                self._changed.wait()
            if self._closed:
                return None
            if self._urgent:
                return self._urgent.popleft()
            return self._queue.popleft() if wait and self._queue else None


class _Session:
    """One stream of one peer, on either end."""

    def __init__(self, peer: str, incarnation: int, bytes_max: int) -> None:
        self.peer = peer
        self.incarnation = incarnation
        self.outbox = Outbox(bytes_max)
        self.cancel: Callable[[], object] = lambda: None
        self.ended = threading.Event()
        self.given_up = False
        self.why = ""
        self._lock = threading.Lock()

    def end(self, why: str, *, given_up: bool = False, tell: bool = False) -> None:
        """No message passes any more in either direction. The first reason stays.

        With ``tell`` the stream ends in good order and the peer learns the reason; without, it
        is cut off, which also frees a thread that is stuck sending.
        """
        with self._lock:
            first = not self.ended.is_set()
            if first:
                self.why = why
                self.given_up = given_up
                self.ended.set()
        self.outbox.close()
        if first and not tell:
            self.cancel()


class _Links:
    """What both ends share: sessions by peer, and calls to the sink in order.

    Lock order: a peer's dispatch lock, then whatever the sink takes, then an outbox's condition.
    ``send`` and ``disconnect`` take no dispatch lock, so a sink may call them.
    """

    def __init__(self, me: Identity, limits: Limits, sink: Sink, bytes_min: int = 0) -> None:
        self.traffic = Traffic()
        self._me = me
        self._limits = limits
        self._sink = sink
        self._sessions: dict[str, _Session] = {}
        self._dispatch: dict[str, threading.Lock] = {}
        self._bytes_max = max(2 * limits.layout_bytes, OUTBOX_BYTES_MIN, bytes_min)

    def send(self, peer: str, message: Message) -> None:
        """Queue ``message`` for ``peer``; dropped when there is no link. Never blocks."""
        session = self._sessions.get(peer)
        if session is not None and not session.outbox.put(message):
            session.end("the outbox is full: the peer does not read")

    def disconnect(self, peer: str, why: str) -> None:
        """Give the present link to ``peer`` up; the sink hears nothing more of it."""
        session = self._sessions.get(peer)
        if session is not None:
            session.end(why, given_up=True)

    def _encoder(self) -> Encoder:
        return Encoder(self._me.run, self._me.unit, self._me.incarnation)

    def _lock_of(self, peer: str) -> threading.Lock:
        return self._dispatch.setdefault(peer, threading.Lock())

    def _open(self, session: _Session) -> bool:
        """Make ``session`` the peer's link. False when a newer life of the peer is known."""
        with self._lock_of(session.peer):
            old = self._sessions.get(session.peer)
            if old is not None and old.incarnation > session.incarnation:
                return False
            if old is not None:
                silent = old.given_up
                old.end("replaced by a newer session")
                if not silent:
                    self._sink.disconnected(session.peer, old.why)
            self._sessions[session.peer] = session
            self._sink.connected(session.peer)
        return True

    def _closed(self, session: _Session, why: str) -> None:
        """``session`` ended; the sink is told unless it knows, or a newer one took over."""
        session.end(why)
        with self._lock_of(session.peer):
            if self._sessions.get(session.peer) is session:
                self._sessions.pop(session.peer)
                if not session.given_up:
                    self._sink.disconnected(session.peer, session.why)

    def _pump(self, session: _Session, frames: Iterator[bytes]) -> None:
        """Decode what arrives until the stream or the session ends."""
        decoder = Decoder(self._me.run, session.peer, session.incarnation, self._limits)
        refusals, tell_at = 0, 0.0
        for frame in frames:
            self.traffic.count(received=len(frame))
            try:
                message = decoder.feed(frame)
            except FrameRefused as refused:
                refusals += 1
                self._sink.noted("frame-refused", f"from {session.peer}: {refused}")
                if refusals >= REFUSALS_MAX:
                    session.end(
                        f"{refusals} refused frames in a row, the last: {refused}", tell=True
                    )
            else:
                refusals = 0
                if message is not None:
                    self._deliver(session, message)
                elif (now := time.monotonic()) >= tell_at:
                    tell_at = now + ARRIVING_S
                    self._arriving(session)
            if session.ended.is_set():
                return

    def _arriving(self, session: _Session) -> None:
        with self._lock_of(session.peer):
            current = self._sessions.get(session.peer) is session
            if current and not session.ended.is_set():
                self._sink.arriving(session.peer)

    def _deliver(self, session: _Session, message: Message) -> None:
        with self._lock_of(session.peer):
            current = self._sessions.get(session.peer) is session
            if current and not session.ended.is_set():
                self._sink.received(session.peer, message)


def _metadata(pairs: Sequence[Any] | None) -> dict[str, str]:
    return {
        str(key): value if isinstance(value, str) else value.decode("latin-1")
        for key, value in pairs or ()
    }


class Listener(_Links):
    """The end that is dialled: the syncer's, or a learner's for recovery.

    ``address`` is ``host:port``; port 0 takes a free one. ``bytes_min`` raises the outbox's bound.
    """

    def __init__(
        self,
        me: Identity,
        limits: Limits,
        sink: Sink,
        address: str,
        learners: Sequence[str],
        tls: Tls | None = None,
        bytes_min: int = 0,
    ) -> None:
        super().__init__(me, limits, sink, bytes_min)
        self._learners = frozenset(learners)
        self._newest: dict[str, int] = {}
        self._refusals: set[str] = set()
        self._admission = threading.Lock()
        self._tls = tls is not None
        # A stream keeps a thread for as long as it lasts; a learner may have its old, half-open
        # stream and its new one at a time, and a few strangers must not keep it out.
        workers = 2 * len(self._learners) + 8
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="stream")
        self._server = grpc.server(
            self._pool,
            options=[*SERVER_OPTIONS, *me.patience()],
            maximum_concurrent_rpcs=workers,
        )
        handler: Any = grpc.stream_stream_rpc_method_handler(self._exchange)
        service, _, method = METHOD[1:].partition("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        try:
            self.port = (
                self._server.add_secure_port(address, tls.server())
                if tls is not None
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error

    def start(self) -> None:
        """Begin to accept streams."""
        self._server.start()

    def close(self, grace_s: float = 0.2) -> None:
        """End every stream, after what is queued if that goes quickly; stop listening.

        Safe to call twice.
        """
        for session in list(self._sessions.values()):
            session.outbox.finish()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        for session in list(self._sessions.values()):
            session.end(f"{self._me.unit} stops", given_up=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        session = self._admit(context)
        session.cancel = context.cancel
        # Runs when the stream ends for whatever reason, also while no frame is on its way.
        if not context.add_callback(lambda: self._closed(session, "the stream ended")):
            return
        context.send_initial_metadata((("x-incarnation", str(self._me.incarnation)),))
        if not self._open(session):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a newer incarnation is known")
        reader = threading.Thread(
            target=self._read, args=(session, requests), daemon=True, name="read"
        )
        reader.start()
        yield from session.outbox.frames(self._encoder(), self.traffic)
        self._closed(session, "the stream ended")
        context.set_code(grpc.StatusCode.ABORTED)
        context.set_details(session.why)

    def _read(self, session: _Session, requests: Iterator[bytes]) -> None:
        why = "the learner closed the stream"
        try:
            self._pump(session, requests)
        except grpc.RpcError:
            why = "the stream broke or its pings were not answered"
        except Exception as error:
            # A mistake of our own: the stream must not go on without a reader.
            self._sink.noted("reader-failed", repr(error))
            why = f"the reader failed: {error!r}"
        self._closed(session, why)

    def _admit(self, context: Any) -> _Session:
        """The session of a caller who may speak; aborts the call of anybody else."""
        said = _metadata(context.invocation_metadata())
        unit = said.get("x-unit", "")
        with self._admission:
            code, why = self._objection(said, context)
            # Once per unit and reason: a refused caller asks again ten times a second.
            text = f"{unit[:64]}: {why}"
            new = code is not None and text not in self._refusals and len(self._refusals) < 64
            if new:
                self._refusals.add(text)
        if new:
            self._sink.noted("connection-refused", text)
        if code is not None:
            context.abort(code, why)
        return _Session(unit, int(said["x-incarnation"]), self._bytes_max)

    def _objection(self, said: dict[str, str], context: Any) -> tuple[grpc.StatusCode | None, str]:
        denied = grpc.StatusCode.PERMISSION_DENIED
        token = said.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(token, f"Bearer {self._me.token}".encode("latin-1")):
            return grpc.StatusCode.UNAUTHENTICATED, "wrong or missing bearer token"
        if said.get("x-run") != self._me.run:
            return denied, f"run {said.get('x-run', '')[:64]!r} is not {self._me.run!r}"
        unit = said.get("x-unit", "")
        if unit not in self._learners:
            return denied, f"unit {unit[:64]!r} is no learner of this run"
        if self._tls:
            names = context.auth_context().get("x509_common_name", ())
            if unit.encode() not in names:
                return denied, f"the certificate is not for {unit!r}"
        text = said.get("x-incarnation", "")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            return grpc.StatusCode.INVALID_ARGUMENT, f"incarnation {text[:64]!r}"
        newest = self._newest.get(unit, 0)
        if int(text) < newest:
            return (
                grpc.StatusCode.FAILED_PRECONDITION,
                f"incarnation {text} of {unit!r} is over: {newest} was here",
            )
        self._newest[unit] = int(text)
        return None, ""


class Dialer(_Links):
    """A learner's end: keeps one stream to ``peer`` at ``address`` open, whatever happens.

    With ``once`` it tries a single time, and tells the sink also of an attempt that failed.
    """

    def __init__(
        self,
        me: Identity,
        limits: Limits,
        sink: Sink,
        peer: str,
        address: str,
        tls: Tls | None = None,
        *,
        once: bool = False,
    ) -> None:
        super().__init__(me, limits, sink)
        self._peer = peer
        self._once = once
        self._trying: _Session | None = None
        options = [*CLIENT_OPTIONS, *me.patience()]
        if tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            # The address is the proxy's; the certificate names the unit behind it.
            options.append(("grpc.ssl_target_name_override", peer))
            self._channel = grpc.secure_channel(address, tls.channel(), options)
        self._exchange: Any = self._channel.stream_stream(METHOD)
        self._stopping = threading.Event()
        self._refusal = ""
        self._manager = threading.Thread(target=self._manage, daemon=True, name=f"dial-{peer}")

    def start(self) -> None:
        """Begin to dial."""
        self._manager.start()

    def close(self, grace_s: float = 0.2) -> None:
        """End the stream, after what is queued if that goes quickly; stop dialling.

        Safe to call twice.
        """
        self._stopping.set()
        session = self._sessions.get(self._peer)
        if session is not None:
            session.outbox.finish()
            session.ended.wait(grace_s)
            session.end("the learner stops", given_up=True)
        self._channel.close()

    def give_up(self, why: str) -> None:
        """End the link, or the attempt to open it, for good; the sink hears no more of it.

        Never blocks.
        """
        self._stopping.set()
        session = self._trying
        if session is not None:
            session.end(why, given_up=True)

    def _manage(self) -> None:
        while not self._stopping.is_set():
            self._attempt()
            if self._once:
                break
            self._stopping.wait(RETRY_S)
        if self._once:
            self._channel.close()

    def _attempt(self) -> None:
        """One stream, from dialling to its end."""
        session = self._trying = _Session(self._peer, 0, self._bytes_max)
        metadata = (
            ("authorization", f"Bearer {self._me.token}"),
            ("x-run", self._me.run),
            ("x-unit", self._me.unit),
            ("x-incarnation", str(self._me.incarnation)),
        )
        opened = threading.Event()
        try:
            call = self._exchange(
                session.outbox.frames(self._encoder(), self.traffic), metadata=metadata
            )
        except ValueError:  # the channel was closed while we were about to dial
            return
        session.cancel = call.cancel
        if self._stopping.is_set():  # while we dialled
            session.end("given up", given_up=True)
        reader = threading.Thread(
            target=self._read, args=(session, call, opened), daemon=True, name="read"
        )
        reader.start()
        # The syncer may accept the connection and never the stream: give such an attempt up too.
        if not opened.wait(DETECTION_BOUND_S):
            session.end("no answer to the call")
        reader.join()

    def _read(self, session: _Session, call: Any, opened: threading.Event) -> None:
        why = f"{self._peer} closed the stream"
        worked = False
        try:
            said = _metadata(call.initial_metadata())
            if "x-incarnation" in said and not session.ended.is_set():
                session.incarnation = int(said["x-incarnation"])
                if self._open(session):
                    opened.set()
                    worked = True
                    self._refusal = ""
                else:
                    session.end(f"an older life of {self._peer} answered")
            self._pump(session, call)
        except grpc.RpcError as error:
            why = self._explain(error)
        except Exception as error:
            self._sink.noted("reader-failed", repr(error))
            why = f"the reader failed: {error!r}"
        self._closed(session, why)
        if self._once and not worked and not session.given_up:
            self._sink.disconnected(self._peer, session.why)
        opened.set()

    def _explain(self, error: Any) -> str:
        code = error.code()
        if code in (
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.INVALID_ARGUMENT,
        ):
            refusal = f"{self._peer}: {error.details()}"
            if refusal != self._refusal:  # once, not ten times a second
                self._refusal = refusal
                self._sink.noted("connection-refused", refusal)
        return f"{code.name}: {error.details()}"
