"""What a trainer is: the inner loop of one learner, behind a handful of verbs on NumPy arrays.

A trainer is a module (see :class:`TrainerModule`) that says what the parameters look like, what
they are at first, and makes :class:`Trainer` objects. The syncer and the harness use the first
two only, so those need no accelerator library: **a trainer module must not import JAX when it is
imported, nor in ``tensors``, ``problems`` or ``initial``.** Everything else may.

Arrays cross this interface as float32, C-contiguous, little-endian NumPy arrays in the order of
the fragment's tensors (``Layout.fragments[p]``), each with the tensor's shape. What the trainer
computes in is its own affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from targets.diloco import fragments as fragmentation
from targets.diloco.params import DilocoParams

Array = NDArray[np.float32]
Arrays = list[Array]
"""One fragment: float32 arrays in the order of its tensors."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter tensor. Exactly the embedding tensors have ``embedding`` set."""

    name: str
    shape: tuple[int, ...]
    embedding: bool = False

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The parameters' names and shapes, and which fragment holds which tensors.

    ``fragments[p]`` holds indices into ``tensors``; every tensor is in exactly one fragment.
    """

    tensors: tuple[Tensor, ...]
    fragments: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], fragments: int) -> Layout:
        """Balanced bin-packing of ``tensors`` into ``fragments`` (paper appendix C).

        Raises ``ValueError`` when there are more fragments than tensors to fill them.
        """
        sizes = [(t.name, t.elements, t.embedding) for t in tensors]
        return cls(tuple(tensors), fragmentation.assign(sizes, fragments))

    def shapes(self, fragment: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the fragment's tensors, in order."""
        return tuple(self.tensors[i].shape for i in self.fragments[fragment])

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """Elements of each fragment."""
        return tuple(sum(self.tensors[i].elements for i in f) for f in self.fragments)

    def split(self, arrays: Sequence[Array]) -> list[Arrays]:
        """All tensors, in the order of ``tensors``, as one list per fragment (no copies)."""
        return [[arrays[i] for i in f] for f in self.fragments]

    def join(self, fragments: Sequence[Sequence[Array]]) -> Arrays:
        """The inverse of :meth:`split`: all tensors in the order of ``tensors``."""
        by_index = {
            i: array
            for members, arrays in zip(self.fragments, fragments, strict=True)
            for i, array in zip(members, arrays, strict=True)
        }
        return [by_index[i] for i in range(len(self.tensors))]

    def digest(self, seed: int) -> str:
        """Hex digest of everything two units must agree on before they exchange fragments."""
        text = repr((seed, [(t.name, t.shape, t.embedding) for t in self.tensors], self.fragments))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Trained:
    """What one inner step did."""

    tokens: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A replica's whole state, for another learner to go on from: per fragment the arrays."""

    params: list[Arrays]
    first: list[Arrays]
    """First moments, one array for each of ``params``."""
    second: list[Arrays]
    trained: int
    """Inner steps behind: they decide the learning rate and the order of the data."""
    moments: int
    """Inner steps that the moments have seen."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good parameters are on data that no learner trains on."""

    loss: float
    """Mean cross-entropy in nats per token, or the trainer's own loss."""
    accuracy: float | None
    """Share of next tokens that were the model's likeliest one."""
    floor: float | None
    """The least loss that can be had (the data's entropy rate), when it is known."""
    tokens: int
    """Held-out tokens behind the figures; 0 where they are exact."""


class Snapshot(Protocol):
    """The replica after one completed inner step; never changes once taken.

    May be used from another thread than the trainer's while the next step runs.
    """

    trained: int
    """As in :class:`State`."""
    moments: int

    def read(self, fragment: int) -> Arrays:
        """Host copies (or read-only views) of the fragment's parameters."""
        ...

    def inner(self, fragment: int) -> tuple[Arrays, Arrays]:
        """The same of the fragment's first and second moments."""
        ...

    def digests(self) -> Mapping[str, str]:
        """As ``Trainer.digests``, of this snapshot."""
        ...


class Trainer(Protocol):
    """One learner's replica, inner optimizer and data. Used from one thread, snapshots apart."""

    layout: Layout

    def warm(self) -> None:
        """Compile whatever ``step`` needs, leaving the state as it was. Called before ``load``."""
        ...

    def load(self, fragments: Sequence[Arrays], step: int = 0) -> None:
        """Take all fragments as the parameters, with fresh inner optimizer state.

        ``step`` is the number of inner steps already behind (learning rate, order of the data).
        """
        ...

    def restore(self, state: State) -> None:
        """Take another replica's whole state, to the bit; the data stays this learner's own."""
        ...

    def step(self) -> Trained:
        """One inner step on the next batch; returns when the result is really there (blocking).

        The batch depends only on (seed, learner, life, inner step number). Raises
        ``RuntimeError`` before the first ``load``: nobody trains on a random model of its own.
        """
        ...

    def write(self, fragment: int, arrays: Arrays) -> None:
        """Overwrite one fragment; the inner optimizer's state stays (paper D.1, alpha = 0)."""
        ...

    def snapshot(self) -> Snapshot:
        """The parameters as they are now. Cheap: called after every step."""
        ...

    def digests(self) -> Mapping[str, str]:
        """``params``, ``moments``, ``step`` and ``learning_rate`` of the present state, as text
        that is equal exactly when the state is (see ``targets.diloco.codec.digest``)."""
        ...


class TrainerModule(Protocol):
    """What a module listed in ``targets.diloco.trainers.TRAINERS`` offers."""

    def tensors(self, params: DilocoParams) -> tuple[Tensor, ...]:
        """The parameter tensors, always in the same order. Without JAX."""
        ...

    def problems(self, params: DilocoParams) -> list[str]:
        """Every mistake in ``params`` that only this trainer sees (a corpus that is empty or not
        there, a shape that does not divide), as sentences. Without JAX."""
        ...

    def initial(self, params: DilocoParams, seed: int) -> Arrays:
        """Initial parameters, in the order of ``tensors``; NumPy only, without JAX, and the same
        bits in every process. The syncer starts from these and sends them to every learner."""
        ...

    def evaluate(self, params: DilocoParams, arrays: Arrays, seed: int) -> Quality | None:
        """Quality of ``arrays`` (order of ``tensors``); None when there is nothing to judge. The
        same arguments give the same numbers."""
        ...

    def tokens_per_step(self, params: DilocoParams, learner: int) -> int:
        """Tokens of one inner step of the learner with that number."""
        ...

    def create(
        self, params: DilocoParams, learner: int, seed: int, *, life: int = 1, cache_dir: str = ""
    ) -> Trainer:
        """The trainer of the learner with that number. ``life`` is the unit's incarnation, so
        that a restarted learner does not see the data of its last life again; ``cache_dir`` is
        for compiled code (empty: none)."""
        ...
