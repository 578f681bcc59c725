"""A target's parameters from a spec: strict types, no unknown names, all mistakes at once.

Parameters are plain dataclasses with ``annotated_types`` bounds, so that a unit's process reads
them without pydantic; only whoever composes an experiment imports this module.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")


@dataclass(frozen=True)
class Found(Generic[T]):
    """``value`` has defaults where the given values were ``wrong`` (names of fields)."""

    value: T
    problems: list[str]
    wrong: frozenset[str]

    def about(self, problems: Collection[str]) -> list[str]:
        """Those of ``problems`` that no wrong field can have caused: a rule over several fields
        says nothing when one of them is wrong by itself."""
        return [p for p in problems if not any(name in p for name in self.wrong)]


def read(kind: type[T], given: Mapping[str, Any]) -> Found[T]:
    """``given`` as a ``kind`` (a dataclass whose fields all have defaults)."""
    names = [field.name for field in fields(cast(Any, kind))]
    problems = [_unknown(name, names) for name in given if name not in names]
    known = {name: value for name, value in given.items() if name in names}
    try:
        return Found(_validated(kind, known), problems, frozenset())
    except ValidationError as error:
        mistakes = error.errors()
    problems += [f"{_place(e['loc'])}: {e['msg']}, not {_short(e['input'])}" for e in mistakes]
    wrong = frozenset(str(e["loc"][0]) for e in mistakes)
    sound = {name: value for name, value in known.items() if name not in wrong}
    return Found(_validated(kind, sound), problems, wrong)


def schema(kind: type[Any]) -> dict[str, Any]:
    """JSON schema of the parameters, for editors."""
    return {**_adapter(kind).json_schema(), "title": kind.__name__, "additionalProperties": False}


def plain(value: Any) -> dict[str, Any]:
    """The parameters as JSON values."""
    return cast("dict[str, Any]", json.loads(_plain_adapter(type(value)).dump_json(value)))


def _validated(kind: type[T], known: Mapping[str, Any]) -> T:
    # Through JSON and strictly: lists are tuples, integers are floats, and nothing else converts.
    checked = _adapter(kind).validate_json(json.dumps(dict(known), default=repr), strict=True)
    return kind(**{field.name: getattr(checked, field.name) for field in fields(cast(Any, kind))})


_ADAPTERS: dict[tuple[type[Any], bool], TypeAdapter[Any]] = {}
"""Adapters made so far: building one takes a twentieth of a whole simulated run."""


def _plain_adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if (kind, True) not in _ADAPTERS:
        _ADAPTERS[kind, True] = TypeAdapter(kind)
    return _ADAPTERS[kind, True]


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if (kind, False) not in _ADAPTERS:
        _ADAPTERS[kind, False] = _strict_adapter(kind)
    return _ADAPTERS[kind, False]


def _strict_adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # A subclass carries the setting: pydantic takes none beside a dataclass.
    config = ConfigDict(allow_inf_nan=False)
    return TypeAdapter(type(kind.__name__, (kind,), {"__pydantic_config__": config}))


def _unknown(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
    return f"{name}: unknown parameter ({hint})"


def _place(loc: tuple[int | str, ...]) -> str:
    return str(loc[0]) + "".join(f"[{part}]" for part in loc[1:] if isinstance(part, int))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
