"""The fast merge: three numba passes over memory. Importing this module imports numba.

1. *norms*: per chunk and learner, the sum of squares of ``prev - theta``.
2. *direction*: ``u = sum_m a[m] * (prev - theta_m)`` and per chunk its sum of squares.
3. *outer step*: momentum and parameters, and per chunk whether they are finite.

Chunks have at most 32,768 elements and never cross a tensor. A chunk is worked on by one thread
and the chunks' partial sums are added in chunk order, so the result is the same to the bit for
any number of threads. Within a chunk, float32 sums of at most 2,048 squares are added in float64:
the squares of one block must stay below the largest float32, which deltas of up to
``arrays.NORM_MAX`` do.

The first two passes take eight learners at a time, written out by hand, so that ``prev`` is
loaded once for all of them and every sum has a register: that reads at the memory's speed, where
a loop over learners took twice as long. Kernels slice first and index the slice; indexing
``x[lo + i]`` did not vectorize. Fewer than eight are filled up with ``prev`` itself, whose delta
is zero; more take more rounds. One shape of arguments means one compilation, not one for every
number of contributors.

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
BLOCK = 2_048
LANES = 8

# Reassociation lets the compiler vectorize the sums. NaN and infinity keep their meaning
# (no "nnan", "ninf"): the finite checks depend on it.
_MATH = {"reassoc", "contract", "nsz"}


@numba.njit(parallel=True, cache=True, nogil=True, fastmath=_MATH)  # type: ignore[untyped-decorator]
def _norms(prev: Any, thetas: Any, los: Any, his: Any, out: Any) -> None:
    """out[chunk, m] = sum of squares of prev - thetas[m]."""
    t0, t1, t2, t3, t4, t5, t6, t7 = thetas
    for c in numba.prange(los.size):
        sums = out[c]
        for lo in range(los[c], his[c], BLOCK):
            hi = min(lo + BLOCK, his[c])
            p = prev[lo:hi]
            x0, x1, x2, x3 = t0[lo:hi], t1[lo:hi], t2[lo:hi], t3[lo:hi]
            x4, x5, x6, x7 = t4[lo:hi], t5[lo:hi], t6[lo:hi], t7[lo:hi]
            zero = np.float32(0.0)
            s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
            for i in range(p.size):
                d = p[i] - x0[i]
                s0 += d * d
                d = p[i] - x1[i]
                s1 += d * d
                d = p[i] - x2[i]
                s2 += d * d
                d = p[i] - x3[i]
                s3 += d * d
                d = p[i] - x4[i]
                s4 += d * d
                d = p[i] - x5[i]
                s5 += d * d
                d = p[i] - x6[i]
                s6 += d * d
                d = p[i] - x7[i]
                s7 += d * d
            sums[0] += s0
            sums[1] += s1
            sums[2] += s2
            sums[3] += s3
            sums[4] += s4
            sums[5] += s5
            sums[6] += s6
            sums[7] += s7


@numba.njit(parallel=True, cache=True, nogil=True, fastmath=_MATH)  # type: ignore[untyped-decorator]
def _direction(
    prev: Any, thetas: Any, a: Any, los: Any, his: Any, first: Any, u: Any, out: Any
) -> None:
    """u (+)= sum of a[chunk, m] * (prev - thetas[m]); out[chunk] = sum of squares of u."""
    t0, t1, t2, t3, t4, t5, t6, t7 = thetas
    for c in numba.prange(los.size):
        a0, a1, a2, a3 = a[c, 0], a[c, 1], a[c, 2], a[c, 3]
        a4, a5, a6, a7 = a[c, 4], a[c, 5], a[c, 6], a[c, 7]
        total = np.float64(0.0)
        for lo in range(los[c], his[c], BLOCK):
            hi = min(lo + BLOCK, his[c])
            p, y = prev[lo:hi], u[lo:hi]
            x0, x1, x2, x3 = t0[lo:hi], t1[lo:hi], t2[lo:hi], t3[lo:hi]
            x4, x5, x6, x7 = t4[lo:hi], t5[lo:hi], t6[lo:hi], t7[lo:hi]
            if first:
                for i in range(y.size):
                    y[i] = np.float32(0.0)
            part = np.float32(0.0)
            for i in range(p.size):
                v = p[i]
                low = a0 * (v - x0[i]) + a1 * (v - x1[i]) + a2 * (v - x2[i]) + a3 * (v - x3[i])
                high = a4 * (v - x4[i]) + a5 * (v - x5[i]) + a6 * (v - x6[i]) + a7 * (v - x7[i])
                d = y[i] + (low + high)
                y[i] = d
                part += d * d
            total += np.float64(part)
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
    before, momentum = _read_only(prev), _read_only(buf)
    rounds = _rounds([_read_only(theta) for theta in thetas], before)

    squares = np.zeros((los.size, LANES * len(rounds)))
    for first, group in rounds:
        sums = np.zeros((los.size, LANES))  # contiguous, as the kernel was compiled for
        _norms(before, group, los, his, sums)
        squares[:, first : first + LANES] = sums
    norms = np.sqrt(np.add.reduceat(squares[:, : len(thetas)], starts, axis=0)).T

    a, radius = coefficients(norms, weights, rules)
    k = np.zeros((los.size, squares.shape[1]), dtype=np.float32)
    k[:, : len(thetas)] = a[:, tensor_of].T
    u, lengths = theta_out, np.zeros(los.size)  # u lives where the result will be
    for first, group in rounds:
        lanes = np.ascontiguousarray(k[:, first : first + LANES])
        _direction(before, group, lanes, los, his, first == 0, u, lengths)
    scale = _stretch(np.sqrt(np.add.reduceat(lengths, starts)), radius)

    sound = np.zeros(los.size)
    _outer_step(
        before, momentum, _read_only(u), scale[tensor_of].astype(np.float32),
        np.float32(outer.lr), np.float32(outer.momentum), los, his, theta_out, buf_out, sound,
    )  # fmt: skip
    return Merged(theta_out, buf_out, norms, bool(np.isfinite(sound).all()))


def warm() -> None:
    """Compile the kernels, or load them from the cache, so that the first merge need not."""
    one = np.zeros(1, dtype=np.float32)
    merge(one, one, [one], [1.0], [1], ["rda"], Outer())


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


def _rounds(thetas: list[Flat], filler: Flat) -> list[tuple[int, tuple[Flat, ...]]]:
    """(index of the first, LANES arrays) for each round."""
    filled = thetas + [filler] * (-len(thetas) % LANES)
    return [(i, tuple(filled[i : i + LANES])) for i in range(0, len(filled), LANES)]


def _stretch(lengths: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factor that gives u its due length; 1 where radius is NaN (avg), 0 where u is zero."""
    factor = np.divide(radius, lengths, out=np.zeros_like(radius), where=lengths > 0)
    return np.where(np.isnan(radius), 1.0, factor)


def _read_only(flat: Flat) -> Flat:
    """The same memory, not writable: received buffers are, and one type means one compilation."""
    view = flat.view()
    view.flags.writeable = False
    return view
