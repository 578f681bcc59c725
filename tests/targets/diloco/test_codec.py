"""Fragments to bytes and back, and what is refused."""

from __future__ import annotations

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from targets.diloco import codec

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
fragments = st.lists(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=floats))
DTYPES = ["f32", "bf16"]


@given(fragments)
def test_f32_round_trip_keeps_every_bit(arrays: list[codec.Array]) -> None:
    flat = codec.unpack(codec.pack(arrays, "f32"), sum(a.size for a in arrays))
    assert flat.tobytes() == b"".join(a.tobytes() for a in arrays)


def test_tensors_come_back_in_order_and_shape() -> None:
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7.0, dtype=np.float32),
        np.arange(4, dtype=np.float32),
    ]
    shapes = [a.shape for a in arrays]
    back = codec.split(codec.decode(codec.encode(arrays, "f32"), "f32", 11), shapes)
    for before, after in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(before, after, strict=True)


def test_elements_are_raw_little_endian() -> None:
    assert codec.encode([np.array([1.0], np.float32)], "f32") == b"\x00\x00\x80\x3f"
    assert codec.encode([np.array([1.0], np.float32)], "bf16") == b"\x80\x3f"


def test_non_contiguous_arrays_are_encoded_in_index_order() -> None:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert codec.encode([transposed], "f32") == np.ascontiguousarray(transposed).tobytes()
    assert codec.encode([transposed], "bf16") == codec.encode([transposed.copy()], "bf16")


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=2), elements=floats))
def test_bf16_rounds_like_ml_dtypes(array: codec.Array) -> None:
    ours = codec.decode(codec.encode([array], "bf16"), "bf16", array.size)
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs.reshape(-1))


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [(0x3F807FFF, 0x3F80), (0x3F808000, 0x3F80), (0x3F808001, 0x3F81), (0x3F818000, 0x3F82)],
)
def test_bf16_rounds_ties_to_even(bits: int, rounded: int) -> None:
    array = np.array([bits], np.uint32).view(np.float32)
    assert codec.encode([array], "bf16") == rounded.to_bytes(2, "little")


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001])
def test_bf16_never_turns_a_nan_into_a_number(bits: int) -> None:
    nan = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(codec.decode(codec.encode([nan], "bf16"), "bf16", 1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_rounded_once_travels_unchanged(dtype: str) -> None:
    array = np.random.default_rng(0).standard_normal(100, dtype=np.float32)
    once = codec.unpack(codec.pack([array], dtype), 100)
    assert codec.pack([once], dtype) == codec.pack([array], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("change", "kind"), [(-1, "truncated"), (1, "layout"), (4, "layout")])
def test_a_wrong_size_is_refused(dtype: str, change: int, kind: str) -> None:
    data = codec.encode([np.zeros(5, np.float32)], dtype)
    data = data[:change] if change < 0 else data + bytes(change)
    with pytest.raises(codec.PayloadError, match=f"^{kind}: {len(data)} bytes where 5 elem") as e:
        codec.decode(data, dtype, 5)
    assert e.value.kind == kind


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_flipped_bit_is_noticed(dtype: str) -> None:
    payload = codec.pack([np.linspace(-1, 1, 4, dtype=np.float32)], dtype)
    for bit in range(8 * payload.nbytes):
        data = bytearray(payload.data)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(codec.PayloadError, match=r"^checksum: "):
            codec.unpack(msgspec.structs.replace(payload, data=bytes(data)), 4)


def test_an_unknown_type_and_missing_data_are_refused() -> None:
    payload = codec.pack([np.zeros(2, np.float32)], "f32")
    with pytest.raises(codec.PayloadError, match="layout: wire type 'f64' is none of f32, bf16"):
        codec.unpack(msgspec.structs.replace(payload, dtype="f64"), 2)
    with pytest.raises(codec.PayloadError, match="truncated: the payload has no data"):
        codec.unpack(msgspec.structs.replace(payload, data=None), 2)
    with pytest.raises(codec.PayloadError, match="layout"):
        codec.encode([np.zeros(2, np.float32)], "int8")


def test_a_digest_is_that_of_what_the_receiver_gets() -> None:
    array = np.random.default_rng(1).standard_normal(9, dtype=np.float32)
    payload = codec.pack([array], "bf16")
    assert payload.digest == codec.digest([codec.unpack(payload, 9)])
    assert payload.digest != codec.digest([array])
    assert codec.digest([array[:4], array[4:]]) == codec.digest([array])
    assert codec.digest([-np.zeros(1, np.float32)]) != codec.digest([np.zeros(1, np.float32)])
    assert len(payload.digest) == 32
