"""Initial parameters: the same bits everywhere, sensible sizes, and no JAX in sight."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from targets.diloco import architecture, codec
from targets.diloco.architecture import SIZES, Architecture


def test_another_process_makes_the_same_parameters_without_jax() -> None:
    code = (
        "import sys; from targets.diloco import architecture as a, codec;"
        "print(codec.digest(a.initial(a.SIZES['tiny'], 7)), 'jax' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    here = codec.digest(architecture.initial(SIZES["tiny"], 7))
    assert run.stdout.split() == [here, "False"]


def test_seeds_differ_and_layers_are_not_copies_of_each_other() -> None:
    one, two = (architecture.initial(SIZES["tiny"], seed) for seed in (1, 2))
    assert codec.digest(one) != codec.digest(two)
    names = [t.name for t in architecture.tensors(SIZES["tiny"])]
    by_name = dict(zip(names, one, strict=True))
    assert not np.array_equal(by_name["layers/0/attention/key"], by_name["layers/1/attention/key"])


def test_a_deeper_model_begins_with_the_same_layers() -> None:
    shallow, deep = (
        Architecture(width=8, layers=n, heads=2, kv_heads=1, head_width=4, hidden=4) for n in (1, 2)
    )
    few = zip(architecture.tensors(shallow), architecture.initial(shallow, 3), strict=True)
    many = zip(architecture.tensors(deep), architecture.initial(deep, 3), strict=True)
    by_name = {t.name: value for t, value in many}
    for tensor, value in few:
        np.testing.assert_array_equal(by_name[tensor.name], value)


def test_every_block_keeps_the_size_of_its_input() -> None:
    arch = SIZES["tiny"]
    draw = np.random.default_rng(0)
    tensors = architecture.tensors(arch)
    for tensor, value in zip(tensors, architecture.initial(arch, 1), strict=True):
        assert value.dtype == np.float32
        if tensor.name.endswith("/scale"):
            assert not value.any()
            continue
        rows = arch.heads * arch.head_width if "output" in tensor.name else tensor.shape[0]
        matrix = value.T if tensor.embedding else value.reshape(rows, -1)
        out = draw.standard_normal((64, matrix.shape[0])) @ matrix
        assert 0.8 < np.std(out) < 1.25, tensor.name
