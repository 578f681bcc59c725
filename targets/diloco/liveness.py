"""One side's view of one link: when to speak, when the peer is too silent, how long a round trip.

Keepalive of the transport misses a frozen peer whose kernel still answers, so both machines send
a heartbeat when they have said nothing for ``heartbeat_ms`` and give the link up when they have
heard nothing for ``silence_ms_max``. A heartbeat is answered by an echo, which measures the round
trip; at least one is sent per second even under traffic, so that a slow link shows.
"""

from __future__ import annotations

from typing import Literal

from targets.diloco.params import DilocoParams

PROBE_NS = 1_000_000_000
"""A round trip is measured at least so often, and reported at most so often."""

NEVER = 1 << 62
"""Later than any instant of a run."""


class Link:
    """Liveness of the link to ``peer``. Instants in ns; ``up`` while the driver says connected."""

    __slots__ = (
        "_heartbeat_ns",
        "_noted_ns",
        "_probe_ns",
        "_silence_ns",
        "heard_ns",
        "nonce",
        "peer",
        "sent_ns",
        "up",
    )

    def __init__(self, peer: str, params: DilocoParams) -> None:
        self.peer = peer
        self.up = False
        self.heard_ns = 0
        self.sent_ns = 0
        self.nonce = 0
        self._probe_ns = 0
        self._noted_ns = -PROBE_NS
        self._heartbeat_ns = params.heartbeat_ms * 1_000_000
        self._silence_ns = params.silence_ms_max * 1_000_000

    def opened(self, now_ns: int) -> None:
        """A new connection: the peer counts as heard just now."""
        self.up = True
        self.heard_ns = self.sent_ns = self._probe_ns = now_ns

    def due_ns(self) -> int:
        """The instant at which :meth:`check` should be asked again; NEVER while down."""
        if not self.up:
            return NEVER
        due = self.heard_ns + self._silence_ns
        speak = self.sent_ns + self._heartbeat_ns
        if speak < due:
            due = speak
        probe = self._probe_ns + PROBE_NS
        return probe if probe < due else due

    def check(self, now_ns: int) -> tuple[Literal["fine", "speak", "silent"], str]:
        """(what to do now, why). ``speak`` asks for a heartbeat: call :meth:`probe` for it."""
        if not self.up:
            return "fine", "no link"
        quiet = now_ns - self.heard_ns
        if quiet >= self._silence_ns:
            bound = self._silence_ns // 1_000_000
            return "silent", f"heard nothing for {quiet // 1_000_000} ms (bound {bound} ms)"
        if now_ns - self.sent_ns >= self._heartbeat_ns:
            return "speak", "said nothing for a heartbeat's time"
        if now_ns - self._probe_ns >= PROBE_NS:
            return "speak", "round trip not measured for a second"
        return "fine", "heard and spoken lately"

    def probe(self, now_ns: int) -> int:
        """The nonce of a heartbeat that is sent now."""
        self.nonce += 1
        self._probe_ns = now_ns
        return self.nonce

    def echoed(self, nonce: int, now_ns: int) -> int | None:
        """The round trip in ns when it should be reported, else None.

        Only the newest heartbeat counts, and one report a second is enough.
        """
        if nonce != self.nonce or now_ns - self._noted_ns < PROBE_NS:
            return None
        self._noted_ns = now_ns
        return now_ns - self._probe_ns
