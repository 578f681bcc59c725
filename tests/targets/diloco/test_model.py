"""The decoder against a slow NumPy version written from the formulas, one position at a time."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from targets.diloco import architecture, model
from targets.diloco.architecture import SIZES, Architecture
from targets.diloco.params import DilocoParams

F64 = NDArray[np.float64]
SMALL = Architecture(width=12, layers=2, heads=6, kv_heads=2, head_width=4, hidden=10)
EXPERTS = replace(SMALL, feed_forward="moe", experts=5, chosen=2)


@pytest.fixture(autouse=True)
def strict_promotion() -> object:
    with jax.numpy_dtype_promotion("strict"):
        yield


def weights(arch: Architecture, seed: int = 5) -> dict[str, F64]:
    """Random parameters whose norm scales are not zero, by name."""
    draw = np.random.default_rng(seed)
    names = architecture.tensors(arch)
    values = architecture.initial(arch, seed)
    return {
        t.name: (v + 0.3 * draw.standard_normal(v.shape)).astype(np.float32).astype(np.float64)
        for t, v in zip(names, values, strict=True)
    }


def leaves(named: dict[str, F64]) -> list[jax.Array]:
    return [jnp.asarray(value.astype(np.float32)) for value in named.values()]


# --- the slow version ---------------------------------------------------------------------------


def slow_norm(x: F64, scale: F64) -> F64:
    return np.asarray(x / np.sqrt(np.mean(x * x) + 1e-6) * (1 + scale))


def slow_rope(vector: F64, position: int) -> F64:
    """Pairs (i, i + H/2) as complex numbers, turned by position * base^(-2i/H)."""
    half = len(vector) // 2
    turned = [
        complex(vector[i], vector[i + half])
        * np.exp(1j * position * 10_000.0 ** (-2 * i / len(vector)))
        for i in range(half)
    ]
    return np.array([z.real for z in turned] + [z.imag for z in turned])


def slow_attention(arch: Architecture, w: dict[str, F64], at: str, x: list[F64]) -> list[F64]:
    group = arch.heads // arch.kv_heads
    out = []
    for s, here in enumerate(x):
        total = np.zeros(arch.width)
        for head in range(arch.heads):
            kv = head // group
            query = here @ w[f"{at}/query"][:, head]
            query = slow_rope(slow_norm(query, w[f"{at}/query_norm/scale"]), s)
            scores = []
            for t in range(s + 1):
                key = x[t] @ w[f"{at}/key"][:, kv]
                key = slow_rope(slow_norm(key, w[f"{at}/key_norm/scale"]), t)
                scores.append(query @ key / np.sqrt(arch.head_width))
            shares = np.exp(np.array(scores) - max(scores))
            shares /= shares.sum()
            mixed = sum(shares[t] * (x[t] @ w[f"{at}/value"][:, kv]) for t in range(s + 1))
            total += mixed @ w[f"{at}/output"][head]
        out.append(total)
    return out


def slow_geglu(w: dict[str, F64], at: str, x: F64) -> F64:
    gate = x @ w[f"{at}/gate"]
    gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return np.asarray((gelu * (x @ w[f"{at}/up"])) @ w[f"{at}/down"])


def slow_experts(arch: Architecture, w: dict[str, F64], at: str, x: F64) -> F64:
    """The chosen experts one after the other, weighed by their shares of probability."""
    scores = x @ w[f"{at}/router"]
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    best = np.argsort(-chances)[: arch.chosen]
    total = np.zeros(arch.width)
    for expert in best:
        own = {f"{at}/{part}": w[f"{at}/{part}"][expert] for part in ("gate", "up", "down")}
        total += chances[expert] / chances[best].sum() * slow_geglu(own, at, x)
    return total


def slow_feed_forward(arch: Architecture, w: dict[str, F64], at: str, x: F64) -> F64:
    return slow_experts(arch, w, at, x) if arch.feed_forward == "moe" else slow_geglu(w, at, x)


def slow_decoder(arch: Architecture, w: dict[str, F64], tokens: list[int]) -> F64:
    x = [w["embedding"][token] * np.sqrt(arch.width) for token in tokens]
    for n in range(arch.layers):
        at = f"layers/{n}"
        inputs = [slow_norm(v, w[f"{at}/attention_norm/scale"]) for v in x]
        mixed = slow_attention(arch, w, f"{at}/attention", inputs)
        post = w[f"{at}/attention_post_norm/scale"]
        x = [v + slow_norm(m, post) for v, m in zip(x, mixed, strict=True)]
        pre, post = (w[f"{at}/feed_forward{end}/scale"] for end in ("_norm", "_post_norm"))
        block = f"{at}/feed_forward"
        x = [v + slow_norm(slow_feed_forward(arch, w, block, slow_norm(v, pre)), post) for v in x]
    return np.array([w["embedding"] @ slow_norm(v, w["final_norm/scale"]) for v in x])


# --- tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arch",
    [SMALL, Architecture(width=8, layers=1, heads=2, kv_heads=2, head_width=6, hidden=4), EXPERTS],
    ids=["grouped", "one-to-one", "experts"],
)
def test_logits_equal_the_slow_version(arch: Architecture) -> None:
    named = weights(arch)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 9))
    logits = model.apply(arch, leaves(named), jnp.asarray(tokens, jnp.int32))
    assert logits.shape == (2, 9, 256)
    assert logits.dtype == jnp.float32
    for row, expected in zip(logits, tokens, strict=True):
        np.testing.assert_allclose(row, slow_decoder(arch, named, expected.tolist()), atol=2e-4)


def test_rotation_equals_complex_multiplication() -> None:
    x = np.random.default_rng(1).standard_normal((1, 7, 2, 8)).astype(np.float32)
    turned = model.rotate(jnp.asarray(x), 10_000.0)
    for position in range(7):
        for head in range(2):
            np.testing.assert_allclose(
                turned[0, position, head], slow_rope(x[0, position, head], position), atol=1e-5
            )


def test_rotated_products_depend_on_the_distance_only() -> None:
    draw = np.random.default_rng(2)
    query, key = draw.standard_normal((2, 8)).astype(np.float32)
    rows = [np.tile(v, (1, 20, 1, 1)).reshape(1, 20, 1, 8) for v in (query, key)]
    q, k = (np.asarray(model.rotate(jnp.asarray(r), 10_000.0))[0, :, 0] for r in rows)
    products = q @ k.T
    for distance in (0, 1, 7):
        diagonal = np.diagonal(products, -distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4)
    assert not np.isclose(products[0, 0], products[7, 0])


def test_no_position_sees_what_follows_it() -> None:
    params = leaves(weights(SMALL))
    tokens = np.random.default_rng(3).integers(0, 256, (1, 12))
    changed = tokens.copy()
    changed[0, 7:] = (changed[0, 7:] + 1) % 256
    before, after = (
        np.asarray(model.apply(SMALL, params, jnp.asarray(t, jnp.int32))) for t in (tokens, changed)
    )
    np.testing.assert_array_equal(before[0, :7], after[0, :7])
    assert np.all(np.any(before[0, 7:] != after[0, 7:], axis=-1))


@pytest.mark.parametrize("form", ["dense", "moe"])
@pytest.mark.parametrize("size", SIZES)
def test_architecture_and_flax_model_have_the_same_tensors(size: Any, form: Any) -> None:
    arch = architecture.of_params(DilocoParams(model=size, form=form))
    tensors = architecture.tensors(arch)
    shapes = [jax.ShapeDtypeStruct(t.shape, jnp.float32) for t in tensors]
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    # ``apply`` raises when names or shapes of the two differ; nothing is allocated here.
    logits = jax.eval_shape(lambda p, t: model.apply(arch, p, t), shapes, tokens)
    assert logits.shape == (1, 8, 256)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("micro", 33_088),
        ("tiny", 115_328),
        ("small", 1_018_240),
        ("base", 9_907_072),
        ("100m", 100_911_872),
    ],
)
def test_sizes_are_what_the_documentation_says(size: str, parameters: int) -> None:
    tensors = architecture.tensors(SIZES[size])
    assert sum(prod(t.shape) for t in tensors) == parameters
    assert [t.name for t in tensors if t.embedding] == ["embedding"]
    assert len(tensors) >= 24  # the default number of fragments


@pytest.mark.parametrize(("size", "parameters"), [("tiny", 189_568), ("100m", 176_458_496)])
def test_experts_add_parameters_but_not_to_what_a_token_meets(size: Any, parameters: int) -> None:
    params = DilocoParams(model=size, form="moe", experts=4, experts_chosen=2)
    arch = architecture.of_params(params)
    found = {t.name: t for t in architecture.tensors(arch)}
    assert sum(t.elements for t in found.values()) == parameters
    dense = SIZES[size]
    block = [found[f"layers/0/feed_forward/{part}"] for part in ("gate", "up", "down")]
    met = sum(t.elements for t in block) // arch.experts * arch.chosen
    assert met == 3 * dense.width * dense.hidden


def test_an_expert_that_is_not_chosen_does_not_matter() -> None:
    named = weights(EXPERTS)
    named["layers/0/feed_forward/router"][:, 3] = 0
    named["layers/0/feed_forward_norm/scale"][:] = 0
    others = [0, 1, 2, 4]
    named["layers/0/feed_forward/router"][:, others] *= 0
    # All scores are zero: ties go to the first two experts, and never to number 3.
    tokens = jnp.asarray([[5, 6, 7]], jnp.int32)
    before = model.apply(EXPERTS, leaves(named), tokens)
    named["layers/0/feed_forward/up"][3] += 1.0
    np.testing.assert_array_equal(model.apply(EXPERTS, leaves(named), tokens), before)
    named["layers/0/feed_forward/up"][1] += 1.0
    assert not np.array_equal(model.apply(EXPERTS, leaves(named), tokens), before)


def test_the_balance_loss_is_least_when_experts_are_used_alike() -> None:
    block = model.ExpertsFeedForward(replace(EXPERTS, experts=4, chosen=1))
    router = np.zeros((12, 4), np.float32)
    router[:4, :4] = 20 * np.eye(4)
    block.router[...] = jnp.asarray(router)
    even = jnp.asarray(np.tile(np.eye(4, 12, dtype=np.float32), (1, 3, 1)))
    crowded = jnp.asarray(np.tile(np.eye(1, 12, dtype=np.float32), (1, 12, 1)))
    assert float(block(even)[1]) == pytest.approx(1.0, abs=1e-4)
    assert float(block(crowded)[1]) == pytest.approx(4.0, abs=1e-4)


def test_dense_models_have_no_balance_loss_and_experts_do() -> None:
    tokens = jnp.asarray([[1, 2, 3]], jnp.int32)
    assert model.forward(SMALL, leaves(weights(SMALL)), tokens)[1] is None
    balance = model.forward(EXPERTS, leaves(weights(EXPERTS)), tokens)[1]
    assert balance is not None
    assert 0.5 < float(balance) <= 5


def test_a_feed_forward_block_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(model.DenseFeedForward):
        def __call__(self, x: jax.Array) -> jax.Array:
            return super().__call__(x) * 2

    monkeypatch.setitem(model.FEED_FORWARDS, "doubled", Doubled)
    arch = Architecture(
        width=8, layers=1, heads=2, kv_heads=1, head_width=4, hidden=4, feed_forward="doubled"
    )
    # The post-norm takes a factor of two away again (up to epsilon): same logits, other block.
    plain = Architecture(width=8, layers=1, heads=2, kv_heads=1, head_width=4, hidden=4)
    params = leaves(weights(arch))
    tokens = jnp.asarray([[1, 2, 3]], jnp.int32)
    doubled, dense = (model.apply(a, params, tokens) for a in (arch, plain))
    assert not np.array_equal(doubled, dense)
    np.testing.assert_allclose(doubled, dense, atol=1e-3)
