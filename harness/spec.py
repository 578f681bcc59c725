"""The experiment spec: TOML in, typed values out, every mistake in one error.

The parts (head, target, each fault, gate) are validated apart from each other, so that a mistake
in one does not hide those in the others. Unknown keys are errors. What needs the target or the
runtime to judge (unit names, capabilities) is added by :mod:`harness.compose`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from faults import FAULTS
from faults import load as load_fault
from faults.base import read_params
from harness.errors import SpecError

NS = 1_000_000_000

_T = TypeVar("_T", bound=BaseModel)


def _number(value: Any) -> Any:
    # TOML has booleans and strings of its own; pydantic would quietly turn both into numbers.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r}")
    return value


Seconds = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1e7)]
Whole = Annotated[int, BeforeValidator(_number), Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class Head(_Part):
    """Everything at the top level but target, faults and gate."""

    title: Annotated[str, Field(min_length=1)]
    description: str = ""
    runtime: Literal["process", "docker", "simulated"] = "process"
    duration_s: Annotated[Seconds, Field(gt=0)]
    """The fault window, from steady state on; then everything is healed."""
    quiet_tail_s: Seconds = 10.0
    """After healing; recovery is judged here."""
    baseline_s_max: Seconds = 120.0
    """Steady state must be reached within this, or no fault is executed."""
    heal_s_max: Seconds = 30.0
    """Every unit that came back must contribute again within this (check 11)."""
    seed: int | None = None
    tags: tuple[str, ...] = ()
    runtime_options: dict[str, Any] = {}


class TargetPart(_Part):
    """What is broken: a name from the table of targets, and its parameters."""

    name: str
    params: dict[str, Any] = {}


class Schedule(_Part):
    """Arrivals of a repeated fault, drawn from the fault's own random stream."""

    process: Literal["fixed", "poisson", "weibull"]
    mean_gap_s: Annotated[Seconds, Field(gt=0)]
    shape: Annotated[float, BeforeValidator(_number), Field(gt=0, le=20)] = 0.7
    """Weibull only; below 1 arrivals cluster (LANL's failure data)."""
    from_s: Seconds = 0.0
    until_s: Seconds | None = None
    at_most: Annotated[int, BeforeValidator(_number), Field(ge=1)] | None = None
    offenders: Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)] = 0.0
    """Chance that an arrival hits a unit that was hit before, rather than a fresh draw."""


class OnEvent(_Part):
    """Start when a journal event of this kind is seen after steady state."""

    event: str
    unit: str | None = None
    fault: str | None = None
    after_s: Seconds = 0.0


class FaultPart(_Part):
    """One ``[[fault]]``; its kind's own parameters are in ``params``."""

    kind: str
    where: str | list[str] | dict[str, Any] = "one"
    at_s: Seconds | None = None
    at_step: Whole | None = None
    on: OnEvent | None = None
    schedule: Schedule | None = None
    for_s: Annotated[Seconds, Field(gt=0)] | None = None
    params: dict[str, Any] = {}


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

    def finished(self, more: Sequence[str] = ()) -> Spec:
        """The spec; raises :class:`SpecError` with all problems, ``more`` included."""
        problems = [*self.problems, *more]
        whole = tuple(f for f in self.faults if f is not None)
        if problems or self.head is None or self.target is None or len(whole) < len(self.faults):
            raise SpecError(self.name, problems)
        return Spec(self.head, self.target, whole, self.gate, self.name, self.text)


def read_text(text: str, name: str, *, gates: Mapping[str, Any]) -> Draft:
    """Read a spec. ``gates`` is the table of known gate names.

    Raises :class:`SpecError` only when the text is no TOML at all; every other mistake is in the
    draft's ``problems``.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(name, [f"not valid TOML: {error}"]) from error
    return read_table(raw, name, text, gates=gates)


def read_table(raw: Mapping[str, Any], name: str, text: str, *, gates: Mapping[str, Any]) -> Draft:
    """Like :func:`read_text`, from a table that is already parsed."""
    problems: list[str] = []
    rest = {k: v for k, v in raw.items() if k not in ("target", "fault", "gate")}
    head = _part(Head, rest, "", problems)
    target = _part(TargetPart, raw.get("target", {}), "target.", problems)
    given = raw.get("fault", [])
    if not isinstance(given, list) or not all(isinstance(f, dict) for f in given):
        problems.append("fault: write every fault as a [[fault]] table")
        given = []
    faults = tuple(_fault(f, f"fault[{i}].", problems, head) for i, f in enumerate(given))
    gate = _gate(raw.get("gate", {}), gates, problems)
    return Draft(name, text, head, target, faults, gate, tuple(problems))


def read_file(path: Path, *, gates: Mapping[str, Any]) -> Draft:
    """Read a spec file; raises :class:`SpecError` when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [f"cannot be read: {error}"]) from error
    return read_text(text, path.stem, gates=gates)


def _part(kind: type[_T], raw: Any, prefix: str, problems: list[str]) -> _T | None:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems += [prefix + line for line in describe(error)]
        return None


def describe(error: ValidationError) -> list[str]:
    """One line for each of pydantic's complaints: where, what is wrong, what was given."""
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(str(p) for p in item["loc"]) or "spec"
        kind = item["type"]
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{where}: unknown key")
        elif kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
            lines.append(f"{where}: missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            given = "" if "got " in message else f", got {item['input']!r}"
            lines.append(f"{where}: {message[0].lower()}{message[1:]}{given}")
    return lines


def _fault(
    raw: Mapping[str, Any], prefix: str, problems: list[str], head: Head | None
) -> FaultPart | None:
    before = len(problems)
    kind = raw.get("kind")
    if kind not in FAULTS:
        what = "missing" if kind is None else f"unknown fault {kind!r}"
        problems.append(f"{prefix}kind: {what} (known: {', '.join(FAULTS)})")
    common = {k: v for k, v in raw.items() if k in FaultPart.model_fields and k != "params"}
    extra = {k: v for k, v in raw.items() if k not in common}
    part = _part(FaultPart, {"kind": "noop", **common}, prefix, problems)
    if kind not in FAULTS:
        return None
    fault = load_fault(kind)
    values, found = read_params(fault, extra)
    problems += [prefix + p for p in found]
    if part is not None:
        problems += [prefix + p for p in _times(part, fault.lasting, head)]
    if part is None or len(problems) > before:
        return None
    return part.model_copy(update={"params": values})


def _times(part: FaultPart, lasting: bool, head: Head | None) -> list[str]:
    found = []
    given = [n for n in ("at_s", "at_step", "on", "schedule") if getattr(part, n) is not None]
    if len(given) != 1:
        what = "none of them" if not given else " and ".join(given)
        found.append(f"when: give exactly one of at_s, at_step, on, schedule; got {what}")
    if part.for_s is not None and not lasting:
        found.append(f"for_s: {part.kind} is over at once, so it takes no for_s")
    if head is None:
        return found
    end = head.duration_s
    if part.at_s is not None and part.at_s >= end:
        found.append(f"at_s: {part.at_s:g} lies outside the fault window (duration_s = {end:g})")
    if part.schedule is not None and part.schedule.from_s >= end:
        found.append(f"schedule.from_s: {part.schedule.from_s:g} is not before {end:g}")
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
    shared = {k: v for k, v in common["properties"].items() if k not in ("params", "kind")}
    defs = {**common.get("$defs", {})}
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
