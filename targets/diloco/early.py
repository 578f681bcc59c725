"""Fragments, and parts of a donor's state, opened as they arrive, by the thread that received them.

Checking a fragment's digest and cutting it into tensors takes longer than putting them into the
replica, and between two steps the whole learner waits for it. While a step computes it costs
nothing. A change (``Payload.relative``) has to wait for the version that it is a change of, and so
does everything before the replica has parameters at all. A state that comes in many parts is
checked while the next ones are under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from targets.diloco import codec
from targets.diloco.anchors import Received
from targets.diloco.arrays import Flat
from targets.diloco.messages import STATE_KINDS, Fragment, Message, Payload, StatePart
from targets.diloco.trainers.base import Arrays, Layout

if TYPE_CHECKING:
    from targets.diloco.transport import Sink  # simulations do without gRPC

Opened = tuple[Flat, Arrays]
"""The fragment's elements, flat and as its tensors: views of one memory."""


class Opener:
    """Opens payloads of one layout. ``early`` may be called from any thread, ``open`` from one."""

    def __init__(self, layout: Layout, received: Received) -> None:
        self._layout = layout
        self._received = received
        self._opened: dict[int, tuple[Payload, Opened]] = {}
        """The newest of each fragment: what an older one was opened for is not coming."""
        self._parts: dict[int, tuple[Payload, Opened]] = {}
        """The same of the parts of a state, by number."""

    def early(self, fragment: int, payload: Payload) -> None:
        """Open ``payload`` now, as :meth:`open` will be asked to. What is wrong with it is said
        then."""
        if payload.relative:
            return
        try:
            self._opened[fragment] = (payload, self._open(fragment, payload, None))
        except codec.PayloadError:
            self._opened.pop(fragment, None)

    def open(self, fragment: int, payload: Payload) -> Opened:
        """The payload's arrays, not to be written to. Raises ``codec.PayloadError``."""
        held, opened = self._opened.pop(fragment, (None, None))
        if opened is not None and held is payload:
            return opened
        return self._open(fragment, payload, self._received.anchor(fragment))

    def early_part(self, number: int, payload: Payload) -> None:
        """As :meth:`early`, for part ``number`` of a state (see ``StatePart``)."""
        try:
            opened = self._open(number // STATE_KINDS, payload, None)
            self._parts[number] = (payload, opened)
        except codec.PayloadError:
            self._parts.pop(number, None)

    def open_part(self, number: int, payload: Payload) -> Arrays:
        """The tensors of part ``number``. Raises ``codec.PayloadError``."""
        held, opened = self._parts.pop(number, (None, None))
        if opened is not None and held is payload:
            return opened[1]
        return self._open(number // STATE_KINDS, payload, None)[1]

    def forget_parts(self) -> None:
        """No state is on its way any more."""
        self._parts.clear()

    def _open(self, fragment: int, payload: Payload, anchor: Flat | None) -> Opened:
        flat = codec.unpack(payload, self._layout.elements[fragment], anchor)
        return flat, codec.split(flat, self._layout.shapes(fragment))


class EarlySink:
    """Hands everything on to ``sink``; fragments go through ``opener`` first."""

    def __init__(self, sink: Sink, opener: Opener) -> None:
        self._sink = sink
        self._opener = opener

    def connected(self, peer: str) -> None:
        """See ``Sink``."""
        self._sink.connected(peer)

    def disconnected(self, peer: str, why: str) -> None:
        """See ``Sink``."""
        self._sink.disconnected(peer, why)

    def received(self, peer: str, message: Message) -> None:
        """See ``Sink``."""
        if isinstance(message, Fragment):
            self._opener.early(message.fragment, message.payload)
        elif isinstance(message, StatePart) and message.fragment == message.number // STATE_KINDS:
            self._opener.early_part(message.number, message.payload)
        self._sink.received(peer, message)

    def arriving(self, peer: str) -> None:
        """See ``Sink``."""
        self._sink.arriving(peer)

    def noted(self, what: str, detail: str) -> None:
        """See ``Sink``."""
        self._sink.noted(what, detail)
