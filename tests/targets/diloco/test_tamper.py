"""Pushes that are stale or sent twice because the tuning says so."""

from __future__ import annotations

from typing import Any

import msgspec

from faults.base import Tuning
from targets.diloco.messages import Heartbeat, Payload, Push
from targets.diloco.tamper import TamperedTransport


class Wire:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def send(self, peer: str, message: Any) -> None:
        self.calls.append((peer, message))

    def disconnect(self, peer: str, why: str) -> None:
        self.calls.append(("disconnect", peer, why))

    def close(self) -> None:
        self.calls.append("close")


def push(request: int, fragment: int = 0, data: bytes | None = b"1234") -> Push:
    payload = Payload("f32", 4, "d", data)
    steps = 0 if data is None else 1  # an empty push answers a pull that came too early
    return Push(
        1, request, fragment, 0, request, steps, 8 * steps, 0, 0, payload, {"learner-0": request}
    )


def sent_with(update: str, *messages: Any) -> list[Any]:
    wire = Wire()
    link = TamperedTransport(wire, lambda: Tuning(update=update))
    for message in messages:
        link.send("syncer", message)
    return [message for _, message in wire.calls]


def test_without_a_fault_everything_passes_unchanged() -> None:
    messages = [push(1), Heartbeat(1, False, {}), push(2)]
    assert sent_with("", *messages) == messages
    assert sent_with("nan", *messages) == messages  # the worker's affair


def test_duplicates_are_sent_twice() -> None:
    beat, empty = Heartbeat(1, False, {}), push(2, data=None)
    assert sent_with("duplicate", push(1), beat, empty) == [push(1), push(1), beat, empty]


def test_a_stale_push_answers_the_new_request_with_the_old_content() -> None:
    first, other, second, third = sent_with("stale", push(1), push(2, 1), push(3), push(4))
    assert (first, other) == (push(1), push(2, 1))
    assert (second.request, second.step, second.clock) == (3, 1, {"learner-0": 3})
    assert (third.request, third.step, third.clock) == (4, 1, {"learner-0": 4})
    based = msgspec.structs.replace(push(5), base_version=7, base_clock=40)
    passed, again = sent_with("stale", based, push(6))
    assert (passed.base_version, passed.base_clock) == (7, 40)
    assert (again.base_version, again.base_clock) == (0, 0), "a base that is long gone"


def test_the_old_content_is_forgotten_when_the_fault_ends() -> None:
    wire, tuning = Wire(), Tuning(update="stale")
    link = TamperedTransport(wire, lambda: tuning)
    link.send("syncer", push(1))
    tuning = Tuning()
    link.send("syncer", push(2))
    tuning = Tuning(update="stale")
    link.send("syncer", push(3))
    assert [message.step for _, message in wire.calls] == [1, 2, 3]


def test_the_rest_goes_straight_through() -> None:
    wire = Wire()
    link = TamperedTransport(wire, Tuning)
    link.start()
    link.disconnect("syncer", "silent")
    link.close()
    assert wire.calls == ["start", ("disconnect", "syncer", "silent"), "close"]
