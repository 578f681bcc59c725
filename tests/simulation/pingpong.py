"""A tiny target for tests of the simulator itself: clients ping, a server counts and answers.

It does in miniature what the real machines do: work, messages, a durable counter, timers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from harness.events import AnyEvent, LinkDown, LinkUp, UnitEnded, UnitInfo, UnitNote
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Input,
    Node,
    Note,
    Received,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    UnitSpec,
    Work,
    WorkDone,
    Worker,
)

MS = 1_000_000


@dataclass(frozen=True)
class Chore:
    """Takes ``cost_ms``."""

    number: int
    cost_ms: int = 10
    paced: ClassVar[bool] = True


class Done(msgspec.Struct, frozen=True):
    number: int
    began_at_ns: int = 0


class ChoreWorker:
    def run(self, job: Any) -> Any:
        return Done(job.number)

    def cost_ns(self, job: Any) -> int:
        return int(job.cost_ms) * MS


class Client:
    """Works, sends the number of each finished chore, gives a silent server up."""

    def __init__(self, name: str, silence_ms: int = 300) -> None:
        self.name = name
        self.silence_ns = silence_ms * MS
        self.incarnation = 0
        self.heard: int | None = None
        self.number = 0

    def note(self, now: int, what: str, detail: str = "") -> Note:
        return Note(
            UnitNote(
                t_ns=now, unit=self.name, incarnation=self.incarnation, what=what, detail=detail
            )
        )

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        match event:
            case Started(incarnation):
                self.incarnation = incarnation
                return [Work(Chore(1))]
            case Connected(peer):
                self.heard = now_ns
                return [
                    Note(
                        LinkUp(t_ns=now_ns, unit=self.name, incarnation=self.incarnation, peer=peer)
                    )
                ]
            case Disconnected(peer, why):
                self.heard = None
                return [self._down(now_ns, peer, why)]
            case Received(_, message):
                self.heard = now_ns
                return [self.note(now_ns, "pong", str(message))]
            case WorkDone(job, result):
                self.number = result.number
                return [
                    self.note(now_ns, "chore", f"{result.number} from {result.began_at_ns}"),
                    Send("server", job.number),
                    Work(Chore(job.number + 1)),
                ]
            case Tick():
                if self.heard is not None and now_ns >= self.heard + self.silence_ns:
                    self.heard = None
                    return [
                        Disconnect("server", "silent"),
                        self._down(now_ns, "server", "silent"),
                    ]
            case StopAsked():
                return [
                    Note(
                        UnitEnded(
                            t_ns=now_ns, unit=self.name, incarnation=self.incarnation, why="asked"
                        )
                    ),
                    Stop("asked"),
                ]
        return []

    def deadline_ns(self) -> int | None:
        return None if self.heard is None else self.heard + self.silence_ns

    def _down(self, now: int, peer: str, why: str) -> Note:
        return Note(
            LinkDown(t_ns=now, unit=self.name, incarnation=self.incarnation, peer=peer, why=why)
        )


class Server:
    """Counts every number heard, durably, before it answers with the count."""

    def __init__(self) -> None:
        self.count = 0
        self.incarnation = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        def note(what: str, detail: str = "") -> Note:
            return Note(
                UnitNote(
                    t_ns=now_ns,
                    unit="server",
                    incarnation=self.incarnation,
                    what=what,
                    detail=detail,
                )
            )

        match event:
            case Started(incarnation, saved):
                self.incarnation = incarnation
                self.count = saved.get("count", 0)
                return [note("resumed", str(self.count))]
            case Connected(peer):
                return [note("connected", peer)]
            case Disconnected(peer, why):
                return [note("disconnected", f"{peer}: {why}")]
            case Received(sender, message):
                self.count += 1
                return [
                    note("heard", f"{sender} {message}"),
                    Save("count", self.count),
                    note("saved", str(self.count)),
                    Send(sender, self.count),
                ]
            case StopAsked():
                return [Stop("asked")]
        return []

    def deadline_ns(self) -> int | None:
        return None


class Steady:
    def observe(self, event: AnyEvent) -> None: ...

    def verdict(self) -> tuple[bool, str]:
        return True, "nothing to wait for"


class PingPong:
    """A server and ``clients`` clients."""

    name = "pingpong"
    params: Mapping[str, Any] = {}

    def __init__(self, clients: int = 2) -> None:
        self.clients = [f"client-{i}" for i in range(clients)]
        self.nodes: dict[str, Node] = {}
        """The newest node of each unit, for tests to look at."""

    def units(self) -> Sequence[UnitSpec]:
        return [
            UnitSpec(UnitInfo(name="server", role="syncer")),
            *(UnitSpec(UnitInfo(name=c, role="learner"), links=("server",)) for c in self.clients),
        ]

    def fragments(self) -> tuple[int, ...]:
        return ()

    def node(self, unit: str) -> Node:
        self.nodes[unit] = Server() if unit == "server" else Client(unit)
        return self.nodes[unit]

    def worker(self, unit: str) -> Worker:
        return ChoreWorker()

    def module(self) -> str:
        return "none"

    def steady(self, absent: Collection[str] = ()) -> Steady:
        return Steady()
