"""Recomputes every merge of a simulated run by the paper's formulas, apart from the product's code.

For the ``quadratic`` trainer only, whose payloads hold real numbers. The formulas here are written
down once more on purpose (paper 1.4, 1.8): an error in the product's arithmetic must not be shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import targets.diloco.target
from reports.violations import Violation
from targets.diloco.messages import Merge, MergeResult

F64 = NDArray[np.float64]
States = dict[tuple[int, int], tuple[Any, Any]]
"""(fragment, version) to the parameters and the momentum that were committed."""

TOLERANCE = 1e-4


@contextmanager
def audited(patch: pytest.MonkeyPatch) -> Iterator[list[Violation]]:
    """While inside, syncer workers of new targets are audited; yields what was found."""
    found: list[Violation] = []
    sound = targets.diloco.target.syncer_worker  # type: ignore[attr-defined]
    kept: dict[int, States] = {}

    def audited_worker(*given: Any, **named: Any) -> Any:
        worker = sound(*given, **named)
        if not hasattr(worker, "_theta"):
            return worker
        # All lives of one run's syncer share a store.
        return _Audited(worker, found, kept.setdefault(id(named["store"]), {}))

    with patch.context() as inner:
        inner.setattr(targets.diloco.target, "syncer_worker", audited_worker)
        yield found


class _Audited:
    """A syncer's worker that is looked over the shoulder."""

    def __init__(self, worker: Any, found: list[Violation], states: States) -> None:
        self._worker = worker
        self._found = found
        self._states = states

    def cost_ns(self, job: Any) -> int:
        return int(self._worker.cost_ns(job))

    def run(self, job: Any) -> Any:
        if not isinstance(job, Merge):
            return self._worker.run(job)
        worker, p = self._worker, job.fragment
        if worker._versions[p] == job.version - 1:
            self._states.setdefault((p, job.version - 1), self._state(p))
        before = self._states.get((p, job.version - 1))
        result: MergeResult = worker.run(job)
        if result.payload is not None:
            self._states[p, job.version] = self._state(p)
            if before is not None:
                theta, buf = (a.astype(np.float64) for a in before)
                self._compare(job, result, theta, buf)
        return result

    def _state(self, p: int) -> tuple[Any, Any]:
        return self._worker._theta[p].copy(), self._worker._buf[p].copy()

    def _compare(self, job: Merge, result: MergeResult, theta: F64, buf: F64) -> None:
        p, layout, params = job.fragment, self._worker.layout, self._worker._params
        left = [i for i in job.inputs if i.unit not in result.poisoned]
        weights = [i.weight for i in left]
        pushed = [np.frombuffer(i.payload.data, "<f4").astype(np.float64) for i in left]
        if not all(np.isfinite(x).all() for x in pushed):
            self._found.append(Violation("merge-audit", f"version {job.version} took a poison"))
            return
        gradient, start = np.zeros_like(theta), 0
        for index in layout.fragments[p]:
            tensor = layout.tensors[index]
            part = slice(start, start + tensor.elements)
            start += tensor.elements
            deltas = [theta[part] - x[part] for x in pushed]
            plain = tensor.embedding or params.merge == "avg"
            gradient[part] = _average(deltas, weights) if plain else _rda(deltas, weights)
        buf = params.outer_momentum * buf + gradient
        wanted = theta - params.outer_lr * (gradient + params.outer_momentum * buf)
        off = float(np.abs(wanted - self._worker._theta[p]).max())
        if off > TOLERANCE * max(1.0, float(np.abs(wanted).max())):
            text = f"fragment {p} version {job.version} is off by {off:.3g} from the formulas"
            self._found.append(Violation("merge-audit", text))


def _average(deltas: list[F64], weights: list[float]) -> F64:
    return sum((w * d for w, d in zip(weights, deltas, strict=True)), 0 * deltas[0]) / sum(weights)


def _rda(deltas: list[F64], weights: list[float]) -> F64:
    total = sum(weights)
    lengths = [float(np.linalg.norm(d)) for d in deltas]
    directions = [d / n for d, n in zip(deltas, lengths, strict=True) if n > 0]
    kept = [w for w, n in zip(weights, lengths, strict=True) if n > 0]
    if not directions:
        return 0 * deltas[0]
    direction = sum((w * u for w, u in zip(kept, directions, strict=True)), 0 * deltas[0]) / total
    radius = sum(w * n for w, n in zip(weights, lengths, strict=True)) / total
    size = float(np.linalg.norm(direction))
    return radius * direction / size if size > 0 else direction
