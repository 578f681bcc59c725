"""Compiled functions are found again, and a cache that is wrong is noticed and replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from targets.diloco import compiled

jax = compiled.start_jax()
SHAPE = jax.ShapeDtypeStruct((4,), np.float32)
X = np.arange(4, dtype=np.float32)


class Recipe:
    """Makes ``x + constant`` and counts how often it was asked to."""

    def __init__(self, constant: float) -> None:
        self.constant = constant
        self.made = 0

    def __call__(self) -> Callable[[Any], Any]:
        self.made += 1
        return lambda x: x + self.constant


def obtain(recipe: Recipe, cache: Path, **parts: str) -> compiled.Program:
    return compiled.obtain("add", recipe, (SHAPE,), SHAPE, parts=parts, cache_dir=str(cache))


def entry(cache: Path) -> Path:
    (path,) = cache.glob("add-*.xla")
    return path


def test_the_second_time_nothing_is_made(tmp_path: Path) -> None:
    recipe = Recipe(1)
    first, second = obtain(recipe, tmp_path), obtain(recipe, tmp_path)
    assert (first.source, second.source, recipe.made) == ("compiled", "cache", 1)
    np.testing.assert_array_equal(second.call(X), X + 1)
    assert second.why == ""


def test_whatever_the_program_depends_on_is_in_the_key(tmp_path: Path) -> None:
    obtain(Recipe(1), tmp_path, source="one")
    other = obtain(Recipe(2), tmp_path, source="two")
    assert other.source == "compiled"
    np.testing.assert_array_equal(other.call(X), X + 2)


def test_another_processor_or_other_flags_are_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obtain(Recipe(1), tmp_path)
    monkeypatch.setattr(compiled, "_processor", lambda: "another one")
    assert obtain(Recipe(1), tmp_path).source == "compiled"
    monkeypatch.setenv("XLA_FLAGS", "--something")
    assert obtain(Recipe(1), tmp_path).source == "compiled"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[: len(data) // 2], "torn"),
        (lambda data: b"", "torn"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "torn"),
        (lambda data: b"OTHER" + data[5:], "another format"),
    ],
    ids=["half", "empty", "bit", "magic"],
)
def test_a_damaged_entry_is_compiled_anew(
    tmp_path: Path, damage: Callable[[bytes], bytes], why: str
) -> None:
    obtain(Recipe(1), tmp_path)
    path = entry(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    again = obtain(Recipe(1), tmp_path)
    assert again.source == "compiled"
    assert why in again.why
    assert obtain(Recipe(1), tmp_path).source == "cache"


def test_an_entry_that_does_not_load_is_compiled_anew(tmp_path: Path) -> None:
    import hashlib

    obtain(Recipe(1), tmp_path)
    body = b"not an executable"
    entry(tmp_path).write_bytes(compiled._MAGIC + hashlib.sha256(body).digest() + body)
    again = obtain(Recipe(1), tmp_path)
    assert again.source == "compiled"
    assert "does not work here" in again.why


def test_an_entry_of_another_user_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obtain(Recipe(1), tmp_path)
    mine = os.geteuid()
    if mine == 0:
        os.chown(entry(tmp_path), 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    again = obtain(Recipe(1), tmp_path)
    assert again.source == "compiled"
    assert "another user" in again.why


def test_those_who_start_together_compile_once(tmp_path: Path) -> None:
    recipe = Recipe(1)
    with ThreadPoolExecutor(4) as pool:
        programs = list(pool.map(lambda _: obtain(recipe, tmp_path), range(4)))
    assert recipe.made == 1
    assert sorted(p.source for p in programs) == ["cache", "cache", "cache", "compiled"]
    assert list(tmp_path.glob("*.tmp")) == []


def test_jaxs_own_cache_does_not_spoil_ours(tmp_path: Path) -> None:
    def make() -> Callable[[Any], Any]:
        return lambda x: jax.numpy.tanh(x @ x.T) ** 2 + jax.numpy.sum(x)  # several kernels

    square = jax.ShapeDtypeStruct((4, 4), np.float32)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)

    def once(part: str) -> compiled.Program:
        return compiled.obtain(
            "add", make, (square,), square, parts={"part": part}, cache_dir=str(tmp_path / "ours")
        )

    with ExitStack() as stack:
        use_own_cache(stack, tmp_path / "jax")
        expected = np.asarray(jax.jit(make())(x))  # now it is in JAX's cache
        assert [once("a").source, once("b").source] == ["compiled", "compiled"]
        again = once("b")
        assert (again.source, again.why) == ("cache", "")
        np.testing.assert_array_equal(again.call(x), expected)


def use_own_cache(stack: ExitStack, folder: Path) -> None:
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        stack.callback(jax.config.update, name, getattr(jax.config, name))
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    stack.callback(compilation_cache.reset_cache)


def test_a_program_that_cannot_be_kept_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Callable[..., Any]:
        raise RuntimeError("Function not found")

    monkeypatch.setattr(compiled, "_revive", broken)
    program = obtain(Recipe(1), tmp_path)
    assert program.source == "compiled"
    assert "cannot be kept: Function not found" in program.why
    np.testing.assert_array_equal(program.call(X), X + 1)
    assert list(tmp_path.glob("*.xla")) == []


def test_a_folder_that_cannot_be_had_costs_a_compilation_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = obtain(Recipe(1), tmp_path / "file" / "cache")
    assert program.source == "compiled"
    assert "no compiled code can be kept" in program.why
    np.testing.assert_array_equal(program.call(X), X + 1)


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    program = obtain(Recipe(1), tmp_path)
    assert program.source == "compiled"
    assert "No space left" in caplog.text  # the unit's log says why starts are slow
    assert [p.suffix for p in tmp_path.iterdir()] == [".lock"]


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    recipe = Recipe(1)
    for _ in range(2):
        program = compiled.obtain("add", recipe, (SHAPE,), SHAPE, parts={})
        assert program.source == "compiled"
    assert recipe.made == 2
