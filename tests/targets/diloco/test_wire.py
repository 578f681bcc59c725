"""The wire: whatever goes in comes out equal, and whatever is wrong is refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from targets.diloco import diloco_pb2 as pb
from targets.diloco import wire
from targets.diloco.messages import (
    Fragment,
    Heartbeat,
    Hello,
    Message,
    Payload,
    Pull,
    Push,
    Refused,
    Report,
    Welcome,
)
from targets.diloco.wire import CHUNK_BYTES, CHUNK_BYTES_MIN, Decoder, Encoder, FrameRefused, Limits

FRAGMENTS = 3
LIMITS = Limits((4096, 64, 3 * CHUNK_BYTES))

counts = st.integers(0, 2**63 - 1)
clocks = st.dictionaries(st.text(min_size=1, max_size=12), counts, max_size=5)
versions = st.tuples(*[counts] * FRAGMENTS)
fragments = st.integers(0, FRAGMENTS - 1)
texts = st.text(max_size=40)


def _payload(fragment: int) -> st.SearchStrategy[Payload]:
    limit = LIMITS.fragment_bytes[fragment]
    # Only lengths matter to the wire, so one random block serves; hypothesis draws the length.
    sizes = st.integers(0, min(limit, 4096)) | st.integers(max(0, limit - 4), limit)
    present = sizes.map(lambda n: random.Random(n).randbytes(n)).flatmap(
        lambda data: st.builds(
            lambda dtype, digest: Payload(dtype, len(data), digest, data),
            st.sampled_from(["f32", "bf16", "int4"]),
            texts,
        )
    )
    absent = st.builds(lambda n, digest: Payload("f32", n, digest), st.integers(0, limit), texts)
    return present | absent


pushes = fragments.flatmap(
    lambda p: st.builds(
        Push,
        incarnation=counts,
        request=counts,
        fragment=st.just(p),
        since_step=counts,
        step=counts,
        c_steps=counts,
        c_tokens=counts,
        base_version=counts,
        base_clock=counts,
        payload=_payload(p),
        clock=clocks,
    )
)
broadcasts = fragments.flatmap(
    lambda p: st.builds(
        Fragment,
        fragment=st.just(p),
        version=counts,
        committed=counts,
        payload=_payload(p),
        clock=clocks,
    )
)
small: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Hello,
        incarnation=counts,
        layout=texts,
        step=counts,
        versions=st.none() | versions,
        clock=clocks,
    ),
    st.builds(
        Report,
        incarnation=counts,
        step=counts,
        c_steps=versions,
        c_tokens=versions,
        step_ns=counts,
        clock=clocks,
    ),
    st.builds(Heartbeat, nonce=counts, echo=st.booleans(), clock=clocks),
    st.builds(
        Welcome,
        incarnation=counts,
        versions=versions,
        send_state=st.booleans(),
        donors=st.lists(texts, max_size=4).map(tuple),
        clock=clocks,
    ),
    st.builds(Pull, request=counts, fragment=fragments, clock=clocks),
    st.builds(Refused, why=texts, clock=clocks),
)
messages: st.SearchStrategy[Message] = small | pushes | broadcasts


def encoder(**changes: Any) -> Encoder:
    return Encoder(**{"run": "run-1", "sender": "learner-0", "incarnation": 2, **changes})


def decoder() -> Decoder:
    return Decoder("run-1", "learner-0", 2, LIMITS)


def big(fragment: int = 2, size: int = 2 * CHUNK_BYTES + 5) -> Fragment:
    data = random.Random(size).randbytes(size)
    return Fragment(fragment, 7, 70, Payload("f32", size, "d", data), {"syncer": 70})


def feed_all(target: Decoder, frames: list[bytes]) -> list[Message]:
    return [m for m in (target.feed(f) for f in frames) if m is not None]


def same(left: Message, right: Message) -> bool:
    """Equal, payload bytes included (``Payload`` itself does not compare them)."""
    a, b = getattr(left, "payload", None), getattr(right, "payload", None)
    return left == right and (a is None or (b is not None and a.data == b.data))


def refusal(target: Decoder, frame: bytes) -> FrameRefused:
    with pytest.raises(FrameRefused) as caught:
        target.feed(frame)
    return caught.value


def attempt(target: Decoder, frame: bytes) -> tuple[str, Message | None]:
    """(kind of the refusal or "", the message or None)."""
    try:
        return "", target.feed(frame)
    except FrameRefused as refused:
        return refused.kind, None


def reseal(frame: bytes, **changes: Any) -> bytes:
    """The frame with other header fields and a checksum that is right again."""
    outer = pb.Frame.FromString(frame)
    header = pb.Header.FromString(outer.header)
    chunk = changes.pop("chunk", outer.chunk)
    for name, value in changes.items():
        setattr(header, name, value)
    return wire._seal(header, memoryview(chunk))


@given(st.lists(messages, min_size=1, max_size=4))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([Hello(1, "x", 0, (0, 0, 0), {})])
@example([Hello(1, "x", 0, None, {})])
@example([Heartbeat(0, False, {})])
def test_every_message_comes_back_equal(sent: list[Message]) -> None:
    out, back = encoder(), decoder()
    for message in sent:
        frames = list(out.frames(message))
        assert all(len(frame) <= wire.FRAME_BYTES_MAX for frame in frames)
        received = feed_all(back, frames)
        assert len(received) == 1
        assert same(received[0], message)


@given(small | pushes.filter(lambda p: p.payload.nbytes <= 4096), st.data())
@settings(deadline=None, max_examples=300)
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(
    message: Message, data: st.DataObject
) -> None:
    (frame,) = encoder().frames(message)
    damaged = bytearray(frame)
    position = data.draw(st.integers(0, len(frame) - 1))
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    target = decoder()
    kind, received = attempt(target, bytes(damaged))
    assert kind in {"malformed", "checksum"} or (received and same(received, message))
    # Whatever that was, the next frame is understood.
    assert feed_all(target, list(encoder().frames(Heartbeat(1, False, {})))) != []


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    # An empty frame parses (every field at its default) and is refused for its format.
    assert refusal(decoder(), noise).kind in {"malformed", "checksum", "format"}


@given(messages, st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_frame_cut_short_is_refused(message: Message, data: st.DataObject) -> None:
    frame = next(encoder().frames(message))
    cut = data.draw(st.integers(1, len(frame) - 1))
    assert refusal(decoder(), frame[:cut]).kind in {"malformed", "checksum"}


def test_every_byte_of_one_frame_is_protected() -> None:
    push = Push(2, 9, 1, 3, 4, 1, 64, 2, 20, Payload("f32", 8, "d", b"12345678"), {"learner-0": 4})
    (frame,) = encoder().frames(push)
    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            kind, received = attempt(decoder(), bytes(damaged))
            assert kind or (received and same(received, push)), (position, bit)


def test_a_large_payload_travels_in_parts_and_heartbeats_fit_between() -> None:
    out, back = encoder(), decoder()
    fragment = big()
    parts = list(out.frames(fragment))
    beat = list(out.frames(Heartbeat(5, True, {"syncer": 71})))
    assert len(parts) == 3
    received = feed_all(back, [parts[0], *beat, parts[1], *beat, parts[2]])
    assert [type(m) for m in received] == [Heartbeat, Heartbeat, Fragment]
    assert same(received[2], fragment)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"run": "run-2"}, "run"),
        ({"sender": "learner-1"}, "sender"),
        ({"incarnation": 1}, "fenced"),
        ({"incarnation": 3}, "fenced"),
    ],
)
def test_frames_of_somebody_else_are_refused(change: dict[str, Any], kind: str) -> None:
    (frame,) = encoder(**change).frames(Heartbeat(1, False, {}))
    assert refusal(decoder(), frame).kind == kind


def test_another_wire_format_is_refused() -> None:
    (frame,) = encoder().frames(Heartbeat(1, False, {}))
    assert refusal(decoder(), reseal(frame, format=wire.FORMAT + 1)).kind == "format"


def test_a_payload_beyond_the_layout_is_refused_before_it_is_kept() -> None:
    first = next(encoder().frames(big(fragment=0)))
    refused = refusal(decoder(), first)
    assert refused.kind == "oversized"
    assert "at most 4096" in str(refused)
    assert isinstance(refused.message, Fragment)


def test_a_promise_of_more_than_the_layout_holds_is_refused_on_its_first_part() -> None:
    first = next(encoder().frames(big()))
    target = decoder()
    huge = 1 << 60
    refused = refusal(target, reseal(first, total=huge, parts=min(2**32 - 1, huge >> 20)))
    assert refused.kind in {"oversized", "malformed"}
    assert target._assembly is None


def test_fewer_bytes_than_promised_are_named_truncated_with_the_update_they_belong_to() -> None:
    push = Push(2, 9, 1, 3, 4, 1, 64, 2, 20, Payload("f32", 64, "d", b"x" * 32), {})
    (frame,) = encoder().frames(push)
    refused = refusal(decoder(), frame)
    assert refused.kind == "truncated"
    assert refused.message is not None
    assert refused.message == push


def test_a_fragment_that_the_layout_does_not_have_is_refused() -> None:
    (frame,) = encoder().frames(Pull(1, FRAGMENTS, {}))
    assert refusal(decoder(), frame).kind == "layout"
    (frame,) = encoder().frames(Report(2, 1, (1, 1), (8, 8), 5, {}))
    assert refusal(decoder(), frame).kind == "layout"
    (frame,) = encoder().frames(Fragment(0, 1, 1, Payload("f64", 8, "", b"x" * 8), {}))
    assert refusal(decoder(), frame).kind == "layout"


def test_parts_may_be_smaller_and_must_be_alike() -> None:
    out, target = encoder(), decoder()
    fragment = big(size=3 * CHUNK_BYTES_MIN + 5)
    parts = list(out.frames(fragment, CHUNK_BYTES_MIN))
    assert len(parts) == 4
    assert [same(m, fragment) for m in feed_all(target, parts)] == [True]
    mixed = [
        next(out.frames(fragment, CHUNK_BYTES_MIN)),
        *out.frames(fragment, 2 * CHUNK_BYTES_MIN),
    ]
    assert target.feed(mixed[0]) is None
    assert refusal(target, mixed[1]).kind == "order"
    tiny = next(out.frames(fragment, CHUNK_BYTES_MIN // 2))
    assert refusal(target, tiny).kind == "malformed"


def test_a_part_that_is_missing_spoils_its_message_only() -> None:
    out, target = encoder(), decoder()
    first, _, last = out.frames(big())
    assert target.feed(first) is None
    assert refusal(target, last).kind == "order"
    again = big(size=CHUNK_BYTES + 1)
    assert [same(m, again) for m in feed_all(target, list(out.frames(again)))] == [True]


def test_a_damaged_part_spoils_its_message_once() -> None:
    out, target = encoder(), decoder()
    first, second, last = out.frames(big())
    damaged = bytearray(second)
    damaged[-3] ^= 1
    assert target.feed(first) is None
    assert refusal(target, bytes(damaged)).kind == "checksum"
    assert target.feed(last) is None  # of a message that is already lost
    assert feed_all(target, list(out.frames(Heartbeat(1, True, {})))) == [Heartbeat(1, True, {})]


def test_two_payloads_never_interleave() -> None:
    out, target = encoder(), decoder()
    one, two = list(out.frames(big())), list(out.frames(big()))
    assert target.feed(one[0]) is None
    assert refusal(target, two[0]).kind == "order"


def test_a_clock_of_too_many_entries_is_refused() -> None:
    clock = {f"u{i}": i for i in range(wire.CLOCK_ENTRIES_MAX + 1)}
    (frame,) = encoder().frames(Heartbeat(1, False, clock))
    assert refusal(decoder(), frame).kind == "oversized"


def test_bytes_on_a_message_without_payload_are_refused() -> None:
    (frame,) = encoder().frames(Heartbeat(1, False, {}))
    assert refusal(decoder(), reseal(frame, chunk=b"more")).kind == "malformed"
    (frame,) = encoder().frames(Fragment(0, 1, 1, Payload("f32", 8, ""), {}))
    assert refusal(decoder(), reseal(frame, chunk=b"x" * 8, total=8)).kind == "malformed"


def test_what_is_no_message_cannot_be_encoded() -> None:
    with pytest.raises(TypeError, match="int is not a message"):
        list(encoder().frames(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out of range"):
        list(encoder().frames(Heartbeat(-1, False, {})))
