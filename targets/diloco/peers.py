"""A learner's links: one to the syncer, kept open, and those between learners, for recovery only.

A learner listens for others that want its state, and dials one when its node asks for it, once,
through a proxy link of its own. Its node knows a learner that dialled it by its name as a
caller (``targets.base.caller``), so two learners may have dialled each other.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from targets.base import CALLER, caller
from targets.diloco.messages import STATE_KINDS, Message
from targets.diloco.transport import Dialer, Identity, Listener, Sink, Tls
from targets.diloco.wire import Limits


class _Callers:
    """A sink that hears of peers by their names as callers."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def connected(self, peer: str) -> None:
        self._sink.connected(caller(peer))

    def disconnected(self, peer: str, why: str) -> None:
        self._sink.disconnected(caller(peer), why)

    def received(self, peer: str, message: Message) -> None:
        self._sink.received(caller(peer), message)

    def arriving(self, peer: str) -> None:
        self._sink.arriving(caller(peer))

    def noted(self, what: str, detail: str) -> None:
        self._sink.noted(what, detail)


class LearnerLinks:
    """Implements ``targets.live.Transport`` and ``dial``.

    ``addresses`` are those of ``syncer`` and of the peers that may be dialled; ``callers`` are the
    learners that may dial ``listen``. An empty ``listen`` takes no calls. Raises ``OSError`` for an
    address that cannot be had.
    """

    def __init__(
        self,
        me: Identity,
        limits: Limits,
        sink: Sink,
        syncer: str,
        addresses: Mapping[str, str],
        listen: str = "",
        callers: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        self._me, self._limits, self._sink, self._tls = me, limits, sink, tls
        self._addresses = addresses
        self._syncer = Dialer(me, limits, sink, syncer, addresses[syncer], tls)
        self._dialled: dict[str, Dialer] = {}
        self._lock = threading.Lock()
        # What may wait for one newcomer: a window of parts, at most a whole state.
        waiting = STATE_KINDS * limits.layout_bytes
        self._listener = (
            Listener(me, limits, _Callers(sink), listen, callers, tls, bytes_min=waiting)
            if listen
            else None
        )

    @property
    def port(self) -> int | None:
        """Where it takes calls."""
        return None if self._listener is None else self._listener.port

    def start(self) -> None:
        """Dial the syncer and begin to take calls."""
        if self._listener is not None:
            self._listener.start()
        self._syncer.start()

    def dial(self, peer: str) -> None:
        """Try once to reach ``peer``; the sink hears ``connected`` or ``disconnected``."""
        dialer = Dialer(
            self._me, self._limits, self._sink, peer, self._addresses[peer], self._tls, once=True
        )
        with self._lock:
            old, self._dialled[peer] = self._dialled.get(peer), dialer
        if old is not None:
            old.give_up("dialled anew")
        dialer.start()

    def send(self, peer: str, message: Message) -> None:
        """See ``Transport``."""
        if peer.startswith(CALLER):
            if self._listener is not None:
                self._listener.send(peer.removeprefix(CALLER), message)
        else:
            dialer = self._dialled.get(peer, self._syncer)
            dialer.send(peer, message)

    def disconnect(self, peer: str, why: str) -> None:
        """See ``Transport``."""
        if peer.startswith(CALLER):
            if self._listener is not None:
                self._listener.disconnect(peer.removeprefix(CALLER), why)
            return
        with self._lock:
            dialer = self._dialled.pop(peer, None)
        if dialer is not None:
            dialer.give_up(why)
        else:
            self._syncer.disconnect(peer, why)

    def close(self) -> None:
        """See ``Transport``."""
        self._syncer.close()
        for dialer in list(self._dialled.values()):
            dialer.give_up("the learner stops")
        if self._listener is not None:
            self._listener.close()
