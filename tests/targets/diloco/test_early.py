"""Fragments that are opened as they arrive are the same as those that are opened late."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from targets.diloco import codec
from targets.diloco.anchors import Received
from targets.diloco.early import EarlySink, Opener
from targets.diloco.messages import (
    STATE_KINDS,
    Fragment,
    Heartbeat,
    Message,
    Payload,
    StatePart,
)
from targets.diloco.trainers.base import Layout, Tensor

LAYOUT = Layout.of(
    (Tensor("a", (3, 4)), Tensor("b", (5,)), Tensor("c", (2, 2)), Tensor("d", (7,))), 2
)


def opener() -> tuple[Opener, Received]:
    received = Received(len(LAYOUT.fragments), needed=True, feedback=False)
    return Opener(LAYOUT, received), received


def fragment(p: int, value: float, dtype: str = "f32") -> Payload:
    arrays = [np.full(shape, value, np.float32) for shape in LAYOUT.shapes(p)]
    return codec.pack(arrays, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_early_and_late_give_the_same_arrays(dtype: str) -> None:
    early, late = opener()[0], opener()[0]
    for p in range(len(LAYOUT.fragments)):
        payload = fragment(p, 1.5, dtype)
        early.early(p, payload)
        (flat, tensors), (same, others) = early.open(p, payload), late.open(p, payload)
        assert flat.tobytes() == same.tobytes()
        shapes = list(LAYOUT.shapes(p))
        assert [t.shape for t in tensors] == [t.shape for t in others] == shapes
        assert all(np.shares_memory(t, flat) for t in tensors)


def test_what_was_opened_early_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, payload = opener()[0], fragment(0, 2.0)
    subject.early(0, payload)
    monkeypatch.setattr(codec, "unpack", lambda *_: pytest.fail("opened a second time"))
    assert subject.open(0, payload)[0][0] == 2.0


def test_a_fragment_is_never_taken_for_another_version_of_it() -> None:
    subject = opener()[0]
    old, new = fragment(0, 1.0), fragment(0, 2.0)
    subject.early(0, old)
    subject.early(0, new)
    assert subject.open(0, old)[0][0] == 1.0
    assert subject.open(0, new)[0][0] == 2.0


def test_damage_is_said_when_the_fragment_is_to_be_used() -> None:
    subject, good = opener()[0], fragment(0, 1.0)
    subject.early(0, good)
    bad = msgspec.structs.replace(good, digest="0" * 32)
    subject.early(0, bad)
    with pytest.raises(codec.PayloadError, match="checksum"):
        subject.open(0, bad)


def test_a_change_waits_for_what_it_is_a_change_of() -> None:
    subject, received = opener()
    anchor = np.arange(sum(int(np.prod(s)) for s in LAYOUT.shapes(0)), dtype=np.float32)
    change, meant = codec.pack_change(anchor + np.float32(1), anchor)
    subject.early(0, change)  # its anchor is not here yet
    received.took(0, anchor)
    assert subject.open(0, change)[0].tobytes() == meant.tobytes()


def test_parts_of_a_state_are_opened_by_number_and_forgotten_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, parts = opener()[0], [fragment(n // STATE_KINDS, float(n)) for n in range(6)]
    for number, payload in enumerate(parts):
        subject.early_part(number, payload)
    assert [t[0].flat[0] for t in map(subject.open_part, range(6), parts)] == [0, 1, 2, 3, 4, 5]
    bad = msgspec.structs.replace(parts[4], digest="0" * 32)
    subject.early_part(4, bad)
    with pytest.raises(codec.PayloadError, match="checksum"):
        subject.open_part(4, bad)
    subject.early_part(5, parts[5])
    subject.forget_parts()
    monkeypatch.setattr(codec, "unpack", lambda *_: pytest.fail("opened a second time"))
    with pytest.raises(pytest.fail.Exception):
        subject.open_part(5, parts[5])


class Heard:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def connected(self, peer: str) -> None:
        self.calls.append(("connected", peer))

    def disconnected(self, peer: str, why: str) -> None:
        self.calls.append(("disconnected", peer, why))

    def received(self, peer: str, message: Message) -> None:
        self.calls.append(("received", peer, message))

    def arriving(self, peer: str) -> None:
        self.calls.append(("arriving", peer))

    def noted(self, what: str, detail: str) -> None:
        self.calls.append(("noted", what, detail))


def test_the_sink_hears_everything_and_fragments_are_open_by_then() -> None:
    heard, subject = Heard(), opener()[0]
    sink = EarlySink(heard, subject)
    payload = fragment(1, 3.0)
    message = Fragment(fragment=1, version=1, committed=1, payload=payload, clock={})
    beat = Heartbeat(1, False, {})
    part = StatePart(4, 1, payload, {})
    stray = StatePart(99, 1, payload, {})  # of a state that is cut up otherwise
    sink.connected("syncer")
    sink.received("syncer", message)
    sink.received("syncer", beat)
    sink.received("learner-1", part)
    sink.received("learner-1", stray)
    sink.arriving("syncer")
    sink.noted("frame-refused", "x")
    sink.disconnected("syncer", "why")
    assert heard.calls == [
        ("connected", "syncer"),
        ("received", "syncer", message),
        ("received", "syncer", beat),
        ("received", "learner-1", part),
        ("received", "learner-1", stray),
        ("arriving", "syncer"),
        ("noted", "frame-refused", "x"),
        ("disconnected", "syncer", "why"),
    ]
    assert subject.open(1, payload) is not subject.open(1, payload)  # held once, then no more
