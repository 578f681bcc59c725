"""Runtimes by name. The table loads nothing heavy; :func:`load` does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from harness.runtimes.base import RunContext, Runtime

RUNTIMES: dict[str, str] = {
    "process": "harness.runtimes.process:ProcessRuntime",
    "docker": "harness.runtimes.docker:DockerRuntime",
    "simulated": "harness.runtimes.simulated:SimulatedRuntime",
}
"""Runtime name to the import path of a class whose constructor takes a ``RunContext``."""


def load(name: str) -> Callable[[RunContext], Runtime]:
    """The constructor called ``name``; raises ``KeyError`` for a name not in the table."""
    module, _, attribute = RUNTIMES[name].partition(":")
    return cast("Callable[[RunContext], Runtime]", getattr(import_module(module), attribute))
