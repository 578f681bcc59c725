"""No arithmetic at all: fixed tokens and durations, for protocol tests and fast simulation.

``targets.diloco.work`` does not even carry this trainer's arrays around (see ``ScriptedWorker``);
the trainer below exists so that whatever holds for trainers can be checked for this one too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from targets.diloco.codec import digest
from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Array, Arrays, Layout, State, Trained
from targets.diloco.trainers.toy import tensors, tokens_per_step

__all__ = ["ScriptedTrainer", "create", "initial", "problems", "tensors", "tokens_per_step"]


@dataclass(frozen=True)
class Held:
    """A snapshot: the fragments as they were."""

    fragments: tuple[Arrays, ...]
    trained: int
    moments: int = 0

    def read(self, fragment: int) -> Arrays:
        """The arrays themselves; nobody writes to them."""
        return self.fragments[fragment]

    def inner(self, fragment: int) -> tuple[Arrays, Arrays]:
        """Zeros: there are no moments."""
        zeros = [np.zeros_like(a) for a in self.fragments[fragment]]
        return zeros, zeros

    def digests(self) -> Mapping[str, str]:
        """Digests of the held state; there are no moments and there is no learning rate."""
        return {
            "params": digest([array for f in self.fragments for array in f]),
            "moments": "",
            "step": str(self.trained),
            "learning_rate": "0.0",
        }


class ScriptedTrainer:
    """Keeps what it is given and changes nothing."""

    def __init__(self, layout: Layout, tokens: int) -> None:
        self.layout = layout
        self._tokens = tokens
        self._step = 0
        self._fragments: tuple[Arrays, ...] | None = None

    def warm(self) -> None:
        """Nothing to compile."""

    def load(self, fragments: Sequence[Arrays], step: int = 0) -> None:
        """Keep references to ``fragments``."""
        self._fragments = tuple(list(f) for f in fragments)
        self._step = step

    def restore(self, state: State) -> None:
        """Keep references to the parameters; take over the count."""
        self.load(state.params, state.trained)

    def step(self) -> Trained:
        """Count the step."""
        self._held()
        self._step += 1
        return Trained(self._tokens)

    def write(self, fragment: int, arrays: Sequence[Array]) -> None:
        """Replace one fragment."""
        held = list(self._held())
        held[fragment] = list(arrays)
        self._fragments = tuple(held)

    def snapshot(self) -> Held:
        """The fragments held now."""
        return Held(self._held(), self._step)

    def digests(self) -> Mapping[str, str]:
        """See :meth:`Held.digests`."""
        return self.snapshot().digests()

    def _held(self) -> tuple[Arrays, ...]:
        if self._fragments is None:
            raise RuntimeError("the trainer has no parameters yet: call load first")
        return self._fragments


def problems(params: DilocoParams) -> list[str]:
    """None: every valid ``params`` will do."""
    return []


def initial(params: DilocoParams, seed: int) -> Arrays:
    """Zeros."""
    return [np.zeros(t.shape, dtype=np.float32) for t in tensors(params)]


def evaluate(params: DilocoParams, arrays: Arrays, seed: int) -> None:
    """Nothing: these parameters mean nothing."""


def create(
    params: DilocoParams, learner: int, seed: int, *, life: int = 1, cache_dir: str = ""
) -> ScriptedTrainer:
    """The trainer of the learner with that number."""
    layout = Layout.of(tensors(params), params.fragments)
    return ScriptedTrainer(layout, tokens_per_step(params, learner))
