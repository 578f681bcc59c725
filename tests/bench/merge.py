"""The syncer's merge of 8 learners x 10 M float32 against what the memory alone would need.

Floor: reading the inputs twice (norms must be known before the sum), and reading and writing
parameters and momentum, 800 MB in all, at the speeds probed in the same process just before each
merge. Best of several repetitions, as ratios within one run: hosts have fast and slow minutes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tests.bench import Figure

ELEMENTS = 10_000_000
LEARNERS = 8
REPEAT = 15


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure() -> list[Figure]:
    """The ratio to the floor, and whether one thread gives the same bits."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle workers disturb the kernels
    import numba
    import numpy as np

    from targets.diloco import kernels
    from targets.diloco.arrays import Outer, Rule

    read, copy = _probes(numba, np)
    rng = np.random.default_rng(0)
    prev, buf = (rng.standard_normal(ELEMENTS, dtype=np.float32) for _ in range(2))
    near = np.float32(0.01)
    thetas = [
        prev + near * rng.standard_normal(ELEMENTS, dtype=np.float32) for _ in range(LEARNERS)
    ]
    sizes, rules = [ELEMENTS // 5] * 5, list[Rule](["rda"] * 5)
    out = (np.zeros_like(prev), np.zeros_like(prev))

    def merge() -> None:
        kernels.merge(prev, buf, thetas, [1.0] * LEARNERS, sizes, rules, Outer(), out)

    def floor() -> None:
        read(tuple(thetas))
        read(tuple(thetas))
        copy(prev, out[0])
        copy(buf, out[1])

    merge()  # compiled now
    floor()
    times = [(seconds(floor), seconds(merge)) for _ in range(REPEAT)]
    floor_s, merge_s = (min(column) for column in zip(*times, strict=True))
    bits = set()
    threads = numba.get_num_threads()
    for count in range(1, threads + 1):
        numba.set_num_threads(count)
        merge()
        bits.add(out[0].tobytes() + out[1].tobytes())
    ratio, name = merge_s / floor_s, f"merge {LEARNERS} x 10 M f32 / memory floor"
    return [
        Figure(name, ratio, "x", "<= 1.5 (below 0.9: host too busy)", 0.9 <= ratio <= 1.5),
        Figure("floor", 1e3 * floor_s, "ms", "", True),
        Figure("merge", 1e3 * merge_s, "ms", "", True),
        Figure(f"results over 1..{threads} threads", len(bits), "distinct", "= 1", len(bits) == 1),
    ]


def _probes(numba: Any, np: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """Kernels that read a tuple of arrays, and copy one, on all threads. Few calls: on a busy
    host every call waits for its threads, and the floor must not look higher than it is."""

    @numba.njit(parallel=True, fastmath={"reassoc"})  # type: ignore[untyped-decorator]
    def read(thetas: Any) -> Any:
        sums = np.zeros((thetas[0].size // 32_768 + 1, len(thetas)), dtype=np.float32)
        for c in numba.prange(len(sums)):
            for m in range(len(thetas)):
                part = thetas[m][c * 32_768 : (c + 1) * 32_768]
                total = np.float32(0.0)
                for i in range(part.size):
                    total += part[i]
                sums[c, m] = total
        return sums

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
    def copy(x: Any, y: Any) -> None:
        for c in numba.prange(x.size // 32_768 + 1):
            a, b = x[c * 32_768 : (c + 1) * 32_768], y[c * 32_768 : (c + 1) * 32_768]
            for i in range(a.size):
                b[i] = a[i]

    return read, copy
