"""An experiment as a TOML file that a person can read, run and keep."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def to_toml(table: Mapping[str, Any], remarks: Sequence[str] = ()) -> str:
    """The experiment's text; ``remarks`` become comments at its head."""
    lines = [f"# {line}" for remark in remarks for line in remark.splitlines()]
    lines += [f"{k} = {_value(v)}" for k, v in table.items() if k not in _TABLES]
    for name in ("runtime_options", "gate"):
        if table.get(name):
            lines += ["", f"[{name}]", *(f"{k} = {_value(v)}" for k, v in table[name].items())]
    target = table["target"]
    lines += ["", "[target]", f"name = {_value(target['name'])}"]
    lines.append(f"params = {_value(target.get('params', {}))}")
    for fault in table.get("fault", ()):
        lines += ["", "[[fault]]", *(f"{k} = {_value(v)}" for k, v in fault.items())]
    return "\n".join(lines) + "\n"


def write_experiment(
    path: Path, table: Mapping[str, Any], seed: int, remarks: Sequence[str] = ()
) -> str:
    """Write the experiment to ``path`` and return the command that repeats it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_toml(table, remarks), encoding="utf-8")
    return shlex.join(
        ["diloco-chaos", "run", str(path), "--runtime", "simulated", "--seed", str(seed)]
    )


_TABLES = ("target", "fault", "gate", "runtime_options")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    # JSON's strings, numbers and booleans are TOML's, too.
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else json.dumps(key)
