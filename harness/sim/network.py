"""Simulated links: one per dialling unit and peer, through an imaginary proxy.

A link carries *sessions*, as a TCP connection through Toxiproxy would. Every frame, the opening
and closing ones too, travels in order through one pipe per direction and meets the link's
condition when it would arrive:

* silent: it is dropped, nobody is told; lifting the silence ends the session (as removing
  Toxiproxy's ``timeout`` toxic does);
* stalled: it is held; once lifted everything arrives in order, or the session ends, whichever
  way of healing is asked for;
* reset: the first byte ends the session at both sides;  refused: the same at once, and every
  attempt to open another fails;
* cut: the session ends once that many bytes went upstream.

While a message takes long to send, the receiver is told of the parts that have come (``Host.
arriving``), as often as a real link's: a busy link is not a silent one.

A link *on demand* is dialled once whenever its dialler asks, and not again by itself.

Each side has its own idea of the session. A side that gives up, or whose process dies, sends a
closing frame; if that is dropped, the other side keeps a half-open session until its own
protocol notices, and a later session replaces it.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Protocol

from faults.base import LinkState
from harness.sim.loop import Action, Loop
from harness.sim.options import SimOptions
from targets.base import Connected, Disconnected, Received, caller

UP, DOWN = 0, 1
"""Directions, and the side that sends in that direction: the dialler sends UP."""

DATA, OPEN, ACCEPT, CLOSE = range(4)

FRAME_BYTES = 120
"""Framing, clock and checksum of a message without a payload, about what the wire measures."""

PART_NS = 100_000_000
PART_BYTES = 1 << 14
"""A message that is being sent shows at the other end whenever so much time has passed and so much
of it has come; a real link cuts its messages accordingly."""

HEALTHY = LinkState()


class End(Protocol):
    """What a link sees of the unit at one of its ends."""

    name: str
    node: Any
    """None while no process listens or dials there."""
    frozen: bool
    blocked: bool
    inbox: deque[tuple[Action, Any]]
    """What waits until the unit is neither frozen nor blocked."""


class Host(Protocol):
    """Whoever hosts the units at the two ends."""

    def feed(self, unit: Any, event: Any, now: int) -> None:
        """Hand ``event`` to the unit's node, if it has one, and carry out what that asks for."""
        ...

    def arriving(self, unit: Any, peer: str, now: int) -> None:
        """A part of a message of ``peer`` has come, the rest is under way."""
        ...


class Session:
    """One connection. Identity is all that matters about it, apart from its counters."""

    __slots__ = ("bytes_up", "lost")

    def __init__(self) -> None:
        self.bytes_up = 0
        self.lost = [False, False]
        """Whether data still on its way in that direction died with its sender."""


Frame = tuple[Session, int, int, Any]
"""(session, direction, kind, message or reason)."""


class Link:
    """The link that ``dialler`` opens to ``listener``."""

    def __init__(
        self,
        dialler: End,
        listener: End,
        loop: Loop,
        host: Host,
        options: SimOptions,
        rng: Random,
        on_demand: bool = False,
    ) -> None:
        self.units = (dialler, listener)
        self.called = (caller(dialler.name) if on_demand else dialler.name, listener.name)
        """How each unit is called at the other end."""
        self.on_demand = on_demand
        self.nbytes = [0, 0]
        """Handed to the link in each direction, framing included."""
        self.state = HEALTHY
        self.attached = True
        self.ends: list[Session | None] = [None, None]
        """The session as each side sees it, dialler first."""
        self._loop, self._host, self._options = loop, host, options
        self._random = rng.random
        self._dialling: Session | None = None
        self._backoff_ns = options.backoff_ms[0] * 1e6
        self._last = [0, 0]
        self._held: list[list[Frame]] = [[], []]
        self._queue: tuple[deque[Frame], deque[Frame]] = (deque(), deque())
        self._sending = [0, 0]
        self._latency = 0
        self._spread = 0
        self._rate: float | None = None
        self._plain = True
        self._measure()

    # --- what units do --------------------------------------------------------------------------

    def send(self, side: int, message: Any, now: int) -> None:
        """Hand ``message`` to the link; dropped without error when ``side`` has no session."""
        session = self.ends[side]
        if session is None:
            return
        frame = (session, side, DATA, message)
        # Every message comes this way: ``size_of`` and ``_depart`` in line.
        payload = getattr(message, "payload", None)
        self.nbytes[side] += FRAME_BYTES if payload is None else FRAME_BYTES + payload.nbytes
        if self._rate is None and not self._queue[side]:
            arrival = now + self._latency + int(self._random() * self._spread)
            if arrival < self._last[side]:
                arrival = self._last[side]
            self._last[side] = arrival
            self._loop.at(arrival, self._arrive, frame)
        else:
            self._transmit(frame)

    def give_up(self, side: int, why: str) -> None:
        """``side`` closes its end; the dialler dials anew after a pause."""
        session = self.ends[side]
        self.ends[side] = None
        if session is None and side == UP and self.on_demand:
            session, self._dialling = self._dialling, None
        if session is not None:
            self._transmit((session, side, CLOSE, why))
        if side == UP and self._dialling is None:
            self._dial_later()

    def process_ended(self, side: int, abruptly: bool) -> None:
        """The process at ``side`` is gone; its kernel closes the connection.

        An abrupt end may take what was still on its way with it.
        """
        session, self.ends[side] = self.ends[side], None
        if side == UP:
            session = session or self._dialling
            self._dialling = None
            self._backoff_ns = self._options.backoff_ms[0] * 1e6
        if session is not None:
            if abruptly and self._random() < self._options.lose_in_flight:
                session.lost[side] = True
            self._transmit((session, side, CLOSE, "closed by peer"))

    def dial(self) -> None:
        """The dialler's process wants a connection: from now on, or this once (on demand)."""
        session = self._dialling = Session()
        self._transmit((session, UP, OPEN, None))
        timeout = round(self._options.dial_timeout_ms * 1e6)
        self._loop.after(timeout, self._dial_timed_out, session)

    # --- what faults do -------------------------------------------------------------------------

    def set_state(self, state: LinkState) -> None:
        """Bring the link to ``state``; what that does to sessions is said at the top."""
        old, self.state = self.state, state
        self._measure()
        if state.refused and not old.refused:
            self._break("connection refused")
        elif (old.silent_up and not state.silent_up) or (old.silent_down and not state.silent_down):
            self._break("connection closed when the silence was lifted")
        elif old.stalled and not state.stalled:
            self._unstall()
        for direction in (UP, DOWN):
            self._pump(direction)

    def set_attached(self, attached: bool) -> None:
        """Take the dialler off its network, or back on. What was sent meanwhile is sent again
        by TCP, so nothing is lost unless somebody gives up before."""
        if attached == self.attached:
            return
        self.attached = attached
        self._measure()
        if attached:
            self._release()

    # --- the pipe -------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Keep what every frame needs in plain numbers."""
        low, high = self._options.latency_ms
        self._spread = round((high - low) * 1e6)
        self._latency = round((low + self.state.latency_ms) * 1e6)
        rates = [r for r in (self._options.bandwidth_kb_s, self.state.bandwidth_kb_s) if r]
        self._rate = min(rates) * 1000 if rates else None
        quiet = LinkState(
            latency_ms=self.state.latency_ms, bandwidth_kb_s=self.state.bandwidth_kb_s
        )
        self._plain = self.attached and self.state == quiet

    def _transmit(self, frame: Frame) -> None:
        direction = frame[1]
        if self._rate is not None or self._queue[direction]:
            self._queue[direction].append(frame)
            if len(self._queue[direction]) == 1:
                self._pump(direction)
        else:
            self._depart(self._loop.now_ns(), frame)

    def _depart(self, now: int, frame: Frame) -> None:
        direction = frame[1]
        arrival = now + self._latency + int(self._random() * self._spread)
        if arrival < self._last[direction]:
            arrival = self._last[direction]
        self._last[direction] = arrival
        self._loop.at(arrival, self._arrive, frame)

    def _pump(self, direction: int) -> None:
        """(Re)start sending the first queued frame at the present rate."""
        queue = self._queue[direction]
        self._sending[direction] += 1
        if not queue:
            return
        if self._rate is None:
            while queue:
                self._depart(self._loop.now_ns(), queue.popleft())
            return
        delay = round(size_of(queue[0]) * 1e9 / self._rate)
        ticket = (direction, self._sending[direction])
        self._loop.after(delay, self._sent, ticket)
        part = max(PART_NS, round(PART_BYTES * 1e9 / self._rate))
        if part < delay and queue[0][2] == DATA:
            self._loop.after(part, self._part_sent, (ticket, part))

    def _part_sent(self, now: int, entry: tuple[tuple[int, int], int]) -> None:
        """Some of the frame that is being sent is on its way; no more is said of its arrival than
        that, and nothing is drawn for it."""
        ticket, part = entry
        direction, number = ticket
        if number == self._sending[direction] and self._queue[direction]:
            self._loop.after(self._latency, self._part_came, self._queue[direction][0])
            self._loop.after(part, self._part_sent, entry)

    def _part_came(self, now: int, frame: Frame) -> None:
        session, direction, _, _ = frame
        state = self.state
        silent = state.silent_up if direction == UP else state.silent_down
        lost = silent or state.stalled or state.reset or session.lost[direction]
        if self.attached and not lost:
            self._soon(now, 1 - direction, self._take_part, frame)

    def _take_part(self, now: int, frame: Frame) -> None:
        session, direction, _, _ = frame
        if self.ends[1 - direction] is session:
            self._host.arriving(self.units[1 - direction], self.called[direction], now)

    def _sent(self, now: int, ticket: tuple[int, int]) -> None:
        direction, number = ticket
        if number == self._sending[direction] and self._queue[direction]:
            self._depart(now, self._queue[direction].popleft())
            self._pump(direction)

    def _arrive(self, now: int, frame: Frame) -> None:
        if not self._plain and not self._passes(frame):
            return
        session, direction, kind, message = frame
        receiver = self.units[1 - direction]
        if kind == DATA:
            if self.ends[1 - direction] is not session or session.lost[direction]:
                return
            if receiver.frozen or receiver.blocked:
                receiver.inbox.append((self._take, frame))
            else:
                self._host.feed(receiver, Received(self.called[direction], message), now)
        elif kind == OPEN and (self.state.refused or receiver.node is None):
            self._loop.after(self._latency, self._refused, session)
        else:
            self._soon(now, 1 - direction, self._take, frame)

    def _soon(self, now: int, side: int, action: Action, argument: Any) -> None:
        """Run ``action`` in the process at ``side`` once it can; never, if it ends before."""
        unit = self.units[side]
        if unit.node is None:
            return
        if unit.frozen or unit.blocked:
            unit.inbox.append((action, argument))
        else:
            action(now, argument)

    def _passes(self, frame: Frame) -> bool:
        """Whether the link's condition lets ``frame`` through; deals with it if not."""
        session, direction, kind, _ = frame
        state = self.state
        if state.stalled or not self.attached:
            self._held[direction].append(frame)
            return False
        if state.silent_up if direction == UP else state.silent_down:
            return False
        if state.reset and kind != CLOSE:
            self._break("connection reset", session)
            return False
        if state.cut_bytes is not None and direction == UP:
            session.bytes_up += size_of(frame)
            if session.bytes_up > state.cut_bytes:
                self._break(f"connection closed after {state.cut_bytes} bytes", session)
                return False
        return True

    def _take(self, now: int, frame: Frame) -> None:
        """The receiving process reads ``frame``."""
        session, direction, kind, message = frame
        side = 1 - direction
        if kind == DATA:
            if self.ends[side] is session:
                event = Received(self.called[direction], message)
                self._host.feed(self.units[side], event, now)
        elif kind == OPEN:
            # A new session replaces one that this side still believed in.
            self.ends[DOWN] = session
            self._transmit((session, DOWN, ACCEPT, None))
            self._host.feed(self.units[DOWN], Connected(self.called[UP]), now)
        elif kind == ACCEPT:
            if self._dialling is session:
                self._dialling = None
                self._backoff_ns = self._options.backoff_ms[0] * 1e6
                self.ends[UP] = session
                self._host.feed(self.units[UP], Connected(self.called[DOWN]), now)
        else:
            self._end(now, side, session, message)

    # --- ends of sessions -----------------------------------------------------------------------

    def _break(self, why: str, session: Session | None = None) -> None:
        """The proxy closes the connection towards both sides (``session`` or whatever is open)."""
        candidates = (*self.ends, self._dialling) if session is None else (session,)
        doomed = {id(s): s for s in candidates if s is not None}
        for direction in (UP, DOWN):
            held = self._held[direction]
            self._held[direction] = [f for f in held if id(f[0]) not in doomed]
            queue = self._queue[direction]
            kept = [f for f in queue if id(f[0]) not in doomed]
            queue.clear()
            queue.extend(kept)
        for one in doomed.values():
            one.lost = [True, True]
            for side in (UP, DOWN):
                self._loop.after(self._latency, self._broken, (side, one, why))

    def _broken(self, now: int, news: tuple[int, Session, str]) -> None:
        side, session, _ = news
        if self.ends[side] is session or (side == UP and self._dialling is session):
            self._soon(now, side, self._noticed, news)

    def _noticed(self, now: int, news: tuple[int, Session, str]) -> None:
        self._end(now, *news)

    def _end(self, now: int, side: int, session: Session, why: str) -> None:
        if side == UP and self._dialling is session:
            self._dialling = None
            self._dial_later()
            if self.on_demand:
                self._host.feed(self.units[UP], Disconnected(self.called[DOWN], why), now)
        elif self.ends[side] is session:
            self.ends[side] = None
            if side == UP:
                self._dial_later()
            event = Disconnected(self.called[1 - side], why)
            self._host.feed(self.units[side], event, now)

    def _unstall(self) -> None:
        how = self._options.stall_heals
        if how == "either":
            how = "lossless" if self._random() < 0.5 else "recreate"
        if how == "recreate":
            self._break("connection closed when the link was made anew")
        self._release()

    def _release(self) -> None:
        """Let held frames arrive, in order, unless the link still holds them back."""
        for direction in (UP, DOWN):
            held, self._held[direction] = self._held[direction], []
            for frame in held:
                self._loop.after(0, self._arrive, frame)

    # --- dialling -------------------------------------------------------------------------------

    def _dial_later(self) -> None:
        if self.on_demand:
            return
        low, high = 0.8, 1.2
        pause = self._backoff_ns * (low + (high - low) * self._random())
        self._backoff_ns = min(2 * self._backoff_ns, self._options.backoff_ms[1] * 1e6)
        marker = self._dialling = Session()
        # The pause is an attempt of its own, so that a process that ends meanwhile voids it.
        self._loop.after(round(pause), self._pause_over, marker)

    def _pause_over(self, now: int, marker: Session) -> None:
        if self._dialling is marker:
            self._soon(now, UP, self._redial, marker)

    def _redial(self, now: int, marker: Session) -> None:
        if self._dialling is marker:
            self.dial()

    def _refused(self, now: int, session: Session) -> None:
        if self._dialling is session:
            self._soon(now, UP, self._attempt_failed, session)

    def _dial_timed_out(self, now: int, session: Session) -> None:
        if self._dialling is session:
            self._soon(now, UP, self._attempt_failed, session)

    def _attempt_failed(self, now: int, session: Session) -> None:
        if self._dialling is session:
            self._transmit((session, UP, CLOSE, "attempt given up"))
            if self.on_demand:
                self._end(now, UP, session, "no connection could be made")
            else:
                self._dial_later()


def size_of(frame: Frame) -> int:
    """Bytes that ``frame`` takes on the wire."""
    payload = getattr(frame[3], "payload", None)
    return FRAME_BYTES + (payload.nbytes if payload is not None else 0)
