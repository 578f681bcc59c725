"""The inner step of a mixture of experts: it learns, and its routers are pulled towards balance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from targets.diloco import architecture, model, training
from targets.diloco.architecture import Architecture

ARCH = Architecture(
    width=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_width=8,
    hidden=32,
    feed_forward="moe",
    experts=4,
    chosen=2,
)


@pytest.fixture(autouse=True)
def strict_promotion() -> object:
    with jax.numpy_dtype_promotion("strict"):
        yield


def records(seed: int, count: int = 8) -> Any:
    """Bytes with a pattern: every record counts upwards from somewhere."""
    draw = np.random.default_rng(seed)
    starts = draw.integers(0, 200, (count, 1))
    return jnp.asarray((starts + np.arange(17)) % 256, jnp.uint8)


def trained(arch: Architecture, steps: int) -> tuple[list[Any], list[float]]:
    params = [jnp.asarray(a) for a in architecture.initial(arch, 3)]
    first = [jnp.zeros_like(p) for p in params]
    second = [jnp.zeros_like(p) for p in params]
    step = jax.jit(training.inner_step(arch))
    seen = []
    for n in range(steps):
        count = jnp.asarray(n, jnp.int32)
        rate, decay = jnp.asarray(0.01, jnp.float32), jnp.asarray(0.0, jnp.float32)
        params, first, second, loss = step(params, first, second, count, rate, decay, records(n))
        seen.append(float(loss))
    return params, seen


def balance_of(arch: Architecture, params: list[Any]) -> float:
    balance = model.forward(arch, params, records(99)[:, :-1].astype(jnp.int32))[1]
    assert balance is not None
    return float(balance)


def test_a_mixture_of_experts_learns() -> None:
    _, seen = trained(ARCH, 60)
    assert seen[-1] < 0.6 * seen[0]


def test_the_reported_loss_is_the_cross_entropy_alone() -> None:
    params = [jnp.asarray(a) for a in architecture.initial(ARCH, 3)]
    nats, _ = training.losses(ARCH, params, records(0))
    _, seen = trained(replace(ARCH, balance=5.0), 1)
    assert seen[0] == pytest.approx(float(jnp.mean(nats)), rel=1e-5)


def test_the_balance_loss_pulls_routers_towards_balance() -> None:
    without, _ = trained(replace(ARCH, balance=0.0), 40)
    pulled, _ = trained(replace(ARCH, balance=1.0), 40)
    assert balance_of(ARCH, pulled) < balance_of(ARCH, without)
    assert balance_of(ARCH, pulled) < 1.1
