"""Trainers by name. The table loads nothing heavy; :func:`load` imports one module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from targets.diloco.trainers.base import TrainerModule

TRAINERS: dict[str, str] = {
    "lm": "targets.diloco.trainers.lm",
    "quadratic": "targets.diloco.trainers.quadratic",
    "scripted": "targets.diloco.trainers.scripted",
}
"""Trainer name to the import path of a module with the functions of ``TrainerModule``."""


def load(name: str) -> TrainerModule:
    """The trainer module called ``name``; raises ``KeyError`` for a name not in the table."""
    return cast("TrainerModule", import_module(TRAINERS[name]))
