"""Systems under test, by name. The table loads nothing heavy; :func:`load` does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from targets.base import TargetFactory

TARGETS: dict[str, str] = {
    "diloco": "targets.diloco.target:create",
    "counter": "targets.counter:create",
    "spmd": "targets.spmd.target:create",
}
"""Target name to the import path of its factory."""


def load(name: str) -> TargetFactory:
    """The factory called ``name``; raises ``KeyError`` for a name not in the table."""
    module, _, attribute = TARGETS[name].partition(":")
    return cast("TargetFactory", getattr(import_module(module), attribute))
