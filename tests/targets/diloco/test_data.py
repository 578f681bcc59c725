"""Sources of text: disjoint shards, cursors, the known entropy, and mistakes in naming a corpus."""

from __future__ import annotations

import itertools
import os
import sysconfig
from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest

from targets.diloco import data
from targets.diloco.data import Corpus, CorpusShard, DataError, MarkovSource, Records
from targets.diloco.params import DilocoParams

WIDTH = 17  # sequence + 1


def params(**changes: object) -> DilocoParams:
    return DilocoParams(**{"learners": 3, "sequence": WIDTH - 1, **changes})  # type: ignore[arg-type]


def numbered(groups: int) -> np.ndarray:
    """Text in which every record is unlike every other one."""
    count = groups * data.GROUP
    text = np.zeros((count, WIDTH), np.uint8)
    text[:, 0], text[:, 1] = np.divmod(np.arange(count), 256)
    return text.reshape(-1)


def numbers(records: Records) -> list[int]:
    return (records[:, 0].astype(int) * 256 + records[:, 1]).tolist()


def one_epoch(shard: CorpusShard) -> list[int]:
    return numbers(shard.records(0, len(shard)))


def test_shards_and_held_out_part_are_disjoint_and_cover_everything() -> None:
    corpus = Corpus(numbered(50), params(), seed=1)
    parts = [one_epoch(corpus.shard(learner, life=1)) for learner in range(3)]
    parts.append(numbers(corpus.held_out(10_000)))
    everything = list(itertools.chain(*parts))
    assert sorted(everything) == list(range(50 * data.GROUP))
    assert len(parts[-1]) == 3 * data.GROUP  # one group in twenty, rounded up


def test_every_epoch_holds_each_record_once_and_orders_differ() -> None:
    shard = Corpus(numbered(50), params(), seed=1).shard(0, life=1)
    size = len(shard)
    first, second = numbers(shard.records(0, size)), numbers(shard.records(size, size))
    assert first != second
    assert sorted(first) == sorted(second)
    assert max(Counter(first).values()) == 1


def test_lives_and_seeds_order_a_shard_differently_and_the_same_ones_alike() -> None:
    def drawn(seed: int, life: int) -> list[int]:
        return one_epoch(Corpus(numbered(50), params(), seed).shard(1, life))

    assert drawn(1, 1) == drawn(1, 1)
    assert drawn(1, 1) != drawn(1, 2)
    assert sorted(drawn(1, 1)) == sorted(drawn(1, 2))
    assert sorted(drawn(1, 1)) != sorted(drawn(2, 1))


@pytest.mark.parametrize("name", ["corpus", "markov"])
def test_a_cursor_resumes_anywhere(name: str) -> None:
    def fresh() -> data.Shard:
        if name == "corpus":
            return Corpus(numbered(50), params(), seed=4).shard(2, life=1)
        return MarkovSource(WIDTH - 1, seed=4).shard(2, life=1)

    whole = fresh().records(0, 900)
    assert whole.shape == (900, WIDTH)
    for start, count in [(0, 8), (250, 8), (255, 2), (256, 1), (511, 300), (899, 1)]:
        np.testing.assert_array_equal(fresh().records(start, count), whole[start : start + count])


def test_the_synthetic_source_has_the_entropy_it_claims() -> None:
    source = MarkovSource(64, seed=3)
    records = source.shard(0, life=1).records(0, 8192)
    before, after = records[:, :-1].reshape(-1), records[:, 1:].reshape(-1)
    counts = np.zeros((256, 256))
    np.add.at(counts, (before, after), 1)
    rows = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, rows, out=np.zeros_like(counts), where=rows > 0)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    empirical = -float(np.sum(counts * logs)) / counts.sum()
    assert source.floor == pytest.approx(1.75 * log(2))
    # Half a million transitions; the plug-in estimate is low by about rows * 3 / (2 n) = 7e-4.
    assert empirical == pytest.approx(source.floor, abs=5e-3)
    assert set(np.unique((counts > 0).sum(axis=1))) <= {0, 1, 2, 3, 4}


def test_synthetic_streams_of_learners_lives_and_held_out_differ() -> None:
    source = MarkovSource(WIDTH - 1, seed=3)
    streams = [source.shard(m, life).records(0, 64) for m in range(3) for life in (1, 2)]
    streams.append(source.held_out(64))
    distinct = {records.tobytes() for records in streams}
    assert len(distinct) == len(streams)


def test_the_documentation_that_python_ships_is_enough_for_eight_learners() -> None:
    source = data.open_source(DilocoParams(learners=8), seed=0)
    assert source.floor is None
    assert b"import" in source.shard(7, 1).records(0, 400).tobytes()


def test_a_folder_is_its_files_in_path_order_without_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.txt").write_bytes(b"one")
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / ".hidden").write_bytes(b"no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"no")
    assert data.corpus_bytes(str(tmp_path)).tobytes() == b"aone"
    assert data.corpus_bytes(str(tmp_path / "a.txt")).tobytes() == b"a"


def test_a_missing_path_is_named_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"nowhere.*neither cpython-docs, cpython-library, synthetic nor the path"
    ):
        data.corpus_bytes(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("make", ["file", "folder"])
def test_an_empty_corpus_is_refused(tmp_path: Path, make: str) -> None:
    path = tmp_path / "empty"
    if make == "file":
        path.touch()
    else:
        path.mkdir()
        (path / "blank.txt").touch()
    with pytest.raises(DataError, match="nothing to train on"):
        data.corpus_bytes(str(path))


def test_too_little_text_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * (data.GROUP * WIDTH * 3))
    with pytest.raises(DataError, match=r"816 bytes.*3 passages of 272 bytes.*3 learners"):
        data.open_source(params(data=str(path)), seed=0)
    data.open_source(params(data=str(path), learners=2), seed=0)


def test_an_oversized_corpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        os.truncate(file.fileno(), data.CORPUS_BYTES_MAX + 1)  # sparse: takes no space
    with pytest.raises(DataError, match="the most that fits"):
        data.corpus_bytes(str(path))


def test_an_unreadable_corpus_is_an_error_of_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"cannot be read.*Permission denied"):
        data.corpus_bytes(str(path))


def test_a_python_without_the_documentation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(data, "import_module", refuse)
    with pytest.raises(DataError, match="full standard library"):
        data.corpus_bytes(data.CPYTHON_DOCS)


def test_the_library_is_python_source_without_its_tests() -> None:
    text = data.corpus_bytes(data.CPYTHON_LIBRARY).tobytes()
    assert b"class ArgumentParser(" in text
    assert b"class JSONDecoder(" in text, "packages too"
    assert len(text) > 5 * len(data.corpus_bytes(data.CPYTHON_DOCS))
    files = data._cpython_library()
    assert files == sorted(set(files), key=files.index), "no file twice"
    assert not any("test" in f.parts or "site-packages" in f.parts for f in files)


def test_a_python_without_its_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="full standard library"):
        data.corpus_bytes(data.CPYTHON_LIBRARY)
