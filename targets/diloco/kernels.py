"""The fast merge: three numba passes over memory. Importing this module imports numba.

1. *norms*: per chunk and learner, the sum of squares of ``prev - theta``.
2. *direction*: ``u = sum_m a[m] * (prev - theta_m)`` and per chunk its sum of squares.
3. *outer step*: momentum and parameters, and per chunk whether they are finite.

Chunks have at most 32,768 elements and never cross a tensor. A chunk is worked on by one thread
and the chunks' partial sums are added in chunk order, so the result is the same to the bit for
any number of threads. Kernels slice first and index the slice: indexing ``x[lo + i]`` did not
vectorize (146 ms against 23 ms in our measurements).

Fragments go in as tuples of ``LANES`` arrays, because a tuple's length is part of a compiled
kernel's type: with one length there is one compilation, not one per number of contributors. More
contributors take more rounds of passes 1 and 2.

Compiled code is cached beside this file, or in ``NUMBA_CACHE_DIR``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from targets.diloco.arrays import Flat, Merged, Outer, Rule, check, coefficients

CHUNK = 32_768
LANES = 8

# Reassociation lets the compiler vectorize the sums. NaN and infinity keep their meaning
# (no "nnan", "ninf"): the finite checks depend on it.
_MATH = {"reassoc", "contract", "nsz"}


@numba.njit(parallel=True, cache=True, nogil=True, fastmath=_MATH)  # type: ignore[untyped-decorator]
def _norms(prev: Any, thetas: Any, count: Any, los: Any, his: Any, out: Any) -> None:
    """out[chunk, m] = sum of squares of prev - thetas[m], for m < count."""
    for c in numba.prange(los.size):
        p = prev[los[c] : his[c]]
        for m in range(count):
            x = thetas[m][los[c] : his[c]]
            total = 0.0
            for i in range(x.size):
                d = np.float64(p[i] - x[i])
                total += d * d
            out[c, m] = total


@numba.njit(parallel=True, cache=True, nogil=True, fastmath=_MATH)  # type: ignore[untyped-decorator]
def _direction(
    prev: Any, thetas: Any, count: Any, a: Any, los: Any, his: Any, first: Any, u: Any, out: Any
) -> None:
    """u (+)= sum of a[chunk, m] * (prev - thetas[m]); out[chunk] = sum of squares of u."""
    for c in numba.prange(los.size):
        p = prev[los[c] : his[c]]
        y = u[los[c] : his[c]]
        if first:
            for i in range(y.size):
                y[i] = np.float32(0.0)
        for m in range(count):
            x = thetas[m][los[c] : his[c]]
            k = a[c, m]
            for i in range(x.size):
                y[i] += k * (p[i] - x[i])
        total = 0.0
        for i in range(y.size):
            d = np.float64(y[i])
            total += d * d
        out[c] = total


@numba.njit(parallel=True, cache=True, nogil=True, fastmath=_MATH)  # type: ignore[untyped-decorator]
def _outer_step(
    prev: Any, buf: Any, u: Any, scale: Any, lr: Any, mu: Any, los: Any, his: Any,
    theta_out: Any, buf_out: Any, out: Any,
) -> None:  # fmt: skip
    """Nesterov with gradient scale[chunk] * u; out[chunk] is finite when all results are."""
    for c in numba.prange(los.size):
        p = prev[los[c] : his[c]]
        b = buf[los[c] : his[c]]
        g = u[los[c] : his[c]]
        p_out = theta_out[los[c] : his[c]]
        b_out = buf_out[los[c] : his[c]]
        s = scale[c]
        total = 0.0
        for i in range(p.size):
            d = s * g[i]
            m = mu * b[i] + d
            t = p[i] - lr * (d + mu * m)
            b_out[i] = m
            p_out[i] = t
            total += np.float64(t) * np.float64(t) + np.float64(m) * np.float64(m)
        out[c] = total


def merge(
    prev: Flat,
    buf: Flat,
    thetas: Sequence[Flat],
    weights: Sequence[float],
    sizes: Sequence[int],
    rules: Sequence[Rule],
    outer: Outer,
    out: tuple[Flat, Flat] | None = None,
) -> Merged:
    """See ``targets.diloco.arrays``. ``out`` also serves as scratch memory; without it two
    arrays are allocated. Raises ``ValueError`` for shapes or weights that do not fit."""
    check(prev, thetas, weights, sizes, rules)
    theta_out, buf_out = out or (np.empty_like(prev), np.empty_like(buf))
    los, his, starts, tensor_of = chunks(tuple(sizes))
    views = [_read_only(theta) for theta in thetas]
    before, momentum = _read_only(prev), _read_only(buf)

    squares = np.zeros((los.size, len(views)))
    for first, group, count in _rounds(views):
        part = np.zeros((los.size, LANES))
        _norms(before, group, count, los, his, part)
        squares[:, first : first + count] = part[:, :count]
    norms = np.sqrt(np.add.reduceat(squares, starts, axis=0)).T

    a, radius = coefficients(norms, weights, rules)
    u, lengths = theta_out, np.zeros(los.size)  # u lives where the result will be
    for first, group, count in _rounds(views):
        k = np.zeros((los.size, LANES), dtype=np.float32)
        k[:, :count] = a[first : first + count, tensor_of].T
        _direction(before, group, count, k, los, his, first == 0, u, lengths)
    scale = _stretch(np.sqrt(np.add.reduceat(lengths, starts)), radius)

    sound = np.zeros(los.size)
    _outer_step(
        before, momentum, _read_only(u), scale[tensor_of].astype(np.float32),
        np.float32(outer.lr), np.float32(outer.momentum), los, his, theta_out, buf_out, sound,
    )  # fmt: skip
    return Merged(theta_out, buf_out, norms, bool(np.isfinite(sound).all()))


def chunks(
    sizes: tuple[int, ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(begin of each chunk, its end, first chunk of each tensor, tensor of each chunk)."""
    los: list[int] = []
    his: list[int] = []
    starts: list[int] = []
    tensor_of: list[int] = []
    begin = 0
    for tensor, size in enumerate(sizes):
        starts.append(len(los))
        for lo in range(begin, begin + size, CHUNK):
            los.append(lo)
            his.append(min(lo + CHUNK, begin + size))
            tensor_of.append(tensor)
        begin += size
    return (np.array(los), np.array(his), np.array(starts), np.array(tensor_of))


def _rounds(views: list[Flat]) -> list[tuple[int, tuple[Flat, ...], int]]:
    """(index of the first, LANES arrays, how many of them count) for each round."""
    rounds = []
    for first in range(0, len(views), LANES):
        group = views[first : first + LANES]
        padding = [group[0]] * (LANES - len(group))  # never looked at
        rounds.append((first, (*group, *padding), len(group)))
    return rounds


def _stretch(lengths: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factor that gives u its due length; 1 where radius is NaN (avg), 0 where u is zero."""
    factor = np.divide(radius, lengths, out=np.zeros_like(radius), where=lengths > 0)
    return np.where(np.isnan(radius), 1.0, factor)


def _read_only(flat: Flat) -> Flat:
    """The same memory, not writable: received buffers are, and one type means one compilation."""
    view = flat.view()
    view.flags.writeable = False
    return view
