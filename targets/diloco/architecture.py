"""Sizes of the decoder, its parameter tensors and their initial values; NumPy only.

``targets.diloco.model`` is the same network in Flax. The two are apart because the syncer and a
restarting learner need the shapes but not Flax, whose import costs more than a learner's whole
restart; a test holds them equal. A tensor's name is its path in the Flax module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from harness.seeds import array_stream
from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Arrays, Tensor

VOCABULARY = 256
"""Bytes are the tokens; there are no special ones, as every window starts inside a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A Gemma-like decoder: pre- and post-norms, GQA with query and key norms, GeGLU, RoPE,
    embedding tied with the output. Widths are in elements."""

    width: int
    layers: int
    heads: int
    """Query heads; a multiple of ``kv_heads``."""
    kv_heads: int
    """Key and value heads, each shared by ``heads // kv_heads`` query heads."""
    head_width: int
    """Even, since RoPE turns pairs."""
    hidden: int
    """Inner width of the feed-forward block."""
    feed_forward: str = "dense"
    """Which block of ``targets.diloco.model.FEED_FORWARDS`` follows attention."""
    experts: int = 1
    """Feed-forward blocks of each layer, for ``moe``."""
    chosen: int = 1
    """Experts that each token goes through; each is ``hidden // chosen`` wide, so that a token
    meets as many feed-forward parameters as in the dense form."""
    balance: float = 0.01
    """Weight of the load-balance loss."""
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6


SIZES: dict[str, Architecture] = {
    "micro": Architecture(width=32, layers=2, heads=4, kv_heads=2, head_width=8, hidden=96),
    "tiny": Architecture(width=64, layers=2, heads=4, kv_heads=2, head_width=16, hidden=192),
    "small": Architecture(width=128, layers=4, heads=4, kv_heads=2, head_width=32, hidden=512),
    "base": Architecture(width=256, layers=10, heads=8, kv_heads=4, head_width=32, hidden=1024),
    "100m": Architecture(width=768, layers=16, heads=12, kv_heads=4, head_width=64, hidden=2048),
}
"""33,088, 115,328, 1,018,240, 9,907,072 and 100,911,872 parameters."""


def of_params(params: DilocoParams) -> Architecture:
    """The architecture that ``params`` asks for."""
    size = SIZES[params.model]
    if params.form == "dense":
        return size
    return replace(size, feed_forward="moe", experts=params.experts, chosen=params.experts_chosen)


def tensors(arch: Architecture) -> tuple[Tensor, ...]:
    """Every parameter tensor, in the order in which the network uses them."""
    return (
        Tensor("embedding", (VOCABULARY, arch.width), embedding=True),
        *(
            Tensor(f"layers/{n}/{name}", shape)
            for n in range(arch.layers)
            for name, shape in _layer(arch)
        ),
        Tensor("final_norm/scale", (arch.width,)),
    )


def _layer(arch: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, head = arch.width, arch.head_width
    yield "attention_norm/scale", (width,)
    yield "attention/query", (width, arch.heads, head)
    yield "attention/key", (width, arch.kv_heads, head)
    yield "attention/value", (width, arch.kv_heads, head)
    yield "attention/output", (arch.heads, head, width)
    yield "attention/query_norm/scale", (head,)
    yield "attention/key_norm/scale", (head,)
    yield "attention_post_norm/scale", (width,)
    yield "feed_forward_norm/scale", (width,)
    if arch.feed_forward == "moe":
        inner = arch.hidden // arch.chosen
        yield "feed_forward/router", (width, arch.experts)
        yield "feed_forward/gate", (arch.experts, width, inner)
        yield "feed_forward/up", (arch.experts, width, inner)
        yield "feed_forward/down", (arch.experts, inner, width)
    else:
        yield "feed_forward/gate", (width, arch.hidden)
        yield "feed_forward/up", (width, arch.hidden)
        yield "feed_forward/down", (arch.hidden, width)
    yield "feed_forward_post_norm/scale", (width,)


def initial(arch: Architecture, seed: int) -> Arrays:
    """Initial float32 parameters in the order of :func:`tensors`.

    Each tensor has a random stream of its own, keyed by its name: the same seed gives the same
    bits in every process, and a model with more layers shares the first ones. Norm scales are
    zero, since the network multiplies by ``1 + scale``.
    """
    return [_initial(tensor, seed) for tensor in tensors(arch)]


def _initial(tensor: Tensor, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    if tensor.name.endswith("/scale"):
        return np.zeros(tensor.shape, np.float32)
    draw = array_stream(seed, "initial", tensor.name)
    values = draw.standard_normal(tensor.shape, dtype=np.float32)
    return values * np.float32(1 / sqrt(_fan_in(tensor)))


def _fan_in(tensor: Tensor) -> int:
    if tensor.embedding:
        return tensor.shape[-1]  # it is the output matrix as well: its input is the width
    if tensor.name.endswith("attention/output"):
        return tensor.shape[0] * tensor.shape[1]
    if "/feed_forward/" in tensor.name:
        return tensor.shape[-2]  # of each expert, where there are several
    return tensor.shape[0]
