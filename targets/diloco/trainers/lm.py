"""The real trainer: a small decoder in JAX on byte-level text, AdamW inside.

JAX is imported when a trainer is created and not before; Flax and Optax only when the compiled
step is not in the cache (see ``targets.diloco.compiled``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import cos, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from targets.diloco import architecture, codec, compiled, data
from targets.diloco.architecture import Architecture
from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Arrays, Layout, Quality, State, Tensor, Trained

DECAY_STEPS = 2000
"""Without ``horizon_steps`` the learning rate falls, after warm-up, as ``sqrt(DECAY_STEPS /
(DECAY_STEPS + step))``: a run that is measured in seconds has no horizon."""

RATE_LEFT = 0.1
"""Share of the learning rate that is left at the horizon, to which it falls as a cosine."""

_SOURCES = (
    "harness.seeds",
    "targets.diloco.architecture",
    "targets.diloco.model",
    "targets.diloco.training",
)


def tensors(params: DilocoParams) -> tuple[Tensor, ...]:
    """The decoder's tensors; the embedding is tied with the output and marked."""
    return architecture.tensors(architecture.of_params(params))


def problems(params: DilocoParams) -> list[str]:
    """What is wrong with the text to train on, and with the sizes."""
    found = []
    hidden = architecture.SIZES[params.model].hidden
    if params.form == "moe" and hidden % params.experts_chosen:
        found.append(
            f"experts_chosen is {params.experts_chosen}, which does not divide the "
            f"{hidden} hidden elements of model {params.model}"
        )
    try:
        data.open_source(params, seed=0)
    except data.DataError as error:
        found.append(str(error))
    return found


def initial(params: DilocoParams, seed: int) -> Arrays:
    """See ``targets.diloco.architecture.initial``."""
    return architecture.initial(architecture.of_params(params), seed)


def tokens_per_step(params: DilocoParams, learner: int) -> int:
    """Predicted bytes of one step."""
    return params.batch_of(learner) * params.sequence


def create(
    params: DilocoParams, learner: int, seed: int, *, life: int = 1, cache_dir: str = ""
) -> LmTrainer:
    """The trainer of one life of one learner. Raises ``data.DataError`` for unusable text."""
    return LmTrainer(params, learner, seed, life=life, cache_dir=cache_dir)


def learning_rate(params: DilocoParams, step: int, since_fresh: int) -> float:
    """The rate of local step ``step`` (from 1), the ``since_fresh``-th with its moments.

    Warm-up follows the moments, because fresh ones make the first updates too large; the decay
    follows the learner's own step counter.
    """
    warm = min(1.0, since_fresh / params.warmup_steps) if params.warmup_steps else 1.0
    beyond = max(0, step - params.warmup_steps)
    if not params.horizon_steps:
        return params.inner_lr * warm * sqrt(DECAY_STEPS / (DECAY_STEPS + beyond))
    way = min(1.0, beyond / max(1, params.horizon_steps - params.warmup_steps))
    return params.inner_lr * warm * (RATE_LEFT + (1 - RATE_LEFT) * (1 + cos(pi * way)) / 2)


@dataclass(frozen=True, slots=True)
class LmSnapshot:
    """The replica after one step: references to arrays that nobody writes to."""

    layout: Layout
    settings: DilocoParams
    params: Sequence[Any]
    first: Sequence[Any]
    second: Sequence[Any]
    trained: int
    moments: int

    def read(self, fragment: int) -> Arrays:
        """Read-only views of the fragment's arrays."""
        return self._views(self.params, fragment)

    def inner(self, fragment: int) -> tuple[Arrays, Arrays]:
        """The same of both moments."""
        return self._views(self.first, fragment), self._views(self.second, fragment)

    def digests(self) -> Mapping[str, str]:
        """See ``Snapshot.digests``; ``learning_rate`` is that of the next step."""
        rate = learning_rate(self.settings, self.trained + 1, self.moments + 1)
        return {
            "params": codec.digest([np.asarray(p) for p in self.params]),
            "moments": codec.digest([np.asarray(m) for m in [*self.first, *self.second]]),
            "step": f"{self.trained} ({self.moments} with these moments)",
            "learning_rate": repr(rate),
        }

    def _views(self, arrays: Sequence[Any], fragment: int) -> Arrays:
        return [np.asarray(arrays[i]) for i in self.layout.fragments[fragment]]


class LmTrainer:
    """One learner's replica on one CPU thread."""

    def __init__(
        self,
        params: DilocoParams,
        learner: int,
        seed: int,
        *,
        life: int = 1,
        cache_dir: str = "",
    ) -> None:
        # Before JAX: text that cannot be used is said at once.
        self._shard = data.open_source(params, seed).shard(learner, life)
        began_ns = time.monotonic_ns()
        self._jax = compiled.start_jax()
        self.import_ns = time.monotonic_ns() - began_ns
        """What importing JAX took."""
        self.compile_ns = 0
        """What :meth:`warm` took: loading or compiling the step."""
        self.program: compiled.Program | None = None
        self.layout = Layout.of(tensors(params), params.fragments)
        self._settings = params
        self._batch = params.batch_of(learner)
        self._cache_dir = cache_dir
        self._step = 0
        self._fresh = 0
        """Steps that the moments have seen."""
        self._params: list[Any] = []
        self._first: list[Any] = []
        self._second: list[Any] = []

    def warm(self) -> None:
        """Make the step ready: load it, or compile and keep it."""
        if self.program is None:
            self.program = step_program(self._settings, self._batch, self._cache_dir)
            self.compile_ns = self.program.took_ns

    def load(self, fragments: Sequence[Arrays], step: int = 0) -> None:
        """See ``Trainer.load``."""
        arrays = self.layout.join(fragments)
        self._params = self._put(arrays)
        self._first = self._put([np.zeros_like(a) for a in arrays])
        self._second = self._put([np.zeros_like(a) for a in arrays])
        self._step, self._fresh = step, 0

    def restore(self, state: State) -> None:
        """See ``Trainer.restore``."""
        self._params = self._put(self.layout.join(state.params))
        self._first = self._put(self.layout.join(state.first))
        self._second = self._put(self.layout.join(state.second))
        self._step, self._fresh = state.trained, state.moments

    def step(self) -> Trained:
        """See ``Trainer.step``."""
        if not self._params:
            raise RuntimeError("a step was asked for before any parameters were loaded")
        self.warm()
        records = self._shard.records(self._step * self._batch, self._batch)
        rate = learning_rate(self._settings, self._step + 1, self._fresh + 1)
        result = self._run(self._params, self._first, self._second, self._fresh, rate, records)
        # Errors of the computation surface here, before any of the state is replaced.
        self._params, self._first, self._second, loss = self._jax.block_until_ready(result)
        self._step += 1
        self._fresh += 1
        return Trained(self._batch * self._settings.sequence, float(loss))

    def write(self, fragment: int, arrays: Arrays) -> None:
        """See ``Trainer.write``; earlier snapshots keep their values."""
        params = list(self._params)
        members = self.layout.fragments[fragment]
        for index, array in zip(members, map(_own, arrays), strict=True):
            if array.shape != params[index].shape:
                name = self.layout.tensors[index].name
                raise ValueError(f"{name} has shape {params[index].shape}, got {array.shape}")
            params[index] = array
        self._params = params

    def snapshot(self) -> LmSnapshot:
        """See ``Trainer.snapshot``; copies nothing."""
        return LmSnapshot(
            self.layout,
            self._settings,
            self._params,
            self._first,
            self._second,
            self._step,
            self._fresh,
        )

    def digests(self) -> Mapping[str, str]:
        """See :meth:`LmSnapshot.digests`."""
        return self.snapshot().digests()

    def _put(self, arrays: Arrays) -> list[Any]:
        # A copy of our own: JAX may use an aligned host buffer in place of copying it.
        return [self._jax.device_put(np.array(a, np.float32, order="C")) for a in arrays]

    def _run(
        self,
        params: list[Any],
        first: list[Any],
        second: list[Any],
        fresh: int,
        rate: float,
        records: data.Records,
    ) -> Any:
        assert self.program is not None
        decay = np.float32(self._settings.weight_decay)
        return self.program.call(
            params, first, second, np.int32(fresh), np.float32(rate), decay, records
        )


def _own(array: Any) -> Any:
    """The array itself when nobody can write to it, else a copy. It goes to the device with the
    next step's other arguments; a transfer of its own takes longer than many a fragment's copy."""
    fresh = np.ascontiguousarray(array, np.float32)
    return fresh.copy() if fresh is array and fresh.flags.writeable else fresh


# --- compiled programs --------------------------------------------------------------------------


_kept: dict[tuple[Any, ...], compiled.Program] = {}
"""What this process has made ready without a folder to keep it in: a simulated run has all the
learners, and all their lives, in one process."""


def _once(key: tuple[Any, ...], cache_dir: str, obtain: Any) -> compiled.Program:
    if cache_dir:
        program: compiled.Program = obtain()
        return program
    if key not in _kept:
        _kept[key] = obtain()
    return _kept[key]


def step_program(params: DilocoParams, batch: int, cache_dir: str = "") -> compiled.Program:
    """The inner step for ``batch`` sequences (see ``targets.diloco.training.inner_step``)."""
    key = ("step", architecture.of_params(params), batch, params.sequence)
    return _once(key, cache_dir, lambda: _step_program(params, batch, cache_dir))


def evaluation_program(params: DilocoParams, batch: int, cache_dir: str = "") -> compiled.Program:
    """See ``targets.diloco.training.evaluation``."""
    key = ("evaluate", architecture.of_params(params), batch, params.sequence)
    return _once(key, cache_dir, lambda: _evaluation_program(params, batch, cache_dir))


def _evaluation_program(params: DilocoParams, batch: int, cache_dir: str) -> compiled.Program:
    import jax

    arch = architecture.of_params(params)
    leaves, shape, _, _ = _shapes(arch, batch, params.sequence)

    def make() -> Any:
        from targets.diloco.training import evaluation

        return evaluation(arch)

    return compiled.obtain(
        f"evaluate-{params.model}-{params.form}",
        make,
        (leaves, shape),
        jax.ShapeDtypeStruct((2,), np.float32),
        parts=_parts(arch),
        cache_dir=cache_dir,
    )


def _step_program(params: DilocoParams, batch: int, cache_dir: str) -> compiled.Program:
    arch = architecture.of_params(params)
    leaves, records, scalar, count = _shapes(arch, batch, params.sequence)

    def make() -> Any:
        from targets.diloco.training import inner_step

        return inner_step(arch)

    return compiled.obtain(
        f"step-{params.model}-{params.form}",
        make,
        (leaves, leaves, leaves, count, scalar, scalar, records),
        (leaves, leaves, leaves, scalar),
        parts=_parts(arch),
        cache_dir=cache_dir,
    )


def _shapes(arch: Architecture, batch: int, sequence: int) -> tuple[list[Any], Any, Any, Any]:
    import jax

    def shape(dims: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(dims, dtype)

    leaves = [shape(t.shape, np.float32) for t in architecture.tensors(arch)]
    records = shape((batch, sequence + 1), np.uint8)
    return leaves, records, shape((), np.float32), shape((), np.int32)


def _parts(arch: Architecture) -> dict[str, str]:
    """Everything of ours that the programs are made from."""
    parts = {"architecture": repr(arch)}
    for module in _SOURCES:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        parts[module] = hashlib.blake2b(Path(spec.origin).read_bytes()).hexdigest()
    from importlib.metadata import version

    return parts | {package: version(package) for package in ("flax", "optax")}


# --- quality ------------------------------------------------------------------------------------


def evaluate(
    params: DilocoParams, arrays: Arrays, seed: int, *, records: int = 512, cache_dir: str = ""
) -> Quality:
    """Quality of ``arrays`` (all tensors, in order) on up to ``records`` held-out records.

    Raises ``data.DataError`` for unusable text. The same arguments give the same numbers.
    """
    jax = compiled.start_jax()
    source = data.open_source(params, seed)
    held_out = source.held_out(records)
    batch = min(32, len(held_out))
    program = evaluation_program(params, batch, cache_dir)
    device = [jax.device_put(np.array(a, np.float32, order="C")) for a in arrays]
    # Whole batches only, so that one compiled shape serves; the rest of a batch is left out.
    batches = [held_out[i : i + batch] for i in range(0, len(held_out) - batch + 1, batch)]
    sums = [np.asarray(program.call(device, part), np.float64) for part in batches]
    nats, hits = np.sum(sums, axis=0)
    tokens = len(batches) * batch * params.sequence
    return Quality(float(nats / tokens), float(hits / tokens), source.floor, tokens)
