"""Merging and the outer optimizer, as pure functions on flat float32 arrays (paper 1.4, D.2).

A fragment is one flat float32 vector, its tensors one after the other; ``sizes`` are the tensors'
element counts and ``rules`` says for each how it is merged. With ``prev`` the syncer's own
previous fragment and ``theta_m`` a learner's::

    delta_m = prev - theta_m                                       old minus new
    avg:  D = sum w_m delta_m / sum w_m
    rda:  D = (sum w_m |delta_m| / sum w_m) * phi(sum w_m phi(delta_m)),   phi(x) = x / |x|
    buf   <- mu * buf + D                                          Nesterov
    theta <- prev - lr * (D + mu * buf)

The norms of ``rda`` are per tensor. The paper prints ``sum w_m delta_m / sum w_m`` as the weighted
radial factor, which is a vector; it must be the weighted mean of the norms (paper.md, list of
inconsistencies). A zero delta has no direction: it pulls the radial factor down and adds nothing
else. If the directions cancel exactly, ``D`` is zero.

Two implementations, compared by the tests: :func:`merge_slow` says the formulas in float64, one
tensor at a time; :func:`targets.diloco.kernels.merge` makes three passes with numba. Sums are
taken in the order of ``thetas`` (callers sort by unit name), so results repeat to the bit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[np.float32]
Norms = NDArray[np.float64]
Rule = Literal["avg", "rda"]
Backend = Literal["numpy", "numba"]

NORM_MAX = 1e18
"""A delta this long in one tensor is no update: its squares would leave float32's range, and a
sound one is many orders of magnitude shorter."""

NUMBA_ELEMENTS_MIN = 1 << 17
"""Below this a fragment merges in about a millisecond without numba, whose import and first call
take far longer than all merges of a short run together."""

BACKEND_VARIABLE = "DILOCO_CHAOS_MERGE"
"""Environment variable that chooses the implementation: ``auto`` (default), ``numpy``, ``numba``.

``auto`` goes by the size of the largest fragment alone, so that it chooses alike in every
process of a run. When it wants numba and numba cannot be imported that is an error: the slower
way is taken only by whoever asks for it with ``numpy``."""


@dataclass(frozen=True, slots=True)
class Outer:
    """The outer optimizer: SGD with Nesterov momentum."""

    lr: float = 0.7
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class Merged:
    """``theta`` and ``buf`` are the new fragment and momentum. ``finite`` covers both.

    ``norms[m, i]`` is the norm of learner m's delta for tensor i.
    """

    theta: Flat
    buf: Flat
    norms: Norms
    finite: bool


class Merger(Protocol):
    """The signature shared by :func:`merge_slow` and ``targets.diloco.kernels.merge``."""

    def __call__(
        self,
        prev: Flat,
        buf: Flat,
        thetas: Sequence[Flat],
        weights: Sequence[float],
        sizes: Sequence[int],
        rules: Sequence[Rule],
        outer: Outer,
        out: tuple[Flat, Flat] | None = None,
    ) -> Merged:
        """Merge; ``out`` is memory for (theta, buf), which must not overlap any input."""
        ...


def check(
    prev: Flat,
    thetas: Sequence[Flat],
    weights: Sequence[float],
    sizes: Sequence[int],
    rules: Sequence[Rule],
) -> None:
    """Raise ``ValueError`` unless shapes agree and the weights can be divided by."""
    if len(sizes) != len(rules):
        raise ValueError(f"{len(sizes)} tensors with {len(rules)} rules")
    if not thetas or len(thetas) != len(weights):
        raise ValueError(f"{len(thetas)} fragments with {len(weights)} weights cannot be merged")
    for flat in (prev, *thetas):
        if flat.shape != (sum(sizes),) or flat.dtype != np.float32:
            raise ValueError(
                f"a fragment of {sum(sizes)} float32 elements is needed, "
                f"not {flat.shape} of {flat.dtype}"
            )
    if not all(math.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
        raise ValueError(f"weights must be finite, not negative and not all zero: {weights}")


def finite(flat: Flat) -> bool:
    """Whether every element is finite. One pass, no temporary array.

    A float32 dot product may overflow, hence float64: the sum of squares of finite float32
    values is far below the largest float64.
    """
    return bool(np.isfinite(np.einsum("i,i->", flat, flat, dtype=np.float64)))


def coefficients(
    norms: Norms, weights: Sequence[float], rules: Sequence[Rule]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the deltas are multiplied by, and how long the result must be.

    Returns ``(a, radius)``: the combined delta of tensor i is ``u = sum_m a[m, i] * delta_m``,
    then stretched to length ``radius[i]`` for ``rda`` (for ``avg`` radius is NaN: no stretching).
    """
    share = np.asarray(weights, dtype=np.float64)[:, None] / math.fsum(weights)
    averaged = np.array([rule == "avg" for rule in rules])
    # A zero delta gets coefficient 0: it has no direction.
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    radius = np.where(averaged, np.nan, (share * norms).sum(axis=0))
    return np.where(averaged, share, share * inverse), radius


def merge_slow(
    prev: Flat,
    buf: Flat,
    thetas: Sequence[Flat],
    weights: Sequence[float],
    sizes: Sequence[int],
    rules: Sequence[Rule],
    outer: Outer,
    out: tuple[Flat, Flat] | None = None,
) -> Merged:
    """The formulas above, literally, in float64. Raises ``ValueError`` (see :func:`check`)."""
    check(prev, thetas, weights, sizes, rules)
    theta_out, buf_out = out or (np.empty_like(prev), np.empty_like(buf))
    norms = np.empty((len(thetas), len(sizes)))
    start = 0
    with np.errstate(over="ignore", invalid="ignore"):  # told by ``finite``
        for i, size in enumerate(sizes):
            part = slice(start, start + size)
            start += size
            before = prev[part].astype(np.float64)
            deltas = [before - theta[part] for theta in thetas]
            norms[:, i] = [math.sqrt(np.square(delta).sum()) for delta in deltas]
            gradient = combine(deltas, norms[:, i], weights, rules[i])
            momentum = outer.momentum * buf[part].astype(np.float64) + gradient
            buf_out[part] = momentum
            theta_out[part] = before - outer.lr * (gradient + outer.momentum * momentum)
    return Merged(theta_out, buf_out, norms, finite(theta_out) and finite(buf_out))


def combine(
    deltas: Sequence[NDArray[np.float64]],
    norms: Sequence[float] | Norms,
    weights: Sequence[float],
    rule: Rule,
) -> NDArray[np.float64]:
    """The outer gradient of one tensor from its learners' deltas (float64)."""
    total = math.fsum(weights)
    if rule == "avg":
        return sum_in_order([w / total * d for w, d in zip(weights, deltas, strict=True)])
    radius = math.fsum(w * n for w, n in zip(weights, norms, strict=True)) / total
    directions = [
        w / total * (d / n) if n > 0 else np.zeros_like(d)
        for w, n, d in zip(weights, norms, deltas, strict=True)
    ]
    direction = sum_in_order(directions)
    length = math.sqrt(np.square(direction).sum())
    return radius * (direction / length) if length > 0 else direction


def sum_in_order(arrays: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The sum from first to last, the one order that repeats to the bit."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def backend(elements_max: int) -> Backend:
    """Which implementation a process uses whose largest fragment has ``elements_max`` elements.

    Raises ``ValueError`` for an unknown value of ``DILOCO_CHAOS_MERGE``.
    """
    asked = os.environ.get(BACKEND_VARIABLE, "auto")
    if asked == "auto":
        return "numba" if elements_max >= NUMBA_ELEMENTS_MIN else "numpy"
    if asked not in ("numpy", "numba"):
        raise ValueError(f"{BACKEND_VARIABLE} is {asked!r}, must be auto, numpy or numba")
    return "numpy" if asked == "numpy" else "numba"


def merger(which: Backend, cache_dir: str = "") -> Merger:
    """The implementation called ``which``; imports numba only for ``numba``, and then compiles.

    Compiled code is kept in ``cache_dir`` unless ``NUMBA_CACHE_DIR`` says otherwise; empty: beside
    the source. Raises ``ImportError`` when numba is wanted and not there.
    """
    if which == "numpy":
        return merge_slow
    if cache_dir:  # must be set before the import
        os.environ.setdefault("NUMBA_CACHE_DIR", os.path.join(cache_dir, "numba"))
    try:
        from targets.diloco import kernels
    except ImportError as error:
        raise ImportError(
            f"merging large fragments needs numba, which cannot be imported ({error}); "
            f"install numba, or set {BACKEND_VARIABLE}=numpy to merge slowly without it"
        ) from error
    kernels.warm()
    return kernels.merge
