"""Four-bit changes: sizes, the promised error, what is exact, and what nonsense becomes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from targets.diloco import int4, wiretypes
from targets.diloco.int4 import ERROR_FLOOR, ERROR_MAX, Flat
from targets.diloco.wiretypes import BLOCK

sizes = st.integers(0, 3 * BLOCK + 1)
LARGEST = float(np.float32(int4.LARGEST))
sound = st.floats(-LARGEST, LARGEST, width=32)


def round_trip(change: Flat) -> Flat:
    return int4.dequantize(int4.quantize(change), change.size)


@given(hnp.arrays(np.float32, sizes, elements=sound))
def test_the_error_is_within_the_documented_bound(change: Flat) -> None:
    error = np.abs(round_trip(change).astype(np.float64) - change.astype(np.float64))
    for start in range(0, change.size, BLOCK):
        block = slice(start, start + BLOCK)
        largest = float(np.max(np.abs(change[block])))
        assert error[block].max() <= ERROR_MAX * largest + ERROR_FLOOR


@given(hnp.arrays(np.float32, sizes, elements=st.floats(width=32)))
def test_the_size_is_that_of_the_wire_type(change: Flat) -> None:
    with np.errstate(invalid="ignore"):
        assert len(int4.quantize(change)) == wiretypes.nbytes("int4", change.size)


def test_a_large_fragment_takes_four_and_a_quarter_bits_an_element() -> None:
    assert wiretypes.nbytes("int4", 64_000) * 8 == 64_000 * 4.25


def test_the_bound_is_tight() -> None:
    """Half way between two levels: a coarser format would not do, a finer is not claimed."""
    change = np.zeros(BLOCK, np.float32)
    change[:2] = 7.0, 0.5
    assert abs(round_trip(change)[1] - 0.5) == 0.5 == ERROR_MAX * 7 / (1 + 2**-7)


def test_levels_come_back_exactly_in_order() -> None:
    change = np.arange(-7, 8, dtype=np.float32) * np.float32(0.25)
    np.testing.assert_array_equal(round_trip(change), change)


def test_zero_is_exact_and_a_block_does_not_disturb_its_neighbours() -> None:
    change = np.zeros(3 * BLOCK, np.float32)
    change[BLOCK] = 1000.0
    back = round_trip(change)
    assert back[BLOCK] == pytest.approx(1000, rel=2**-7)
    assert not np.delete(back, BLOCK).any()


@pytest.mark.parametrize("nonsense", [np.nan, np.inf, -np.inf])
def test_nonsense_spoils_its_whole_block_and_no_other(nonsense: float) -> None:
    change = np.ones(2 * BLOCK, np.float32)
    change[3] = nonsense
    back = round_trip(change)
    assert np.isnan(back[:BLOCK]).all()
    np.testing.assert_array_equal(back[BLOCK:], round_trip(np.ones(BLOCK, np.float32)))


def test_the_wire_form_is_scales_then_nibbles_low_half_first() -> None:
    change = np.array([7.0, -7.0, 1.0], np.float32)
    assert int4.quantize(change) == b"\x80\x3f" + bytes([0x1F, 0x89])


def test_what_is_too_large_for_seven_scales_is_nonsense_too() -> None:
    assert np.isnan(round_trip(np.full(1, 3.39e38, np.float32))).all()
