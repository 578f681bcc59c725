"""Experiments that ship with the package, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from harness.errors import SpecError
from harness.spec import Draft, read_file, read_text


def names() -> tuple[str, ...]:
    """Names of the built-in experiments, sorted."""
    folder = resources.files("harness") / "experiments"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()))


def text(name: str) -> str:
    """The spec of a built-in experiment; raises ``KeyError`` for an unknown name."""
    if name not in names():
        raise KeyError(name)
    return (resources.files("harness") / "experiments" / f"{name}.toml").read_text("utf-8")


def find(name_or_path: str, *, gates: Mapping[str, Any], base: Path | None = None) -> Draft:
    """A built-in experiment by name, or a spec file by path (relative to ``base``).

    Raises :class:`SpecError` when there is neither.
    """
    if name_or_path in names():
        return read_text(text(name_or_path), name_or_path, gates=gates)
    path = Path(name_or_path)
    if base is not None and not path.is_absolute():
        path = base / path
    if not path.exists():
        raise SpecError(
            name_or_path,
            [f"no such file and no built-in experiment (built in: {', '.join(names())})"],
        )
    return read_file(path, gates=gates)
