"""The experiment spec: TOML in, typed values out, every mistake in one error.

The parts (head, target, each fault, gate) are validated apart from each other, so that a mistake
in one does not hide those in the others. Unknown keys are errors. What needs the target or the
runtime to judge (unit names, capabilities) is added by :mod:`harness.compose`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import FAULTS
from faults import load as load_fault
from harness import toml
from harness.errors import SpecError
from harness.mixes import MIXES
from harness.spec_faults import MIX, read_fault, validated
from harness.spec_parts import FaultPart as FaultPart
from harness.spec_parts import Head as Head
from harness.spec_parts import OnEvent as OnEvent
from harness.spec_parts import Schedule as Schedule
from harness.spec_parts import TargetPart as TargetPart

NS = 1_000_000_000


@dataclass(frozen=True)
class Spec:
    """A whole experiment, validated as far as a spec alone can be."""

    head: Head
    target: TargetPart
    faults: tuple[FaultPart, ...]
    gate: Mapping[str, float]
    name: str
    """File stem or built-in name."""
    text: str
    """The spec as given."""

    def resolved(self) -> dict[str, Any]:
        """JSON values with every default filled in; goes into the journal."""
        return {
            "name": self.name,
            **self.head.model_dump(mode="json"),
            "target": self.target.model_dump(mode="json"),
            "fault": [f.model_dump(mode="json", exclude_none=True) for f in self.faults],
            "gate": dict(self.gate),
        }


@dataclass(frozen=True)
class Draft:
    """What could be read of a spec, and all that is wrong with it so far.

    ``None`` stands for a part that could not be read.
    """

    name: str
    text: str
    head: Head | None
    target: TargetPart | None
    faults: tuple[FaultPart | None, ...]
    gate: Mapping[str, float]
    problems: tuple[str, ...]
    aims: Mapping[int, str | Sequence[str]] = field(default_factory=dict)
    """Whom faults that could not be read would hit, by their places: that can be wrong, too."""

    def finished(self, more: Sequence[str] = ()) -> Spec:
        """The spec; raises :class:`SpecError` with all problems, ``more`` included."""
        problems = [*self.problems, *more]
        whole = tuple(f for f in self.faults if f is not None)
        if problems or self.head is None or self.target is None or len(whole) < len(self.faults):
            raise SpecError(self.name, problems)
        return Spec(self.head, self.target, whole, self.gate, self.name, self.text)


def read_text(text: str, name: str, *, gates: Mapping[str, Any], base: Path | None = None) -> Draft:
    """Read a spec. ``gates`` is the table of known gate names, ``base`` the folder in which files
    that it names are looked for (default: the current one).

    Raises :class:`SpecError` only when the text is no TOML at all; every other mistake is in the
    draft's ``problems``.
    """
    try:
        raw = toml.loads(text)
    except ValueError as error:
        raise SpecError(name, [f"not valid TOML: {error}"]) from error
    return read_table(raw, name, text, gates=gates, base=base)


def read_table(
    raw: Mapping[str, Any],
    name: str,
    text: str,
    *,
    gates: Mapping[str, Any],
    base: Path | None = None,
) -> Draft:
    """Like :func:`read_text`, from a table that is already parsed."""
    problems: list[str] = []
    rest = {k: v for k, v in raw.items() if k not in ("target", "fault", "gate")}
    head = validated(Head, rest, "", problems)
    target = validated(TargetPart, raw.get("target", {}), "target.", problems)
    given = raw.get("fault", [])
    if not isinstance(given, list) or not all(isinstance(f, dict) for f in given):
        problems.append("fault: write every fault as a [[fault]] table")
        given = []
    faults = tuple(read_fault(f, f"f{i + 1}.", problems, head, base) for i, f in enumerate(given))
    problems += _twice(faults)
    gate = _gate(raw.get("gate", {}), gates, problems)
    aims = {
        i: where
        for i, (part, table) in enumerate(zip(faults, given, strict=True))
        if part is None and _names(where := table.get("where"))
    }
    return Draft(name, text, head, target, faults, gate, tuple(problems), aims)


def _names(where: Any) -> bool:
    several = isinstance(where, list) and all(isinstance(name, str) for name in where)
    return several or isinstance(where, str)


def read_file(path: Path, *, gates: Mapping[str, Any]) -> Draft:
    """Read a spec file; raises :class:`SpecError` when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [f"cannot be read: {error}"]) from error
    return read_text(text, path.stem, gates=gates, base=path.parent)


def _twice(faults: Sequence[FaultPart | None]) -> list[str]:
    """Names are those of random streams and journal lines, so each must be one fault's alone."""
    places = {f"f{i + 1}": i for i in range(len(faults))}
    found = []
    for index, part in enumerate(faults):
        if part is None or part.name is None:
            continue
        other = places.setdefault(part.name, index)
        if other != index:
            found.append(f"f{index + 1}.name: {part.name!r} already names f{other + 1}")
    return found


def _gate(raw: Any, gates: Mapping[str, Any], problems: list[str]) -> dict[str, float]:
    if not isinstance(raw, dict):
        problems.append("gate: write gates as a [gate] table of name = number")
        return {}
    out = {}
    for name, bound in raw.items():
        if name not in gates:
            problems.append(f"gate.{name}: unknown gate (known: {', '.join(gates)})")
        elif isinstance(bound, bool) or not isinstance(bound, int | float):
            problems.append(f"gate.{name}: a gate needs a number, got {bound!r}")
        elif not math.isfinite(bound) or bound < 0:
            problems.append(f"gate.{name}: a gate needs a finite number from 0 on, got {bound!r}")
        elif name.endswith(("ratio_min", "goodput_min", "uptime_min")) and not 0 <= bound <= 1:
            problems.append(f"gate.{name}: a ratio lies between 0 and 1, got {bound!r}")
        else:
            out[name] = float(bound)
    return out


def json_schema(
    gates: Mapping[str, Any], target_schemas: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The spec's JSON schema for editors: all faults, gates and targets with their parameters."""
    head = Head.model_json_schema()
    common = FaultPart.model_json_schema()
    ours = ("params", "kind", "mix", "trace")
    shared = {k: v for k, v in common["properties"].items() if k not in ours}
    defs = {**head.get("$defs", {}), **common.get("$defs", {})}
    kinds = []
    for kind in FAULTS:
        fault = load_fault(kind)
        own = {n: _param_schema(p) for n, p in fault.params.items()}
        needed = [n for n, p in fault.params.items() if p.default is None]
        kinds.append(
            {
                "type": "object",
                "title": kind,
                "description": fault.summary,
                "properties": {"kind": {"const": kind}, **shared, **own},
                "required": ["kind", *needed],
                "additionalProperties": False,
            }
        )
    kinds.append(_mix_schema(shared))
    targets = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "params": schema},
            "required": ["name"],
            "additionalProperties": False,
        }
        for name, schema in target_schemas.items()
    ]
    bounds = {name: {"type": "number"} for name in gates}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "diloco-chaos experiment",
        "type": "object",
        "properties": {
            **head["properties"],
            "target": {"oneOf": targets},
            "fault": {"type": "array", "items": {"oneOf": kinds}},
            "gate": {"type": "object", "properties": bounds, "additionalProperties": False},
        },
        "required": [*head["required"], "target"],
        "additionalProperties": False,
        "$defs": defs,
    }


def _mix_schema(shared: Mapping[str, Any]) -> dict[str, Any]:
    row = {
        "type": "object",
        "properties": {
            "component": {"type": "string"},
            "count": {"type": "integer", "minimum": 1},
            "kind": {"enum": list(FAULTS)},
        },
        "required": ["component", "count", "kind"],
    }
    mix = {"oneOf": [{"enum": list(MIXES)}, {"type": "array", "items": row, "minItems": 1}]}
    return {
        "type": "object",
        "title": MIX,
        "description": "Every arrival draws its component, and so its kind, by counts.",
        "properties": {MIX: mix, **shared},
        "required": [MIX],
        "additionalProperties": False,
    }


def _param_schema(param: Any) -> dict[str, Any]:
    words = {float: "number", int: "integer", str: "string", bool: "boolean"}
    out: dict[str, Any] = {"type": words[param.type], "description": param.help}
    if param.lowest is not None:
        out["minimum"] = param.lowest
    if param.highest is not None:
        out["maximum"] = param.highest
    if param.choices:
        out["enum"] = list(param.choices)
    if param.default is not None:
        out["default"] = param.default
    return out
