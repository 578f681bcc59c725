"""Who is hit: by name, role, group, count, minority, majority, all, or a seeded draw."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faults.base import Trait
from faults.traits import unfit


@dataclass(frozen=True)
class Candidate:
    """A unit that may be hit."""

    name: str
    role: str
    group: str = ""
    traits: frozenset[Trait] | None = None
    """What it has that faults may break; None: not told."""


def select(
    where: str | Sequence[str] | Mapping[str, Any],
    units: Sequence[Candidate],
    draw: random.Random,
    kinds: Collection[str] = (),
) -> tuple[tuple[str, ...], list[str]]:
    """(names in the order of ``units``, problems).

    Only units to which all of ``kinds`` can apply (:mod:`faults.traits`) are drawn from; one that
    is named and cannot be hit by them is a problem.

    ``where`` is one of

    * a word: ``one``, ``minority``, ``majority``, ``all`` (of the learners), ``group`` (every
      learner of one group, drawn: what fails together);
    * a unit's name, a role, or a group; or a list of names;
    * a table with any of ``role``, ``group``, ``names`` to narrow down and ``count`` (a number or
      one of the words) to draw from what is left.

    A minority is the most that is no majority (2 of 4, 2 of 5), a majority the least that is more
    than half (3 of 4, 3 of 5).
    """
    reasons = {u.name: why for u in units if (why := unfit(kinds, u.traits))}
    fit = [u for u in units if u.name not in reasons]
    if not fit and units:
        return (), [_unfit(reasons)]
    if isinstance(where, str):
        return _by_word(where, units, fit, draw, reasons)
    if isinstance(where, Mapping):
        return _by_table(where, units, draw, reasons)
    known = {u.name for u in units}
    unknown = [n for n in where if n not in known]
    if unknown:
        return (), [_no_such(", ".join(map(repr, unknown)), units)]
    if not where:
        return (), ["where: an empty list hits nobody"]
    wrong = {name: reasons[name] for name in dict.fromkeys(where) if name in reasons}
    if wrong:
        return (), [_unfit(wrong)]
    return tuple(u.name for u in units if u.name in set(where)), []


def left_out(
    where: str | Sequence[str] | Mapping[str, Any],
    units: Sequence[Candidate],
    kinds: Collection[str],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(name to why it cannot be hit, those that can) of the units that ``where`` means together.

    Both are empty where nobody is left out: each unit that is named can be hit or is a problem, and
    ``one`` promises no more than one.
    """
    meant = _meant(where, units)
    reasons = {u.name: why for u in meant if (why := unfit(kinds, u.traits))}
    left = tuple(u.name for u in meant if u.name not in reasons)
    if reasons and not left:  # what applies to none of them falls on the others
        left = tuple(u.name for u in units if not unfit(kinds, u.traits))
    return (reasons, left) if reasons else ({}, ())


def _meant(
    where: str | Sequence[str] | Mapping[str, Any], units: Sequence[Candidate]
) -> Sequence[Candidate]:
    learners = [u for u in units if u.role == "learner"]
    if isinstance(where, Mapping):
        if "names" in where or where.get("count") in ("one", 1):
            return ()
        role, group = where.get("role", "learner"), where.get("group")
        return [u for u in units if u.role == role and group in (None, u.group)]
    if where == "one" or not isinstance(where, str):
        return ()
    if where in _COUNTS or where == "group":
        return learners
    return next((m for a in ("role", "group") if (m := _with(a, where, units))), ())


def _with(attribute: str, value: str, units: Sequence[Candidate]) -> list[Candidate]:
    return [u for u in units if getattr(u, attribute) == value]


def _by_word(
    word: str,
    units: Sequence[Candidate],
    fit: Sequence[Candidate],
    draw: random.Random,
    reasons: Mapping[str, str],
) -> tuple[tuple[str, ...], list[str]]:
    learners = [u for u in fit if u.role == "learner"] or list(fit)
    if word in _COUNTS:
        return _drawn(learners, word, draw)
    if word == "group":
        groups = list(dict.fromkeys(u.group for u in learners if u.group))
        if not groups:
            return (), [_no_such("'group'", units)]
        chosen = draw.choice(groups)
        return tuple(u.name for u in learners if u.group == chosen), []
    for attribute in ("name", "role", "group"):
        meant = [u.name for u in units if getattr(u, attribute) == word]
        hit = tuple(name for name in meant if name not in reasons)
        if hit:
            return hit, []
        if meant:
            return (), [_unfit({name: reasons[name] for name in meant})]
    return (), [_no_such(repr(word), units)]


def _by_table(
    table: Mapping[str, Any],
    units: Sequence[Candidate],
    draw: random.Random,
    reasons: Mapping[str, str],
) -> tuple[tuple[str, ...], list[str]]:
    problems = [
        f"where.{key}: unknown key (known: role, group, names, count)"
        for key in table
        if key not in ("role", "group", "names", "count")
    ]
    left = list(units)
    for key, attribute in (("role", "role"), ("group", "group")):
        if key in table:
            left = [u for u in left if getattr(u, attribute) == table[key]]
    if "role" not in table and "names" not in table:
        # Of the others when the fault applies to no learner.
        fit = [u for u in left if u.name not in reasons]
        left = [u for u in fit if u.role == "learner"] or fit or left
    if "names" in table:
        unknown = [n for n in table["names"] if n not in {u.name for u in units}]
        if unknown:
            problems.append(_no_such(", ".join(map(repr, unknown)), units))
        left = [u for u in left if u.name in table["names"]]
    if not left and not problems:
        problems.append(_no_such(repr(dict(table)), units))
    wrong = {u.name: reasons[u.name] for u in left if u.name in reasons}
    left = [u for u in left if u.name not in reasons]
    if wrong and ("names" in table or not left) and not problems:
        problems.append(_unfit(wrong))
    if problems:
        return (), problems
    return _drawn(left, table.get("count", "all"), draw)


_COUNTS = ("one", "minority", "majority", "all")


def _drawn(
    units: Sequence[Candidate], count: Any, draw: random.Random
) -> tuple[tuple[str, ...], list[str]]:
    size = len(units)
    sizes = {"one": 1, "minority": size // 2, "majority": size // 2 + 1, "all": size}
    wanted = sizes.get(count, count) if isinstance(count, str) else count
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        words = ", ".join(_COUNTS)
        return (), [f"where.count: expected a number or one of {words}, got {count!r}"]
    if not 1 <= wanted <= size:
        return (), [f"where: {count!r} of {size} unit{'s' if size != 1 else ''} is impossible"]
    chosen = set(draw.sample([u.name for u in units], wanted))
    return tuple(u.name for u in units if u.name in chosen), []


def _unfit(reasons: Mapping[str, str]) -> str:
    return f"where: {alike(reasons)}"


def alike(reasons: Mapping[str, str]) -> str:
    """One sentence for all units of which the same is to be said."""
    said: dict[str, list[str]] = {}
    for name, why in reasons.items():
        said.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in said.items())


def _no_such(what: str, units: Sequence[Candidate]) -> str:
    names = ", ".join(u.name for u in units)
    groups = ", ".join(sorted({u.group for u in units if u.group})) or "none"
    return f"where: {what} matches no unit (units: {names}; groups: {groups})"
