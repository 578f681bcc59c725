"""Fragments: what goes where, and when it is due."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.diloco.fragments import assign, due, offsets, schedule


def sizes_of(*elements: int, embedding: int | None = None) -> list[tuple[str, int, bool]]:
    return [(f"t{i}", n, i == embedding) for i, n in enumerate(elements)]


def test_embedding_has_the_first_fragment_to_itself() -> None:
    groups = assign(sizes_of(10, 1000, 20, 30, embedding=1), 3)
    assert groups[0] == (1,)
    assert sorted(i for g in groups[1:] for i in g) == [0, 2, 3]


def test_largest_first_into_the_smallest_fragment() -> None:
    # Descending: 9, 7, 6, 5, 4, 2 -> loads 9+5+2 and 7+6+4
    assert assign(sizes_of(5, 9, 4, 7, 2, 6), 2) == ((0, 1, 4), (2, 3, 5))


def test_ties_go_to_the_earlier_tensor_and_fragment() -> None:
    assert assign(sizes_of(5, 5, 5, 5), 2) == ((0, 2), (1, 3))


def test_one_fragment_holds_everything_also_the_embedding() -> None:
    assert assign(sizes_of(1, 2, 3, embedding=0), 1) == ((0, 1, 2),)


@pytest.mark.parametrize(("fragments", "embedding", "most"), [(5, None, 4), (5, 0, 4), (9, 2, 4)])
def test_more_fragments_than_tensors_is_an_error_with_both_numbers(
    fragments: int, embedding: int | None, most: int
) -> None:
    with pytest.raises(ValueError, match=f"{fragments} but .* 4 tensors.* at most {most}"):
        assign(sizes_of(1, 2, 3, 4, embedding=embedding), fragments)


def test_no_fragment_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        assign(sizes_of(1), 0)


def best_makespan(elements: list[int], bins: int) -> int:
    """The obvious way: try every placement."""
    return min(
        max(sum(e for e, b in zip(elements, where, strict=True) if b == k) for k in range(bins))
        for where in product(range(bins), repeat=len(elements))
    )


@given(st.lists(st.integers(1, 50), min_size=3, max_size=7), st.integers(1, 3))
def test_every_tensor_once_and_at_most_four_thirds_of_the_best(
    elements: list[int], bins: int
) -> None:
    groups = assign(sizes_of(*elements), bins)
    assert sorted(i for g in groups for i in g) == list(range(len(elements)))
    assert all(groups)
    largest = max(sum(elements[i] for i in g) for g in groups)
    assert 3 * largest <= 4 * best_makespan(elements, bins)


def test_offsets_are_spread_evenly() -> None:
    assert offsets(4, 12) == (0, 3, 6, 9)
    assert offsets(3, 3) == (0, 1, 2)
    assert offsets(3, 8) == (0, 2, 5)


@given(st.integers(1, 40), st.integers(1, 40))
def test_each_fragment_is_due_once_a_cycle(fragments: int, sync_every: int) -> None:
    if fragments > sync_every:
        with pytest.raises(ValueError, match="distinct offsets"):
            offsets(fragments, sync_every)
        return
    seen = [due(clock, fragments, sync_every) for clock in range(100, 100 + sync_every)]
    assert sorted(p for p in seen if p is not None) == list(range(fragments))
    assert due(7, fragments, sync_every) == schedule(fragments, sync_every)[7 % sync_every]
