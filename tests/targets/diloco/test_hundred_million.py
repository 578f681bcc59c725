"""A hundred million parameters: laid out, made, and a fragment over the wire in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from targets.diloco import architecture, codec, wiretypes
from targets.diloco.anchors import Received
from targets.diloco.messages import Push
from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Layout
from targets.diloco.wire import FRAME_BYTES_MAX, Decoder, Encoder, Limits

pytestmark = pytest.mark.slow

PARAMS = DilocoParams(model="100m", fragments=24, wire_up="int4", wire_down="bf16")
COUNT = 100_911_872


def layout() -> Layout:
    return Layout.of(architecture.tensors(architecture.of_params(PARAMS)), PARAMS.fragments)


def push(payload: Any, fragment: int) -> Push:
    return Push(
        incarnation=1,
        request=1,
        fragment=fragment,
        since_step=0,
        step=24,
        c_steps=24,
        c_tokens=1000,
        base_version=0,
        base_clock=0,
        payload=payload,
        clock={"learner-0": 24},
    )


def test_every_parameter_is_made_and_in_one_fragment() -> None:
    arch = architecture.of_params(PARAMS)
    arrays = architecture.initial(arch, 1)
    assert sum(a.size for a in arrays) == COUNT == sum(layout().elements)
    assert all(np.isfinite(a[..., :1]).all() for a in arrays)
    # The largest fragment is what has to fit through a link between two of its merges.
    assert max(layout().elements) <= COUNT / 24 * 4 / 3


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int4"])
def test_a_fragment_goes_through_the_wire_in_bounded_memory(
    dtype: str, record_property: Any
) -> None:
    elements = layout().elements
    fragment = int(np.argmax(elements))
    flat = np.random.default_rng(0).standard_normal(elements[fragment], dtype=np.float32)
    anchor = flat * np.float32(0.99)
    if dtype == "int4":
        payload = Received(1, needed=True, feedback=False).pack(0, flat, anchor)
    else:
        payload = codec.pack([flat], dtype)
    assert payload.nbytes == wiretypes.nbytes(dtype, elements[fragment])
    encoder = Encoder("run", "learner-0", 1)
    decoder = Decoder("run", "learner-0", 1, Limits.of_elements(elements))
    frames = longest = 0
    message = None
    tracemalloc.start()
    try:
        for frame in encoder.frames(push(payload, fragment)):
            assert message is None
            message = decoder.feed(frame)
            frames, longest = frames + 1, max(longest, len(frame))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(message, Push)
    assert longest <= FRAME_BYTES_MAX
    # The parts as they come, once more when they are joined, and a few frames on their way.
    assert peak <= 2 * payload.nbytes + 8 * FRAME_BYTES_MAX
    back = codec.unpack(message.payload, elements[fragment], anchor)
    if dtype == "f32":
        np.testing.assert_array_equal(back, flat)
    else:
        np.testing.assert_allclose(back, flat, atol=0.02)
    record_property("bytes", payload.nbytes)
    record_property("frames", frames)
    record_property("peak_bytes", peak)
