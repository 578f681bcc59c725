"""Bytecode goes to the cache folder exactly when it would otherwise be lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from targets.bytecode import keep_bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable package without bytecode, in an interpreter that writes none."""
    (tmp_path / "witness_pkg").mkdir()
    (tmp_path / "witness_pkg" / "__init__.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return "witness_pkg"


def test_unwritten_bytecode_is_kept_in_the_cache(package: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert keep_bytecode(str(cache), package)
    __import__(package)
    try:
        assert list(cache.rglob("__init__*.pyc"))
        assert not (tmp_path / package / "__pycache__").exists()
    finally:
        del sys.modules[package]


def test_bytecode_that_is_there_is_left_where_it_is(package: str, tmp_path: Path) -> None:
    from importlib.util import cache_from_source

    there = Path(cache_from_source(str(tmp_path / package / "__init__.py")))
    there.parent.mkdir()
    there.write_bytes(b"")
    assert not keep_bytecode(str(tmp_path / "cache"), package)
    assert sys.dont_write_bytecode


def test_nothing_changes_for_an_interpreter_that_writes_bytecode(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not keep_bytecode(str(tmp_path), package)
    assert sys.pycache_prefix is None


@pytest.mark.parametrize(("cache", "witness"), [("", "witness_pkg"), ("x", "no_such_package")])
def test_without_a_folder_or_the_package_nothing_is_done(
    package: str, cache: str, witness: str
) -> None:
    assert not keep_bytecode(cache, witness)
