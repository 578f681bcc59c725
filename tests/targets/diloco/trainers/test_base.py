"""Layouts: splitting, joining, and the digest that both ends must share."""

from __future__ import annotations

import numpy as np
import pytest

from targets.diloco import trainers
from targets.diloco.trainers.base import Layout, Tensor

TENSORS = (
    Tensor("embedding", (4, 2), embedding=True),
    Tensor("a", (3,)),
    Tensor("b", (2, 2)),
    Tensor("scale", ()),
)


def test_split_and_join_are_inverse() -> None:
    layout = Layout.of(TENSORS, 3)
    arrays = [np.full(t.shape, i, dtype=np.float32) for i, t in enumerate(TENSORS)]
    back = layout.join(layout.split(arrays))
    assert [a is b for a, b in zip(arrays, back, strict=True)] == [True] * 4
    assert layout.elements[0] == 8
    assert sum(layout.elements) == 16
    assert [layout.shapes(p) for p in range(3)] == [
        tuple(a.shape for a in f) for f in layout.split(arrays)
    ]


def test_more_fragments_than_tensors_is_an_error() -> None:
    with pytest.raises(ValueError, match="fragments is 5 but the model has only 4 tensors"):
        Layout.of(TENSORS, 5)


def test_the_digest_covers_seed_names_shapes_and_assignment() -> None:
    renamed = (*TENSORS[:3], Tensor("offset", ()))
    reshaped = (*TENSORS[:3], Tensor("scale", (1,)))
    digests = {
        Layout.of(TENSORS, 3).digest(0),
        Layout.of(TENSORS, 3).digest(1),
        Layout.of(TENSORS, 2).digest(0),
        Layout.of(renamed, 3).digest(0),
        Layout.of(reshaped, 3).digest(0),
    }
    assert len(digests) == 5
    assert Layout.of(TENSORS, 3).digest(0) in digests


def test_every_trainer_in_the_table_can_be_loaded() -> None:
    for name in trainers.TRAINERS:
        module = trainers.load(name)
        wanted = ("tensors", "problems", "initial", "tokens_per_step", "create")
        assert [f for f in wanted if not callable(getattr(module, f, None))] == [], name
