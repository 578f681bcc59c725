"""Reads one ``[[fault]]`` of a spec: kind or mix, times, trace; all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from faults import FAULTS
from faults import load as load_fault
from faults.base import Fault, read_params
from harness import tracefile
from harness.mixes import MIXES, REPAIR
from harness.spec_parts import Component, FaultPart, FollowUp, Head, Part, Schedule
from harness.tracefile import Trace

MIX = "mix"
"""What a part's kind is when its arrivals draw theirs from a mix."""

SHOWN_MAX = 20
"""Problems of one trace that are listed; the rest is counted."""

SHOWN_CHARS = 60
"""Of a wrong value; a number may have hundreds of digits."""

_RESERVED = ("params", "trace")
_T = TypeVar("_T", bound=Part)


def validated(kind: type[_T], raw: Any, prefix: str, problems: list[str]) -> _T | None:
    """``raw`` as a ``kind``; None when it is none, with every reason in ``problems``."""
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
        elif kind in ("model_type", "dict_type", "dataclass_type"):
            lines.append(f"{where}: write it as a table, got {item['input']!r}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            message = message.replace("a valid tuple", "a list").replace("dictionary", "table")
            given = "" if "got " in message else f", got {_short(item['input'])}"
            lines.append(f"{where}: {message[0].lower()}{message[1:]}{given}")
    return lines


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


def read_fault(
    raw: Mapping[str, Any], prefix: str, problems: list[str], head: Head | None, base: Path | None
) -> FaultPart | None:
    """One ``[[fault]]`` table; ``base`` is the folder in which its trace is looked for."""
    before = len(problems)
    part = _mixed(raw, prefix, problems) if MIX in raw else _plain(raw, prefix, problems)
    if part is not None:
        problems += [prefix + p for p in _times(part, head)]
        part = _with_trace(part, prefix, problems, base)
    return part if len(problems) == before else None


def _plain(raw: Mapping[str, Any], prefix: str, problems: list[str]) -> FaultPart | None:
    part, fault = _with_params(FaultPart, raw, prefix, problems)
    if part is not None and fault is not None and not fault.lasting:
        problems += [
            f"{prefix}{name}: {part.kind} is over at once, so it takes no {name}"
            for name in ("for_s", "repair")
            if getattr(part, name) is not None
        ]
    return part


def _mixed(raw: Mapping[str, Any], prefix: str, problems: list[str]) -> FaultPart | None:
    if "kind" in raw:
        problems.append(f"{prefix}kind: a fault has a kind or a mix, not both")
    problems += [f"{prefix}{name}: unknown key" for name in _RESERVED if name in raw]
    rest = {k: v for k, v in raw.items() if k not in (MIX, "kind", *_RESERVED)}
    part = validated(FaultPart, {"kind": MIX, **rest}, prefix, problems)
    rows = _rows(raw[MIX], raw, prefix, problems)
    components = [
        _component(row, f"{prefix}mix[{i}].", problems) for i, row in enumerate(rows or ())
    ]
    whole = tuple(c for c in components if c is not None)
    return part.model_copy(update={"mix": whole}) if part is not None else None


def _rows(
    given: Any, raw: Mapping[str, Any], prefix: str, problems: list[str]
) -> Sequence[Mapping[str, Any]] | None:
    if isinstance(given, str):
        if given not in MIXES:
            problems.append(f"{prefix}mix: unknown mix {given!r} (built in: {', '.join(MIXES)})")
            return None
        rows = MIXES[given]
        if "for_s" in raw or "repair" in raw:
            return rows
        return [{**r, "repair": REPAIR} if _lasts(r) and "for_s" not in r else r for r in rows]
    if not isinstance(given, list) or not given or not all(isinstance(r, dict) for r in given):
        problems.append(
            f"{prefix}mix: give the name of a built-in mix ({', '.join(MIXES)}) or a list of "
            "[[fault.mix]] tables with component, count and kind"
        )
        return None
    names = [r.get("component") for r in given]
    problems += [
        f"{prefix}mix: component {name!r} is there more than once"
        for name in dict.fromkeys(n for n in names if n is not None and names.count(n) > 1)
    ]
    return given


def _lasts(row: Mapping[str, Any]) -> bool:
    return load_fault(row["kind"]).lasting


def _component(raw: Mapping[str, Any], prefix: str, problems: list[str]) -> Component | None:
    then = raw.get("then")
    rest = {k: v for k, v in raw.items() if k != "then"}
    part, _ = _with_params(Component, rest, prefix, problems)
    if then is None or part is None:
        return part
    if not isinstance(then, Mapping):
        problems.append(f"{prefix}then: write it as {{ kind = ..., after_s = ... }}")
        return None
    second, _ = _with_params(FollowUp, then, f"{prefix}then.", problems)
    return part.model_copy(update={"then": second})


def _with_params(
    kind: type[_T], raw: Mapping[str, Any], prefix: str, problems: list[str]
) -> tuple[_T | None, Fault | None]:
    """``raw`` as a ``kind`` whose ``params`` are those of the fault that it names."""
    name = raw.get("kind")
    fault = None
    if not isinstance(name, str) or name not in FAULTS:
        what = "missing" if name is None else f"unknown fault {name!r}"
        problems.append(f"{prefix}kind: {what} (known: {', '.join(FAULTS)})")
    else:
        fault = load_fault(name)
    own = {k: v for k, v in raw.items() if k in kind.model_fields and k not in _RESERVED}
    part = validated(kind, {**own, "kind": name if fault else "noop"}, prefix, problems)
    if fault is None:
        # With a kind that does nothing, for what else can be said; never part of a whole spec.
        return part, None
    values, found = read_params(fault, {k: v for k, v in raw.items() if k not in own})
    problems += [prefix + p for p in found]
    return (part.model_copy(update={"params": values}) if part is not None else None), fault


def _times(part: FaultPart, head: Head | None) -> list[str]:
    found = []
    given = [n for n in ("at_s", "at_step", "on", "schedule") if getattr(part, n) is not None]
    if len(given) != 1:
        what = "none of them" if not given else " and ".join(given)
        found.append(f"start: give exactly one of at_s, at_step, on, schedule; got {what}")
    if part.for_s is not None and part.repair is not None:
        found.append("repair: for_s and repair both say how long it lasts; give one")
    if part.schedule is not None:
        found += [f"schedule.{p}" for p in _schedule(part, part.schedule)]
    if head is None:
        return found
    end = head.duration_s
    if part.at_s is not None and part.at_s >= end:
        found.append(f"at_s: {part.at_s:g} lies outside the fault window (duration_s = {end:g})")
    if part.schedule is not None and part.schedule.from_s >= end:
        found.append(f"schedule.from_s: {part.schedule.from_s:g} is not before {end:g}")
    return found


def _schedule(part: FaultPart, schedule: Schedule) -> list[str]:
    found = []
    given = schedule.model_fields_set
    if schedule.process != "trace":
        found += [
            f"{name}: only a trace has it"
            for name in ("file", "compress", "length_s")
            if name in given
        ]
        if schedule.mean_gap_s is None:
            found.append(f"mean_gap_s: missing; {schedule.process} needs it")
        return found
    found += [
        f"{name}: a trace has its own arrivals and victims, so it takes no {name}"
        for name in ("mean_gap_s", "shape", "offenders")
        if name in given
    ]
    if schedule.file is None:
        found.append("file: missing; a trace needs a CSV file or the name of a built-in trace")
    for name in ("for_s", "repair"):
        if getattr(part, name) is not None:
            found.append(f"process: a trace says how long its outages last, so it takes no {name}")
    return found


def _with_trace(part: FaultPart, prefix: str, problems: list[str], base: Path | None) -> FaultPart:
    schedule = part.schedule
    if schedule is None or schedule.process != "trace" or schedule.file is None:
        return part
    where = f"{prefix}schedule.file"
    text = _text_of(schedule.file, where, problems, base)
    if text is None:
        return part
    trace, found = tracefile.parse(text, schedule.file, schedule.length_s)
    found += _unknown_causes(part, trace)
    problems += [f"{where} {schedule.file}: {p}" for p in found[:SHOWN_MAX]]
    if len(found) > SHOWN_MAX:
        problems.append(f"{where} {schedule.file}: and {len(found) - SHOWN_MAX} more")
    return part.model_copy(update={"trace": trace})


def _text_of(name: str, where: str, problems: list[str], base: Path | None) -> str | None:
    path = Path(name) if base is None else base / name
    try:
        if not path.exists() and name in traces():
            return trace_text(name)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(traces())
        problems.append(f"{where}: {name} cannot be read: {error} (built in: {known})")
        return None


def trace_text(name: str) -> str:
    """The text of a built-in trace."""
    return (resources.files("harness") / "traces" / f"{name}.csv").read_text("utf-8")


def traces() -> tuple[str, ...]:
    """Names of the built-in traces, sorted."""
    folder = resources.files("harness") / "traces"
    return tuple(sorted(f.name.removesuffix(".csv") for f in folder.iterdir()))


def _unknown_causes(part: FaultPart, trace: Trace) -> list[str]:
    if not part.mix:
        return []
    known = {c.component for c in part.mix}
    return [
        f"line {o.line}: cause {o.cause!r} is no component of the mix"
        for o in trace.outages
        if o.cause and o.cause not in known
    ]
