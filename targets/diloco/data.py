"""Text to train on, byte by byte: where it comes from and which learner sees which part.

Text is cut into *records* of ``sequence + 1`` bytes that do not overlap (inputs are the first
``sequence`` bytes, targets the last ``sequence``). Neighbouring records form groups; a seeded
draw holds about one group in twenty out for evaluation and deals the others to the learners, so
no byte is ever in two shards or in a shard and the held-out part. Each life of a learner runs
through its shard in an order of its own, so a restart does not repeat what was just seen.

A position in a shard is one integer, the number of records before it: that is all a cursor needs
to be resumed.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from importlib import import_module
from math import log
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.seeds import array_stream
from targets.diloco.params import DilocoParams

Records = NDArray[np.uint8]
"""uint8 [records, sequence + 1]."""

CPYTHON_DOCS = "cpython-docs"
CPYTHON_LIBRARY = "cpython-library"
SYNTHETIC = "synthetic"
CORPUS_BYTES_MAX = 1 << 28
"""A corpus is held in memory once per learner; more than 256 MiB is refused."""

GROUP = 16
"""Records dealt together, so that a shard is made of passages and not of single windows."""
HELD_OUT_EVERY = 20


class DataError(ValueError):
    """A corpus that cannot be trained on; the message says which, why and what to do."""


class Shard(Protocol):
    """One learner's part of the data, without end: it starts over in a new order."""

    def records(self, start: int, count: int) -> Records:
        """The ``count`` records that follow the first ``start``."""
        ...


class Source(Protocol):
    """Where records come from."""

    floor: float | None
    """Exact entropy rate in nats per byte, which no model's mean loss can beat; None when it is
    not known."""

    def shard(self, learner: int, life: int) -> Shard:
        """The part of the learner with that number, in the order of its ``life``."""
        ...

    def held_out(self, count: int) -> Records:
        """Up to ``count`` records that are in no shard; always the same ones."""
        ...


def open_source(params: DilocoParams, seed: int) -> Source:
    """The source that ``params.data`` names. Raises :class:`DataError`."""
    if params.data == SYNTHETIC:
        return MarkovSource(params.sequence, seed)
    return Corpus(corpus_bytes(params.data), params, seed)


# --- text that exists ---------------------------------------------------------------------------


def corpus_bytes(name: str) -> NDArray[np.uint8]:
    """All bytes of ``cpython-docs`` (0.5 MB), of ``cpython-library`` (about 10 MB), of a file, or
    of a folder's files in the order of their paths (hidden files and folders left out). Raises
    :class:`DataError`."""
    if name == CPYTHON_DOCS:
        return _joined([_cpython_docs()])
    if name == CPYTHON_LIBRARY:
        return _joined([file.read_bytes() for file in _cpython_library()])
    path = Path(name).expanduser()
    if not path.exists():
        raise DataError(
            f"data is {name!r}, which is neither {CPYTHON_DOCS}, {CPYTHON_LIBRARY}, {SYNTHETIC} "
            f"nor the path of a file or folder here (looked for {path.absolute()})"
        )
    files = _files(path)
    try:
        size = sum(file.stat().st_size for file in files)
        if size > CORPUS_BYTES_MAX:
            raise DataError(
                f"data {name!r} has {size} bytes and the most that fits is {CORPUS_BYTES_MAX}: "
                "name a smaller file or folder"
            )
        data = _joined([file.read_bytes() for file in files])
    except OSError as error:
        raise DataError(f"data {name!r} cannot be read: {error}") from error
    if not len(data):
        kind = "folder without any text in it" if path.is_dir() else "file that is empty"
        raise DataError(f"data {name!r} is a {kind}: there is nothing to train on")
    return data


def _cpython_docs() -> bytes:
    """The reference manual's text behind ``help()``, which every full CPython ships."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DataError(
            f"data is {CPYTHON_DOCS!r} but this Python has no pydoc_data.topics ({error}): "
            "install the full standard library, or name a file, a folder or 'synthetic'"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _cpython_library() -> list[Path]:
    """The standard library's modules as far as they are written in Python, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(sys.stdlib_module_names - {"test", "idlelib", "lib2to3", "turtledemo"})
    found = [root / f"{name}.py" for name in modules]
    for name in modules:
        found += sorted((root / name).rglob("*.py"))
    files = [f for f in found if f.is_file() and not {"test", "tests"} & set(f.parts)]
    if not files:
        raise DataError(
            f"data is {CPYTHON_LIBRARY!r} but {root} holds none of this Python's library: "
            "install the full standard library, or name a file, a folder or 'synthetic'"
        )
    return files


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )


def _joined(parts: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(parts), np.uint8)


class Corpus:
    """Records cut from fixed text."""

    floor: float | None = None

    def __init__(self, data: NDArray[np.uint8], params: DilocoParams, seed: int) -> None:
        """Raises :class:`DataError` when some learner would get nothing."""
        width = params.sequence + 1
        groups = len(data) // (width * GROUP)
        held_out = -(-groups // HELD_OUT_EVERY)
        if groups - held_out < params.learners:
            raise DataError(
                f"data {params.data!r} has {len(data)} bytes, which is {groups} passages of "
                f"{width * GROUP} bytes: too few for {params.learners} learners and a held-out "
                f"part. Name more text, or lower sequence (now {params.sequence})"
            )
        # Trailing bytes that fill no group are left out.
        self._groups = data[: groups * GROUP * width].reshape(groups, GROUP, width)
        order = array_stream(seed, "data", "groups").permutation(groups)
        self._held_out, self._dealt = order[:held_out], order[held_out:]
        self._learners = params.learners
        self._seed = seed

    def shard(self, learner: int, life: int) -> CorpusShard:
        """Every M-th of the dealt groups."""
        groups = self._groups[np.sort(self._dealt[learner :: self._learners])]
        records = groups.reshape(-1, groups.shape[-1])
        return CorpusShard(records, self._seed, learner, life)

    def held_out(self, count: int) -> Records:
        """The first ``count`` records of the held-out groups."""
        groups = self._groups[np.sort(self._held_out)]
        return groups.reshape(-1, groups.shape[-1])[:count]


class CorpusShard:
    """A finite set of records, drawn in a new seeded order in each epoch."""

    def __init__(self, records: Records, seed: int, learner: int, life: int) -> None:
        self._records = records
        self._stream = (seed, "data", "order", learner, life)
        self._order = lru_cache(maxsize=2)(self._draw)

    def __len__(self) -> int:
        """Records in one epoch."""
        return len(self._records)

    def records(self, start: int, count: int) -> Records:
        """See :meth:`Shard.records`; one call may reach into the next epochs."""
        size = len(self._records)
        first, last = start // size, (start + count - 1) // size
        order = np.concatenate([self._order(epoch) for epoch in range(first, last + 1)])
        begin = start - first * size
        chosen: Records = self._records[order[begin : begin + count]]
        return chosen

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        return array_stream(*self._stream, epoch).permutation(len(self._records))


# --- text with a known entropy ------------------------------------------------------------------

_OUTCOMES = np.array([0, 0, 0, 0, 1, 1, 2, 3], np.uint8)
"""Eight equally likely draws to a successor: probabilities 1/2, 1/4, 1/8 and 1/8."""
SUCCESSORS = 4
_CHUNK = 256
"""Records drawn at once; the source is sequential, so the work is per position, not per record."""


class MarkovSource:
    """A first-order Markov chain over all 256 bytes.

    Each byte has four possible successors of its own (drawn from the seed) with probabilities
    1/2, 1/4, 1/8, 1/8, so the conditional entropy is the same after every byte and the entropy
    rate is exactly 1.75 bits = 1.2130 nats per byte, whatever the stationary distribution.
    """

    floor: float | None = 1.75 * log(2)

    def __init__(self, sequence: int, seed: int) -> None:
        self.sequence = sequence
        self.seed = seed
        draw = array_stream(seed, "data", "successors")
        self.successors: NDArray[np.uint8] = np.stack(
            [draw.permutation(256)[:SUCCESSORS] for _ in range(256)]
        ).astype(np.uint8)
        """uint8 [256, 4]: the successors of each byte, likeliest first."""

    def shard(self, learner: int, life: int) -> MarkovShard:
        """An independent stream of the same chain."""
        return MarkovShard(self, ("data", "learner", learner, life))

    def held_out(self, count: int) -> Records:
        """The first ``count`` records of a stream that no learner has."""
        return MarkovShard(self, ("data", "held-out")).records(0, count)


class MarkovShard:
    """Records drawn from a :class:`MarkovSource`, in chunks with a random stream each."""

    def __init__(self, source: MarkovSource, names: tuple[str | int, ...]) -> None:
        self._source = source
        self._names = names
        self._chunk = lru_cache(maxsize=2)(self._draw)

    def records(self, start: int, count: int) -> Records:
        """See :meth:`Shard.records`."""
        first, last = start // _CHUNK, (start + count - 1) // _CHUNK
        drawn = np.concatenate([self._chunk(chunk) for chunk in range(first, last + 1)])
        begin = start - first * _CHUNK
        return drawn[begin : begin + count]

    def _draw(self, chunk: int) -> Records:
        draw = array_stream(self._source.seed, *self._names, chunk)
        length = self._source.sequence + 1
        choices = _OUTCOMES[draw.integers(0, len(_OUTCOMES), (length, _CHUNK))]
        text = np.empty((length, _CHUNK), np.uint8)
        text[0] = draw.integers(0, 256, _CHUNK)
        for position in range(1, length):
            text[position] = self._source.successors[text[position - 1], choices[position]]
        return np.ascontiguousarray(text.T)
