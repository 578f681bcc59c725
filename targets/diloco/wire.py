"""Messages to and from frames: bytes on one gRPC stream, checked before anybody believes them.

A frame (``diloco.proto``) is a header, a piece of payload and a CRC-32 over both. The header
repeats who speaks: run id, sender, incarnation and vector clock. A message without a payload is
one frame; a payload travels in parts of one size, which the first part shows, of at most
:data:`CHUNK_BYTES`: raw little-endian elements, never pickle. Messages other than the one being
cut up may come between its parts (heartbeats do, so that a large fragment does not look like
silence), but two payloads never interleave.

The CRC finds damage, not malice; whoever may speak at all is the business of the transport's
token and certificates. Every way in which a frame can be wrong ends in :class:`FrameRefused`
with a kind, never in another exception, and never in more memory than :class:`Limits` allows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from google.protobuf.message import DecodeError

from targets.diloco import diloco_pb2 as pb
from targets.diloco.messages import (
    Fragment,
    Heartbeat,
    Hello,
    Message,
    NeedState,
    PartSaved,
    Payload,
    Pull,
    Push,
    Refused,
    Report,
    SnapshotsKept,
    StateAck,
    StateOffer,
    StatePart,
    StateRequest,
    Welcome,
)

FORMAT = 1
"""Version of the meaning of ``diloco.proto``."""

CHUNK_BYTES = 1 << 20
"""Payload bytes per frame; gRPC is fastest at 1 to 4 MiB and half as fast at 32 MiB."""

CHUNK_BYTES_MIN = 1 << 14
"""Slow links carry smaller parts, not smaller than this, so that something arrives now and then."""

FRAME_BYTES_MAX = CHUNK_BYTES + (1 << 16)
"""Longest frame: a full chunk and a generous header. gRPC itself refuses longer ones."""

CLOCK_ENTRIES_MAX = 256
TEXT_MAX = 4096
DTYPES = frozenset({"f32", "bf16", "int4"})

Kind = Literal[
    "malformed",  # not a frame at all
    "oversized",  # longer than a frame, a payload or a list may be
    "checksum",  # damaged on the way
    "format",  # another version of the wire
    "run",  # of another run
    "sender",  # not the unit that this stream belongs to
    "fenced",  # of another incarnation of the sender
    "order",  # a part that does not follow the one before
    "truncated",  # fewer payload bytes than promised
    "layout",  # speaks of fragments that the layout does not have
]

_BODIES: dict[type[Any], str] = {
    Hello: "hello",
    Report: "report",
    Push: "push",
    Heartbeat: "heartbeat",
    Welcome: "welcome",
    Pull: "pull",
    Fragment: "fragment",
    Refused: "refused",
    NeedState: "need_state",
    StateRequest: "state_request",
    StateOffer: "state_offer",
    StatePart: "state_part",
    StateAck: "state_ack",
    PartSaved: "part_saved",
    SnapshotsKept: "snapshots_kept",
}
_Fragments = Fragment | StatePart

_CLASSES = {name: kind for kind, name in _BODIES.items()}


class FrameRefused(Exception):
    """A frame was wrong. ``kind`` is one word (:data:`Kind`); the text says what was seen.

    ``message`` is what the frame's header said, without payload, when the header itself was
    sound; it lets the receiver say whose update it refused.
    """

    def __init__(self, kind: Kind, detail: str, message: Message | None = None) -> None:
        self.kind: Kind = kind
        self.message = message
        super().__init__(f"{kind}: {detail}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that follow from the parameter layout, which both ends know."""

    fragment_bytes: tuple[int, ...]
    """Most payload bytes of each fragment (4 per element: no wire dtype is longer than f32)."""

    @classmethod
    def of_elements(cls, elements: tuple[int, ...]) -> Limits:
        """Bounds for fragments of so many elements."""
        return cls(tuple(4 * n for n in elements))

    @property
    def layout_bytes(self) -> int:
        """All fragments together."""
        return sum(self.fragment_bytes)


def payload_bytes(message: Message) -> int:
    """Bytes of payload that ``message`` brings onto the wire; 0 for most kinds."""
    payload = getattr(message, "payload", None)
    return 0 if payload is None or payload.data is None else memoryview(payload.data).nbytes


# --- out ----------------------------------------------------------------------------------------


class Encoder:
    """Cuts messages of one sender into frames for one stream."""

    def __init__(self, run: str, sender: str, incarnation: int) -> None:
        self._run = run
        self._sender = sender
        self._incarnation = incarnation
        self._number = 0

    def frames(self, message: Message, part_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The frames of ``message``, made one at a time as they are asked for, each with
        ``part_bytes`` of its payload (between the two bounds above).

        Raises ``TypeError`` for what is no message and ``ValueError`` for numbers that do not
        fit (negative ones); both are mistakes of our own.
        """
        body = _body_name(message)
        self._number += 1
        data = _view(message)
        parts = max(1, -(-len(data) // part_bytes))
        header = pb.Header(
            format=FORMAT,
            run=self._run,
            sender=self._sender,
            incarnation=self._incarnation,
            clock=message.clock,
            number=self._number,
            parts=parts,
            total=len(data),
        )
        first = pb.Header()
        first.CopyFrom(header)
        _fill(getattr(first, body), message)
        yield _seal(first, data[:part_bytes])
        for part in range(1, parts):
            header.part = part
            yield _seal(header, data[part * part_bytes : (part + 1) * part_bytes])


def _body_name(message: Message) -> str:
    try:
        return _BODIES[type(message)]
    except KeyError:
        raise TypeError(f"{type(message).__name__} is not a message of this wire") from None


def _view(message: Message) -> memoryview:
    payload = getattr(message, "payload", None)
    if payload is None or payload.data is None:
        return memoryview(b"")
    return memoryview(payload.data).cast("B")


def _seal(header: Any, chunk: memoryview) -> bytes:
    head = header.SerializeToString()
    frame = pb.Frame(header=head, chunk=bytes(chunk), checksum=_checksum(head, chunk))
    return bytes(frame.SerializeToString())


def _checksum(header: bytes, chunk: bytes | memoryview) -> int:
    # Starting from the header's length keeps the border between header and chunk in the sum.
    return zlib.crc32(chunk, zlib.crc32(header, len(header)))


def _fill(body: Any, message: Message) -> None:
    body.SetInParent()  # a body all of whose fields are zero is still there
    for name, repeated in _FIELDS[type(message)]:
        value = getattr(message, name)
        if name == "payload":
            _fill_payload(body.payload, value)
        elif not repeated:
            setattr(body, name, value)
        elif value is not None:
            getattr(body, name).extend(value)
    if isinstance(message, Hello):
        body.has_state = message.versions is not None


def _fill_payload(body: Any, payload: Payload) -> None:
    body.dtype = payload.dtype
    body.nbytes = payload.nbytes
    body.digest = payload.digest
    body.absent = payload.data is None


def _fields(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    hints = get_type_hints(kind)
    return tuple((name, "tuple" in str(hint)) for name, hint in hints.items() if name != "clock")


_FIELDS: dict[type[Any], tuple[tuple[str, bool], ...]] = {k: _fields(k) for k in get_args(Message)}
"""Message to its (field, is a tuple) pairs; the clock travels in the header."""


# --- in -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Assembly:
    """A payload whose parts are still arriving."""

    number: int
    parts: int
    total: int
    message: Message
    chunks: list[bytes]


class Decoder:
    """Puts the frames of one stream together again; the stream belongs to one life of one unit."""

    def __init__(self, run: str, sender: str, incarnation: int, limits: Limits) -> None:
        self._run = run
        self._sender = sender
        self._incarnation = incarnation
        self._limits = limits
        self._assembly: _Assembly | None = None
        self._skipped = 0  # number of a refused message whose other parts are ignored

    def feed(self, frame: bytes) -> Message | None:
        """The message that ``frame`` completes, or None. Raises :class:`FrameRefused`.

        After a refusal the decoder is ready for the next message.
        """
        header, chunk = self._open(frame)
        if header.number == self._skipped and header.part > 0:
            return None
        try:
            if header.part == 0:
                return self._first(header, chunk)
            return self._next(header, chunk)
        except FrameRefused:
            self._skipped = header.number
            raise

    def _open(self, frame: bytes) -> tuple[Any, bytes]:
        if len(frame) > FRAME_BYTES_MAX:
            raise FrameRefused("oversized", f"frame of {len(frame)} bytes")
        try:
            outer = pb.Frame.FromString(frame)
        except DecodeError as error:
            raise FrameRefused("malformed", f"not a frame: {error}") from None
        head, chunk = outer.header, outer.chunk  # each access copies
        if outer.checksum != _checksum(head, chunk):
            self._drop_assembly()
            raise FrameRefused("checksum", f"frame of {len(frame)} bytes is damaged")
        try:
            header = pb.Header.FromString(head)
        except DecodeError as error:
            raise FrameRefused("malformed", f"not a header: {error}") from None
        self._check_origin(header)
        return header, chunk

    def _check_origin(self, header: Any) -> None:
        if header.format != FORMAT:
            raise FrameRefused("format", f"format {header.format}, this is {FORMAT}")
        if header.run != self._run:
            raise FrameRefused("run", f"frame of run {header.run[:64]!r}, this is {self._run!r}")
        if header.sender != self._sender:
            raise FrameRefused(
                "sender", f"frame of {header.sender[:64]!r} on the stream of {self._sender!r}"
            )
        if header.incarnation != self._incarnation:
            raise FrameRefused(
                "fenced",
                f"incarnation {header.incarnation} of {self._sender!r} on the stream of "
                f"incarnation {self._incarnation}",
            )
        if len(header.clock) > CLOCK_ENTRIES_MAX:
            raise FrameRefused("oversized", f"vector clock of {len(header.clock)} entries")

    def _drop_assembly(self) -> None:
        # Whose part was damaged is not known; the message being put together lost one or may
        # have, and is not worth guessing.
        if self._assembly is not None:
            self._skipped = self._assembly.number
            self._assembly = None

    def _first(self, header: Any, chunk: bytes) -> Message | None:
        message = self._body(header)
        self._check_parts(header, chunk, message, _part_bytes(header, chunk))
        payload = getattr(message, "payload", None)
        if payload is None or header.parts == 1:
            return message if payload is None else _with_data(message, chunk, header)
        if self._assembly is not None:
            self._drop_assembly()
            raise FrameRefused("order", "a payload began before the last one was complete", message)
        self._assembly = _Assembly(header.number, header.parts, header.total, message, [chunk])
        return None

    def _next(self, header: Any, chunk: bytes) -> Message | None:
        assembly = self._assembly
        if assembly is None or header.number != assembly.number:
            raise FrameRefused("order", f"part {header.part} of an unknown message")
        if header.part != len(assembly.chunks) or header.total != assembly.total:
            self._assembly = None
            raise FrameRefused(
                "order",
                f"part {header.part} where {len(assembly.chunks)} was due",
                assembly.message,
            )
        self._check_parts(header, chunk, assembly.message, len(assembly.chunks[0]))
        assembly.chunks.append(chunk)
        if len(assembly.chunks) < assembly.parts:
            return None
        self._assembly = None
        return _with_data(assembly.message, b"".join(assembly.chunks), header)

    def _body(self, header: Any) -> Message:
        name = header.WhichOneof("body")
        if name is None:
            raise FrameRefused("malformed", "a first part without a body")
        body = getattr(header, name)
        kind = _CLASSES[name]
        values: dict[str, Any] = {"clock": dict(header.clock)}
        for field, repeated in _FIELDS[kind]:
            value = getattr(body, field)
            if field == "payload":
                values[field] = Payload(value.dtype, value.nbytes, value.digest)
            else:
                values[field] = tuple(value) if repeated else value
        if kind is Hello and not body.has_state:
            values["versions"] = None
        message: Message = kind(**values)
        self._check_layout(message)
        return message

    def _check_layout(self, message: Message) -> None:
        known = self._limits.fragment_bytes
        for name, value in ((n, getattr(message, n)) for n, _ in _FIELDS[type(message)]):
            if isinstance(value, str) and len(value) > TEXT_MAX:
                raise FrameRefused("oversized", f"{name} of {len(value)} characters")
            if isinstance(value, tuple) and len(value) > max(len(known), CLOCK_ENTRIES_MAX):
                raise FrameRefused("oversized", f"{name} of {len(value)} entries")
        for name in ("versions", "committed", "c_steps", "c_tokens"):
            value = getattr(message, name, None)
            if isinstance(value, tuple) and len(value) not in (0, len(known)):
                raise FrameRefused(
                    "layout", f"{name} has {len(value)} entries for {len(known)} fragments", message
                )
        if isinstance(message, Push | Pull | _Fragments) and message.fragment >= len(known):
            raise FrameRefused(
                "layout", f"fragment {message.fragment} of {len(known)} fragments", message
            )

    def _check_parts(self, header: Any, chunk: bytes, message: Message, size: int) -> None:
        payload: Payload | None = getattr(message, "payload", None)
        if header.parts != max(1, -(-header.total // size)):
            raise FrameRefused(
                "malformed", f"{header.parts} parts for {header.total} bytes", message
            )
        if payload is None:
            if header.total or chunk:
                raise FrameRefused("malformed", "payload on a message that has none", message)
            return
        self._check_payload(header, payload, message)
        due = min(size, header.total - header.part * size)
        if len(chunk) != due:
            kind: Kind = "truncated" if len(chunk) < due else "oversized"
            raise FrameRefused(
                kind, f"part {header.part} has {len(chunk)} bytes instead of {due}", message
            )

    def _check_payload(self, header: Any, payload: Payload, message: Message) -> None:
        assert isinstance(message, Push | _Fragments)  # the only kinds with a payload
        limit = self._limits.fragment_bytes[message.fragment]
        if max(header.total, payload.nbytes) > limit:
            raise FrameRefused(
                "oversized",
                f"{max(header.total, payload.nbytes)} bytes for fragment {message.fragment}, "
                f"which has at most {limit}",
                message,
            )
        if payload.dtype not in DTYPES or len(payload.digest) > TEXT_MAX:
            raise FrameRefused("layout", f"dtype {payload.dtype[:64]!r}", message)
        if header.part == 0 and _absent(header):
            if header.total:
                raise FrameRefused("malformed", "bytes of a payload that is absent", message)
        elif header.part == 0 and header.total != payload.nbytes:
            kind: Kind = "truncated" if header.total < payload.nbytes else "oversized"
            raise FrameRefused(
                kind, f"{header.total} bytes where {payload.nbytes} were promised", message
            )


def _absent(header: Any) -> bool:
    return bool(getattr(header, header.WhichOneof("body")).payload.absent)


def _with_data(message: Message, data: bytes, header: Any) -> Message:
    if header.part == 0 and _absent(header):
        return message
    assert isinstance(message, Push | _Fragments)
    payload = msgspec.structs.replace(message.payload, data=data)
    return msgspec.structs.replace(message, payload=payload)


def _part_bytes(header: Any, chunk: bytes) -> int:
    """The size of a message's parts by its first one. A size out of bounds is not believed: then
    the longest is what the part is held against."""
    whole = header.parts == 1
    return CHUNK_BYTES if whole or not CHUNK_BYTES_MIN <= len(chunk) <= CHUNK_BYTES else len(chunk)
