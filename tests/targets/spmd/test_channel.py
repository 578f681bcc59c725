"""The control channel over real sockets: who may speak, and what is told when a link ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from targets.spmd.channel import LINE_BYTES_MAX, Card, Dialer, Listener
from targets.spmd.messages import Beat, Form, Hello


class Heard:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, Any]] = []
        self._lock = threading.Lock()

    def _keep(self, what: str, peer: str, detail: Any) -> None:
        with self._lock:
            self.said.append((what, peer, detail))

    def connected(self, peer: str) -> None:
        self._keep("connected", peer, None)

    def disconnected(self, peer: str, why: str) -> None:
        self._keep("disconnected", peer, why)

    def received(self, peer: str, message: Any) -> None:
        self._keep("received", peer, message)

    def noted(self, what: str, detail: str) -> None:
        self._keep("noted", what, detail)

    def all(self, what: str) -> list[Any]:
        with self._lock:
            return [detail for kind, _, detail in self.said if kind == what]


def soon(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"not within 10 s: {what}"
        time.sleep(0.005)


def card(unit: str, incarnation: int = 1, *, run: str = "r", token: str = "secret") -> Card:
    return Card(run=run, unit=unit, incarnation=incarnation, token=token)


class Place:
    """A listening launcher, and workers that dial it."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.heard = Heard()
        self.listener = Listener(card("launcher", 3), self.heard, "127.0.0.1:0", ["w0", "w1"])
        self.listener.start()
        stack.callback(self.listener.close)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    def dial(self, me: Card) -> tuple[Dialer, Heard]:
        heard = Heard()
        dialer = Dialer(me, heard, "launcher", self.address)
        self.stack.callback(dialer.close)
        dialer.start()
        return dialer, heard


@pytest.fixture
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack)


def test_messages_pass_both_ways_in_order(place: Place) -> None:
    dialer, heard = place.dial(card("w0"))
    soon(lambda: heard.all("connected") == [None], "a link at the worker")
    soon(lambda: place.heard.all("connected") == [None], "a link at the launcher")
    dialer.send("launcher", Hello(held=(0, 10)))
    dialer.send("launcher", Beat(world=1, step=2))
    form = Form(world=1, members=("w0",), address="a:1", step=10)
    place.listener.send("w0", form)
    soon(lambda: len(place.heard.all("received")) == 2, "two messages")
    assert place.heard.all("received") == [Hello(held=(0, 10)), Beat(world=1, step=2)]
    soon(lambda: heard.all("received") == [form], "the answer")


@pytest.mark.parametrize(
    ("stranger", "why"),
    [
        (card("w0", token="guess"), "'w0' has a wrong token"),
        (card("w0", run="other"), "'w0' is of run 'other'"),
        (card("w9"), "'w9' is no worker of this run"),
    ],
)
def test_strangers_are_refused_and_named(place: Place, stranger: Card, why: str) -> None:
    _, heard = place.dial(stranger)
    soon(lambda: why in place.heard.all("noted"), "a refusal")
    assert heard.all("connected") == []
    assert place.heard.all("connected") == []


def test_a_link_that_ends_is_told_and_made_anew(place: Place) -> None:
    _, heard = place.dial(card("w0"))
    soon(lambda: len(place.heard.all("connected")) == 1, "a link")
    session = place.listener._sessions["w0"]
    session.end()
    soon(lambda: len(place.heard.all("disconnected")) == 1, "its end at the launcher")
    soon(lambda: len(heard.all("disconnected")) == 1, "its end at the worker")
    soon(lambda: len(heard.all("connected")) == 2, "a new link")


def test_who_was_given_up_is_not_heard_again(place: Place) -> None:
    _, heard = place.dial(card("w0"))
    soon(lambda: len(place.heard.all("connected")) == 1, "a link")
    place.listener.disconnect("w0", "silent")
    soon(lambda: len(heard.all("disconnected")) == 1, "its end at the worker")
    soon(lambda: len(place.heard.all("connected")) == 2, "a new link")
    assert place.heard.all("disconnected") == []


def test_an_older_life_does_not_replace_a_newer_one(place: Place) -> None:
    _, new = place.dial(card("w0", 5))
    soon(lambda: len(place.heard.all("connected")) == 1, "the newer one")
    _, old = place.dial(card("w0", 4))
    soon(lambda: len(old.all("disconnected")) >= 1, "the older one's end")
    assert new.all("disconnected") == []
    assert len(place.heard.all("connected")) == 1


@pytest.mark.parametrize("line", [b"not json\n", b"x" * (LINE_BYTES_MAX + 10) + b"\n"])
def test_nonsense_ends_the_link_and_not_the_launcher(place: Place, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", place.listener.port)) as raw:
        raw.sendall(msgspec.json.encode(card("w1")) + b"\n")
        soon(lambda: len(place.heard.all("connected")) == 1, "a link")
        raw.sendall(line)
        soon(lambda: len(place.heard.all("disconnected")) == 1, "its end")
    assert len(place.heard.all("noted")) == 1
    _, heard = place.dial(card("w0"))
    soon(lambda: len(heard.all("connected")) == 1, "another worker's link")


def test_closing_sends_what_was_said_before(place: Place) -> None:
    dialer, heard = place.dial(card("w0"))
    soon(lambda: len(heard.all("connected")) == 1, "a link")
    dialer.send("launcher", Beat(world=7))
    dialer.close()
    soon(lambda: Beat(world=7) in place.heard.all("received"), "the last words")
