"""The inner step and the evaluation as pure functions of flat lists of arrays.

Imported only when something has to be traced: a learner that finds its compiled step in the
cache needs neither this module nor Flax and Optax.

The inner optimizer is AdamW with betas (0.9, 0.95), decoupled weight decay on matrices only and
gradients clipped to a global norm of 1. Learning rate and weight decay are arguments, so one
compiled step serves every setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax

from targets.diloco.architecture import Architecture
from targets.diloco.model import forward

BETAS = (0.9, 0.95)
EPSILON = 1e-8
CLIP_NORM = 1.0

Leaves: TypeAlias = Sequence[jax.Array]
"""float32 arrays in the order of ``architecture.tensors``."""


def losses(arch: Architecture, params: Leaves, records: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats and correctness of every next byte.

    ``records`` is uint8 [B, S + 1]; both results are float32 [B, S].
    """
    nats, hits, _ = _judged(arch, params, records)
    return nats, hits


def _judged(
    arch: Architecture, params: Leaves, records: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    tokens = records.astype(jnp.int32)
    logits, balance = forward(arch, params, tokens[:, :-1])
    targets = tokens[:, 1:]
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    hits = (jnp.argmax(logits, axis=-1).astype(jnp.int32) == targets).astype(jnp.float32)
    return nats, hits, balance


Gradients: TypeAlias = Callable[
    [Callable[[Leaves, jax.Array], jax.Array], Leaves, jax.Array],
    tuple[jax.Array, list[jax.Array]],
]
"""(mean loss, parameters, records) to the loss and its gradients."""


def _mean_loss(arch: Architecture) -> Callable[[Leaves, jax.Array], jax.Array]:
    def mean_loss(params: Leaves, records: jax.Array) -> jax.Array:
        nats, _, balance = _judged(arch, params, records)
        if balance is None:
            return jnp.mean(nats)
        # It pulls at the router, but what is reported is the cross-entropy alone.
        pull = arch.balance * balance
        return jnp.mean(nats) + pull - jax.lax.stop_gradient(pull)

    return mean_loss


def gradient(arch: Architecture) -> Callable[[Leaves, jax.Array], tuple[jax.Array, Leaves]]:
    """The function ``(params, records uint8 [B, S + 1]) -> (mean loss, gradients)``."""
    found: Callable[[Leaves, jax.Array], tuple[jax.Array, Leaves]]
    found = jax.value_and_grad(_mean_loss(arch))
    return found


def inner_step(
    arch: Architecture, differentiate: Gradients | None = None
) -> Callable[..., tuple[list[jax.Array], list[jax.Array], list[jax.Array], jax.Array]]:
    """The function ``(params, first, second, count, rate, decay, records) -> (params, first,
    second, loss)``.

    ``params`` and the two moments are :data:`Leaves`; ``count`` is the int32 number of updates
    that the moments have seen, ``rate`` and ``decay`` are float32 scalars, ``records`` is uint8
    [B, S + 1]. Nothing is donated: the arguments stay valid, so the last step's parameters can
    be read while the next step runs. ``differentiate`` says how the gradients are taken: here by
    default, or averaged over several processes.
    """
    clip = optax.clip_by_global_norm(CLIP_NORM)
    adam = optax.scale_by_adam(*BETAS, eps=EPSILON)

    mean_loss = _mean_loss(arch)

    def step(
        params: list[jax.Array],
        first: list[jax.Array],
        second: list[jax.Array],
        count: jax.Array,
        rate: jax.Array,
        decay: jax.Array,
        records: jax.Array,
    ) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array], jax.Array]:
        if differentiate is None:
            loss, gradients = jax.value_and_grad(mean_loss)(params, records)
        else:
            loss, gradients = differentiate(mean_loss, params, records)
        state = optax.ScaleByAdamState(count=count, mu=first, nu=second)
        # Optax raises a Python float to an int32 power, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            gradients, _ = clip.update(gradients, clip.init(params))
            directions, state = adam.update(gradients, state)
        updates = [
            -rate * (direction + decay * p if p.ndim > 1 else direction)
            for direction, p in zip(directions, params, strict=True)
        ]
        return optax.apply_updates(params, updates), state.mu, state.nu, loss

    return step


def evaluation(arch: Architecture) -> Callable[[list[jax.Array], jax.Array], jax.Array]:
    """The function ``(params, records uint8 [B, S + 1]) -> float32 [2]``: summed cross-entropy in
    nats and number of next bytes that were the likeliest one."""

    def evaluate(params: list[jax.Array], records: jax.Array) -> jax.Array:
        nats, hits = losses(arch, params, records)
        return jnp.stack([jnp.sum(nats), jnp.sum(hits)])

    return evaluate
