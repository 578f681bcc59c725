"""Units in containers train on this machine's bytes, whatever their image has."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import LaunchError
from harness.runtimes.docker_data import shared_data
from targets.diloco.data import CPYTHON_DOCS, corpus_bytes


def test_a_corpus_on_this_machine_is_mounted(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("text")
    params, mounts = shared_data({"data": str(file), "batch": 8}, tmp_path / "work")
    assert params == {"data": "/data/corpus.txt", "batch": 8}
    assert mounts == [f"{file}:/data/corpus.txt:ro"]
    assert not (tmp_path / "work").exists()


def test_what_is_drawn_from_the_seed_needs_no_file(tmp_path: Path) -> None:
    for params in ({"data": "synthetic"}, {"batch": 8}):
        assert shared_data(params, tmp_path / "work") == (params, [])
    assert not (tmp_path / "work").exists()


def test_a_text_known_by_name_is_this_machines(tmp_path: Path) -> None:
    """An image's Python has another release's manual, and so another training run."""
    params, mounts = shared_data({"data": CPYTHON_DOCS}, tmp_path / "work")
    written = tmp_path / "work" / CPYTHON_DOCS
    assert params == {"data": f"/data/{CPYTHON_DOCS}"}
    assert mounts == [f"{written}:/data/{CPYTHON_DOCS}:ro"]
    assert corpus_bytes(str(written)).tobytes() == corpus_bytes(CPYTHON_DOCS).tobytes()


def test_a_text_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="data is 'no-such-text'"):
        shared_data({"data": "no-such-text"}, tmp_path / "work")
