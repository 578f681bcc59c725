"""The toy layout adds up for every size."""

from __future__ import annotations

import pytest

from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Layout
from targets.diloco.trainers.toy import tensors


@pytest.mark.parametrize("elements", [1, 2, 3, 49, 64, 100, 4096, 1_000_003])
def test_elements_add_up_and_no_tensor_is_empty(elements: int) -> None:
    found = tensors(DilocoParams(scripted_elements=elements))
    assert sum(t.elements for t in found) == elements
    assert all(t.elements > 0 for t in found)
    assert [t.embedding for t in found] == [True] + [False] * (len(found) - 1)


def test_the_default_fits_the_default_number_of_fragments() -> None:
    params = DilocoParams()
    layout = Layout.of(tensors(params), params.fragments)
    assert len(layout.fragments) == params.fragments
