"""The decoder in Flax nnx: bytes in, logits of the next byte out.

Gemma's recipe at small sizes: RMSNorm with ``1 + scale`` before and after each block, rotary
positions, grouped-query attention with normalized queries and keys, GeGLU, and one matrix for
embedding and output. All parameters and activations are float32. Shapes are written B batch,
S sequence, D width, K key heads, G query heads per key head, H head width.

Training code uses the network as a pure function of a flat list of arrays (:func:`apply`), so
that fragments can be exchanged without knowing Flax. The abstract graph is built by tracing and
allocates nothing; real values come from ``targets.diloco.architecture.initial``.
"""

# Flax is not type-checked here, so its Module is Any to mypy.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
from flax import nnx

from targets.diloco.architecture import VOCABULARY, Architecture, tensors

MASKED = -1e30
"""Attention score of a position that may not be seen; finite, so that gradients stay so."""


class RMSNorm(nnx.Module):
    """``x / rms(x) * (1 + scale)`` over the last axis."""

    def __init__(self, width: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.zeros((width,)))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """float32 [..., width] to the same shape."""
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean_square + self.epsilon) * (1 + self.scale[...])


def rotate(x: jax.Array, base: float) -> jax.Array:
    """Rotary position embedding of float32 [B, S, heads, H]; pairs are (i, i + H/2)."""
    length, half = x.shape[1], x.shape[-1] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


class Attention(nnx.Module):
    """Causal grouped-query attention."""

    def __init__(self, arch: Architecture) -> None:
        width, head = arch.width, arch.head_width
        self.query = nnx.Param(jnp.zeros((width, arch.heads, head)))
        self.key = nnx.Param(jnp.zeros((width, arch.kv_heads, head)))
        self.value = nnx.Param(jnp.zeros((width, arch.kv_heads, head)))
        self.output = nnx.Param(jnp.zeros((arch.heads, head, width)))
        self.query_norm = RMSNorm(head, arch.norm_epsilon)
        self.key_norm = RMSNorm(head, arch.norm_epsilon)
        self.groups = arch.heads // arch.kv_heads
        self.rope_base = arch.rope_base

    def __call__(self, x: jax.Array) -> jax.Array:
        """float32 [B, S, D] to the same shape; position s sees positions up to s."""
        query = rotate(
            self.query_norm(jnp.einsum("bsd,dnh->bsnh", x, self.query[...])), self.rope_base
        )
        key = rotate(self.key_norm(jnp.einsum("bsd,dkh->bskh", x, self.key[...])), self.rope_base)
        value = jnp.einsum("bsd,dkh->bskh", x, self.value[...])
        batch, length, heads, head = query.shape
        query = query.reshape(batch, length, heads // self.groups, self.groups, head)
        scores = jnp.einsum("bskgh,btkh->bkgst", query, key) * head**-0.5
        seen = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, MASKED), axis=-1)
        mixed = jnp.einsum("bkgst,btkh->bskgh", weights, value)
        return jnp.einsum(
            "bsnh,nhd->bsd", mixed.reshape(batch, length, heads, head), self.output[...]
        )


class DenseFeedForward(nnx.Module):
    """GeGLU: ``(gelu(x @ gate) * (x @ up)) @ down``."""

    def __init__(self, arch: Architecture) -> None:
        self.gate = nnx.Param(jnp.zeros((arch.width, arch.hidden)))
        self.up = nnx.Param(jnp.zeros((arch.width, arch.hidden)))
        self.down = nnx.Param(jnp.zeros((arch.hidden, arch.width)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """float32 [B, S, D] to the same shape."""
        gated = jax.nn.gelu(x @ self.gate[...], approximate=True) * (x @ self.up[...])
        return gated @ self.down[...]


class ExpertsFeedForward(nnx.Module):
    """Mixture of experts: each token goes through the ``chosen`` likeliest of the router's.

    Their outputs are added in proportion to the router's probabilities. Every expert computes
    every token and the others' outputs count nothing: no token is ever dropped and shapes are
    fixed, which is what a small CPU model wants; nothing here saves work.
    """

    def __init__(self, arch: Architecture) -> None:
        experts, width, inner = arch.experts, arch.width, arch.hidden // arch.chosen
        self.router = nnx.Param(jnp.zeros((width, experts)))
        self.gate = nnx.Param(jnp.zeros((experts, width, inner)))
        self.up = nnx.Param(jnp.zeros((experts, width, inner)))
        self.down = nnx.Param(jnp.zeros((experts, inner, width)))
        self.chosen = arch.chosen

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """float32 [B, S, D] to (the same shape, scalar load-balance loss).

        The loss is that of the Switch Transformer for several choices: the number of experts
        times the sum over them of share of choices times mean probability. 1 when all are used
        alike, which is its least; its gradient moves probability away from crowded experts.
        """
        chances = jax.nn.softmax(x @ self.router[...], axis=-1)
        experts = chances.shape[-1]
        _, best = jax.lax.top_k(chances, self.chosen)
        taken = jnp.sum(jax.nn.one_hot(best, experts, dtype=x.dtype), axis=-2)
        kept = chances * taken
        shares = kept / jnp.sum(kept, axis=-1, keepdims=True)
        gate = jnp.einsum("bsd,edh->bseh", x, self.gate[...])
        up = jnp.einsum("bsd,edh->bseh", x, self.up[...])
        hidden = jax.nn.gelu(gate, approximate=True) * up * shares[..., None]
        out = jnp.einsum("bseh,ehd->bsd", hidden, self.down[...])
        used = jnp.mean(taken, axis=(0, 1)) / self.chosen
        return out, experts * jnp.sum(used * jnp.mean(chances, axis=(0, 1)))


FEED_FORWARDS: dict[str, Callable[[Architecture], nnx.Module]] = {
    "dense": DenseFeedForward,
    "moe": ExpertsFeedForward,
}
"""``Architecture.feed_forward`` to a module from float32 [B, S, D] to the same shape, or to that
and a load-balance loss."""


class Layer(nnx.Module):
    """Attention and feed-forward, each normalized before and after, added to the stream."""

    def __init__(self, arch: Architecture) -> None:
        width, epsilon = arch.width, arch.norm_epsilon
        self.attention_norm = RMSNorm(width, epsilon)
        self.attention = Attention(arch)
        self.attention_post_norm = RMSNorm(width, epsilon)
        self.feed_forward_norm = RMSNorm(width, epsilon)
        self.feed_forward = FEED_FORWARDS[arch.feed_forward](arch)
        self.feed_forward_post_norm = RMSNorm(width, epsilon)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """float32 [B, S, D] to the same shape, and the load-balance loss where there is one."""
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x)))
        found = self.feed_forward(self.feed_forward_norm(x))
        out, balance = found if isinstance(found, tuple) else (found, None)
        return x + self.feed_forward_post_norm(out), balance


class Decoder(nnx.Module):
    """The whole network."""

    def __init__(self, arch: Architecture) -> None:
        self.embedding = nnx.Param(jnp.zeros((VOCABULARY, arch.width)))
        self.layers = nnx.List([Layer(arch) for _ in range(arch.layers)])
        self.final_norm = RMSNorm(arch.width, arch.norm_epsilon)

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """int32 [B, S] in 0..255 to float32 logits [B, S, 256] of each next byte, and the mean
        load-balance loss of the layers where there is one."""
        embedding = self.embedding[...]
        x = embedding[tokens] * embedding.shape[-1] ** 0.5
        balances = []
        for layer in self.layers:
            x, balance = layer(x)
            if balance is not None:
                balances.append(balance)
        logits = self.final_norm(x) @ embedding.T
        return logits, sum(balances) / len(balances) if balances else None


@lru_cache(maxsize=8)
def _graph(arch: Architecture) -> tuple[nnx.GraphDef[Decoder], tuple[tuple[str | int, ...], ...]]:
    """The network without values, and the path of each tensor of ``tensors(arch)``."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(arch)))
    flat = dict(nnx.to_flat_state(state))
    by_name = {"/".join(str(part) for part in path): path for path in flat}
    wanted = {t.name: t.shape for t in tensors(arch)}
    found = {name: flat[path].shape for name, path in by_name.items()}
    if wanted != found:
        raise AssertionError(f"architecture and model differ: {wanted} against {found}")
    return graph, tuple(by_name[name] for name in wanted)


def apply(arch: Architecture, params: Sequence[jax.Array], tokens: jax.Array) -> jax.Array:
    """The logits of :func:`forward`."""
    return forward(arch, params, tokens)[0]


def forward(
    arch: Architecture, params: Sequence[jax.Array], tokens: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """Logits and load-balance loss (None unless the layers have experts), as a pure function of
    the parameters in the order of ``tensors(arch)``.

    ``tokens`` is int32 [B, S]; the logits are float32 [B, S, 256].
    """
    graph, paths = _graph(arch)
    state = nnx.from_flat_state(
        [(path, nnx.Param(value)) for path, value in zip(paths, params, strict=True)]
    )
    found: tuple[jax.Array, jax.Array | None] = nnx.merge(graph, state)(tokens)
    return found
