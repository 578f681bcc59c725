"""A noisy quadratic bowl in NumPy: the whole algorithm on a problem whose optimum is known.

Loss ``mean(h * (theta - optimum)^2) / 2`` with curvatures ``h`` in [0.5, 2]. A learner sees the
gradient plus Gaussian noise of standard deviation ``NOISE / sqrt(sequences per step)``, drawn
from a stream of its own for every (seed, learner, life, step), and takes Adam steps.
All arithmetic is float32 in a fixed order, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.seeds import array_stream
from targets.diloco.codec import digest
from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Array, Arrays, Layout, Quality, State, Trained
from targets.diloco.trainers.toy import tensors, tokens_per_step

__all__ = ["create", "initial", "loss", "optimum", "problems", "tensors", "tokens_per_step"]

NOISE = 1.0
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


def problems(params: DilocoParams) -> list[str]:
    """None: every valid ``params`` will do."""
    return []


def initial(params: DilocoParams, seed: int) -> Arrays:
    """Standard normal, far from the optimum."""
    return _drawn(params, array_stream(seed, "quadratic", "initial"))


def optimum(params: DilocoParams, seed: int) -> Arrays:
    """Where the loss is zero, in the order of ``tensors``."""
    return _drawn(params, array_stream(seed, "quadratic", "optimum"))


def loss(params: DilocoParams, seed: int, arrays: Sequence[Array]) -> float:
    """The noise-free loss of ``arrays`` (order of ``tensors``)."""
    theta, best = _flat(arrays), _flat(optimum(params, seed))
    return float(np.mean(_curvature(theta.size, seed) * np.square(theta - best), dtype=float) / 2)


def evaluate(params: DilocoParams, arrays: Arrays, seed: int) -> Quality:
    """The noise-free loss, which is exact and has its floor at the optimum."""
    return Quality(loss(params, seed, arrays), None, 0.0, 0)


def create(
    params: DilocoParams, learner: int, seed: int, *, life: int = 1, cache_dir: str = ""
) -> QuadraticTrainer:
    """The trainer of the learner with that number."""
    return QuadraticTrainer(params, learner, seed, life)


@dataclass(frozen=True)
class Kept:
    """A snapshot: the flat arrays themselves, which nobody writes to."""

    layout: Layout
    theta: Array
    first: Array
    second: Array
    trained: int
    moments: int
    rate: float

    def read(self, fragment: int) -> Arrays:
        """Views of the parameters."""
        return self._views(self.theta, fragment)

    def inner(self, fragment: int) -> tuple[Arrays, Arrays]:
        """Views of the moments."""
        return self._views(self.first, fragment), self._views(self.second, fragment)

    def digests(self) -> Mapping[str, str]:
        """Digests of parameters and moments, the step and the learning rate of the next step."""
        return {
            "params": digest([self.theta]),
            "moments": digest([self.first, self.second]),
            "step": f"{self.trained} ({self.moments} with these moments)",
            "learning_rate": repr(self.rate),
        }

    def _views(self, flat: Array, fragment: int) -> Arrays:
        parts = _split(self.layout, flat)
        return [parts[i] for i in self.layout.fragments[fragment]]


class QuadraticTrainer:
    """One learner's flat parameters and Adam moments."""

    def __init__(self, params: DilocoParams, learner: int, seed: int, life: int) -> None:
        self.layout = Layout.of(tensors(params), params.fragments)
        self._params = params
        self._names = (seed, "quadratic", "noise", learner, life)
        self._tokens = tokens_per_step(params, learner)
        self._noise = np.float32(NOISE / np.sqrt(params.batch_of(learner)))
        self._optimum = _flat(optimum(params, seed))
        self._curvature = _curvature(self._optimum.size, seed)
        self._theta: Array | None = None
        self._step = 0

    def warm(self) -> None:
        """Nothing to compile."""

    def load(self, fragments: Sequence[Arrays], step: int = 0) -> None:
        """Copy all fragments; fresh moments."""
        self._theta = _flat(self.layout.join(fragments))
        self._m, self._v = np.zeros_like(self._theta), np.zeros_like(self._theta)
        self._fresh_at, self._step = step, step

    def restore(self, state: State) -> None:
        """Copy parameters and moments, and both counters."""
        self._theta = _flat(self.layout.join(state.params))
        self._m = _flat(self.layout.join(state.first))
        self._v = _flat(self.layout.join(state.second))
        self._step, self._fresh_at = state.trained, state.trained - state.moments

    def step(self) -> Trained:
        """One Adam step on a noisy gradient; ``loss`` is the noise-free loss before it."""
        theta = self._held()
        self._step += 1
        noise = array_stream(*self._names, self._step).standard_normal(theta.size, dtype=np.float32)
        error = theta - self._optimum
        gradient = self._curvature * error + self._noise * noise
        self._m = np.float32(BETA_1) * self._m + np.float32(1 - BETA_1) * gradient
        self._v = np.float32(BETA_2) * self._v + np.float32(1 - BETA_2) * np.square(gradient)
        count = self._step - self._fresh_at
        m = self._m / np.float32(1 - BETA_1**count)
        v = self._v / np.float32(1 - BETA_2**count)
        self._theta = theta - np.float32(self._rate()) * m / (np.sqrt(v) + np.float32(EPSILON))
        before = np.mean(self._curvature * np.square(error), dtype=float) / 2
        return Trained(self._tokens, float(before))

    def write(self, fragment: int, arrays: Sequence[Array]) -> None:
        """Overwrite one fragment; moments stay."""
        parts = _split(self.layout, self._held().copy())
        for index, array in zip(self.layout.fragments[fragment], arrays, strict=True):
            parts[index][...] = array
        self._theta = np.concatenate([p.reshape(-1) for p in parts])

    def snapshot(self) -> Kept:
        """``step`` and ``write`` make new arrays, so the present ones can be handed out."""
        theta, moments = self._held(), self._step - self._fresh_at
        return Kept(self.layout, theta, self._m, self._v, self._step, moments, self._rate())

    def digests(self) -> Mapping[str, str]:
        """See :meth:`Kept.digests`."""
        return self.snapshot().digests()

    def _rate(self) -> float:
        """Linear warm-up, then constant."""
        return self._params.inner_lr * min(1.0, self._step / max(1, self._params.warmup_steps))

    def _held(self) -> Array:
        if self._theta is None:
            raise RuntimeError("the trainer has no parameters yet: call load first")
        return self._theta


def _drawn(params: DilocoParams, generator: np.random.Generator) -> Arrays:
    return [generator.standard_normal(t.shape, dtype=np.float32) for t in tensors(params)]


def _curvature(elements: int, seed: int) -> Array:
    drawn = array_stream(seed, "quadratic", "curvature").random(elements, dtype=np.float32)
    return np.float32(0.5) + np.float32(1.5) * drawn


def _flat(arrays: Sequence[Array]) -> Array:
    return np.concatenate([a.reshape(-1) for a in arrays])


def _split(layout: Layout, flat: Array) -> list[Array]:
    parts, begin = [], 0
    for tensor in layout.tensors:
        parts.append(flat[begin : begin + tensor.elements].reshape(tensor.shape))
        begin += tensor.elements
    return parts
