"""Recorded traces of failures: CSV in, outages out, every mistake with its line number.

A trace file looks like this; lines that begin with ``#`` are comments, and those of the form
``# key: value`` describe the trace::

    # length_s: 3600
    time_s,unit,event,cause
    12.5,node-3,down,GPU memory
    95,node-3,up

``time_s`` is seconds since the recording began, ascending. ``unit`` is the recorded system's own
name for what failed. ``event`` is ``down`` or ``up``; a unit without ``up`` stays away to the
end. ``cause`` may be left out. ``# length_s`` is how long the recording claims to be; a span of
rows that does not match it is a mistake, since units of time are what traces most often get wrong.

Pure: this module parses text. Units of a trace are mapped onto ours by a stable hash, so that the
same trace hits the same units in every run, whatever the seed.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

COLUMNS = ("time_s", "unit", "event", "cause")
ROWS_MAX = 100_000
SILENT_END_MAX = 0.1
"""A claimed length may exceed the last row by this share of it, or by the longest gap between two
rows if that is more."""


@dataclass(frozen=True)
class Outage:
    """One unit was away from ``down_s`` to ``up_s`` (None: to the trace's end)."""

    unit: str
    down_s: float
    up_s: float | None
    cause: str
    line: int


@dataclass(frozen=True)
class Trace:
    """A sound trace."""

    name: str
    sha256: str
    outages: tuple[Outage, ...]
    """By ``down_s``."""
    length_s: float
    """What the trace claims, or the time of its last row."""
    about: dict[str, str]
    """Its ``# key: value`` comments."""

    @property
    def units(self) -> tuple[str, ...]:
        """The recorded units, sorted."""
        return tuple(sorted({o.unit for o in self.outages}))


@dataclass(frozen=True)
class _Row:
    line: int
    at_s: float
    unit: str
    event: str
    cause: str


def parse(text: str, name: str, claimed_s: float | None = None) -> tuple[Trace, list[str]]:
    """(trace, problems). The trace is only to be used when there is no problem.

    ``claimed_s`` is a length claimed elsewhere than in the file; the file's own must agree.
    """
    problems: list[str] = []
    about = _about(text)
    rows = _rows(text, problems)
    problems += _disorder(rows)
    outages = _outages(rows, problems)
    length_s = _length(about, rows, claimed_s, problems)
    if not rows and not problems:
        problems.append("the trace holds no row")
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Trace(name, digest, tuple(outages), length_s, about), problems


def _about(text: str) -> dict[str, str]:
    out = {}
    for line in text.splitlines():
        key, colon, value = line.removeprefix("#").partition(":")
        if line.startswith("#") and colon and " " not in key.strip():
            out[key.strip()] = value.strip()
    return out


def _rows(text: str, problems: list[str]) -> list[_Row]:
    rows: list[_Row] = []
    header: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [f.strip() for f in next(csv.reader([line]))]
        if header is None:
            header = fields
            if tuple(fields) not in (COLUMNS, COLUMNS[:3]):
                wanted = "time_s,unit,event or time_s,unit,event,cause"
                problems.append(f"line {number}: the first row must be {wanted}, got {line!r}")
                return rows
        elif len(rows) >= ROWS_MAX:
            problems.append(f"line {number}: more than {ROWS_MAX:,} rows")
            return rows
        else:
            row = _row(number, fields, len(header), problems)
            rows += [row] if row else []
    return rows


def _row(number: int, fields: Sequence[str], width: int, problems: list[str]) -> _Row | None:
    if not 3 <= len(fields) <= width:
        problems.append(f"line {number}: {len(fields)} fields where {width} are expected")
        return None
    at, unit, event, cause = (*fields, "")[:4]
    before = len(problems)
    try:
        at_s = float(at)
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s):
        problems.append(f"line {number}: time_s is {at!r}, which is no number")
    elif at_s < 0:
        problems.append(f"line {number}: time_s is {at}, which is negative")
    if not unit:
        problems.append(f"line {number}: unit is empty")
    if event not in ("down", "up"):
        problems.append(f"line {number}: unknown event {event!r} (known: down, up)")
    return None if len(problems) > before else _Row(number, at_s, unit, event, cause)


def _disorder(rows: Sequence[_Row]) -> list[str]:
    return [
        f"line {b.line}: time_s is {b.at_s:g} after {a.at_s:g} in line {a.line}: rows must ascend"
        for a, b in pairwise(rows)
        if b.at_s < a.at_s
    ]


def _outages(rows: Sequence[_Row], problems: list[str]) -> list[Outage]:
    away: dict[str, _Row] = {}
    out = []
    for row in rows:
        since = away.pop(row.unit, None)
        if row.event == "down":
            if since is not None:
                problems.append(
                    f"line {row.line}: {row.unit} goes down, yet it is down since line "
                    f"{since.line}: outages of one unit must not overlap"
                )
            away[row.unit] = row
        elif since is None:
            problems.append(f"line {row.line}: {row.unit} comes up, yet it is not down")
        else:
            out.append(Outage(row.unit, since.at_s, row.at_s, since.cause, since.line))
    out += [Outage(r.unit, r.at_s, None, r.cause, r.line) for r in away.values()]
    return sorted(out, key=lambda o: (o.down_s, o.line))


def _length(
    about: dict[str, str], rows: Sequence[_Row], claimed_s: float | None, problems: list[str]
) -> float:
    claims = [] if claimed_s is None else [("length_s", claimed_s)]
    if "length_s" in about:
        try:
            claims.append(("its comment length_s", float(about["length_s"])))
        except ValueError:
            problems.append(f"its comment length_s is {about['length_s']!r}, which is no number")
    last_s = rows[-1].at_s if rows else 0.0
    for what, length_s in claims if rows else ():
        problems += _mismatch(what, length_s, rows)
    return claims[0][1] if claims else last_s


def _mismatch(what: str, length_s: float, rows: Sequence[_Row]) -> list[str]:
    last = rows[-1]
    times = [0.0, *(r.at_s for r in rows)]
    longest_gap_s = max(b - a for a, b in pairwise(times))
    if last.at_s > length_s:
        return [f"line {last.line}: time_s is {last.at_s:g}, later than {what} = {length_s:g}"]
    if length_s - last.at_s > max(longest_gap_s, SILENT_END_MAX * length_s):
        return [
            f"{what} is {length_s:g}, but the rows span {last.at_s:g} s: the silence at the end "
            "is longer than any between two rows; is the length right, and are both in seconds?"
        ]
    return []


def host(unit: str, names: Sequence[str]) -> str:
    """Which of ours stands for a recorded unit: its namesake, or else by rendezvous hashing.

    Stable across processes and seeds; with more or fewer of ours, only those recorded units move
    whose stand-in came or went.
    """
    if unit in names:
        return unit

    def score(name: str) -> bytes:
        return hashlib.blake2b(f"{unit}\x1f{name}".encode(), digest_size=8).digest()

    return max(names, key=score)
