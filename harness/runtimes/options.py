"""Reading a live runtime's table of ``[runtime_options]``."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

Options = Mapping[str, tuple[type, Any, str]]
"""Option to (type, default, help)."""


def filled(options: Options, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(``given`` with defaults filled in, every name and type that is wrong). Whole numbers will do
    for others."""
    problems = []
    values = {name: default for name, (_, default, _) in options.items()}
    for name, value in given.items():
        if name not in options:
            problems.append(f"runtime_options.{name}: unknown; there are {', '.join(options)}")
            continue
        kind, _, text = options[name]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 1 << 53 else inf  # hundreds of digits are none
        if not isinstance(value, kind):
            problems.append(f"runtime_options.{name} is {value!r}; wanted: {text}")
        values[name] = value
    return values, problems
