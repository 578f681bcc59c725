"""One fault of a spec into its arrivals: when, on whom, which acts, for how long. Pure.

Everything random comes from streams named after the fault (its ``name``, or else its place in the
spec) and the arrival's number, one stream for each question: when (``arrivals``), whom (``where``),
what (``mix``), how long (``repair``). So a longer window, another repair time or one more fault
moves nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults import load as load_fault
from faults.base import Deed, Fault
from faults.select import Candidate, alike, left_out, select
from faults.traits import unfit
from harness.schedules import instants, repair_s
from harness.seeds import stream
from harness.spec import FaultPart, Schedule
from harness.spec_parts import Component, Repair, Where
from harness.tracefile import Outage, Trace, host

NO_ARRIVAL = "draws no arrival in the fault window"
"""In the problem of a fault that would be sound with another seed."""


@dataclass(frozen=True)
class Act:
    """One kind of fault, as an arrival carries it out on each of its victims."""

    fault: Fault
    deed: Deed
    params: dict[str, Any]
    after_s: float = 0.0
    """Since the arrival."""
    for_s: float | None = None


@dataclass(frozen=True)
class Arrival:
    """Something breaks. ``at_s`` since steady state; None when progress or an event starts it."""

    at_s: float | None
    victims: tuple[str, ...]
    acts: tuple[Act, ...]
    about: dict[str, Any] = field(default_factory=dict)
    """What the journal keeps beside the acts' own parameters: component and cause."""


def drawn(
    index: int, part: FaultPart, units: Sequence[Candidate], seed: int, duration_s: float
) -> tuple[list[Arrival], list[str]]:
    """(arrivals, problems) of the fault at place ``index`` of its spec."""
    name = part.name or f"f{index + 1}"
    impossible = _impossible(part, units)
    if impossible:
        return [], impossible
    if part.trace is not None and part.schedule is not None:
        return _recorded(part, part.schedule, part.trace, name, units, seed, duration_s)
    starts: list[float | None] = [part.at_s]
    if part.schedule is not None:
        starts = [*instants(part.schedule, duration_s, stream(seed, name, "arrivals"))]
        if not starts:
            return [], [_nothing(part.schedule, seed)]
    out: list[Arrival] = []
    # Repeat offenders are sought among those that the same ``where`` hit: a chip that fails again
    # takes no region and no syncer with it.
    earlier: dict[str, list[tuple[str, ...]]] = {}
    for number, start in enumerate(starts):
        row = _row(part, stream(seed, name, "mix", number))
        draw = stream(seed, name, "where", number)
        where = _where(part, row)
        known = earlier.setdefault(repr(where), [])
        victims, problems = _victims(where, part.schedule, units, draw, known, _kinds(part, row))
        if problems:
            return [], problems
        known.append(victims)
        acts = _acts(part, row, stream(seed, name, "repair", number))
        out.append(Arrival(start, victims, acts, _about(row)))
    return out, []


def _nothing(schedule: Schedule, seed: int) -> str:
    helps = "a longer window or a smaller mean_gap_s helps"
    if schedule.process == "fixed":
        return f"schedule: its first arrival is not before the fault window ends; {helps}"
    return f"schedule: seed {seed} {NO_ARRIVAL}; another seed, {helps}"


def _victims(
    where: Where,
    schedule: Schedule | None,
    units: Sequence[Candidate],
    draw: random.Random,
    earlier: Sequence[tuple[str, ...]],
    kinds: Collection[str],
) -> tuple[tuple[str, ...], list[str]]:
    victims, problems = select(where, units, draw, kinds)
    if problems:
        return (), problems
    traits = {u.name: u.traits for u in units}
    again = [who for who in earlier if not any(unfit(kinds, traits[name]) for name in who)]
    if again and schedule is not None and draw.random() < schedule.offenders:
        return draw.choice(again), []
    return victims, []


def _impossible(part: FaultPart, units: Sequence[Candidate]) -> list[str]:
    """Rows of a mix that could hit nobody, whether or not this seed draws them."""
    found = []
    for index, row in enumerate(part.mix or ()):
        where, kinds = _where(part, row), _kinds(part, row)
        _, problems = select(where, units, random.Random(0), kinds)
        found += [f"mix[{index}].{p}" for p in problems]
    return found


def _row(part: FaultPart, draw: random.Random) -> Component | None:
    if part.mix is None:
        return None
    return draw.choices(part.mix, [c.count for c in part.mix])[0]


def _where(part: FaultPart, row: Component | None) -> Where:
    return part.where if row is None or row.where is None else row.where


def _kinds(part: FaultPart, row: Component | None) -> tuple[str, ...]:
    """Everything that is done to one victim."""
    if row is None:
        return (part.kind,)
    return (row.kind,) if row.then is None else (row.kind, row.then.kind)


def _about(row: Component | None) -> dict[str, Any]:
    return {} if row is None else {"component": row.component}


def _acts(
    part: FaultPart, row: Component | None, draw: random.Random, recorded_s: float | None = None
) -> tuple[Act, ...]:
    """What an arrival does; ``recorded_s`` is how long a trace says that it lasts."""
    if row is None:
        return (_act(part.kind, part.params, _lasts_s(part, draw, recorded_s)),)
    own = row.for_s is not None or row.repair is not None
    lasts_s = _lasts_s(row if own else part, draw, None if own else recorded_s)
    acts = [_act(row.kind, row.params, lasts_s)]
    if row.then is not None:
        then = row.then
        acts.append(_act(then.kind, then.params, then.for_s, then.after_s))
    return tuple(acts)


def _act(kind: str, params: dict[str, Any], for_s: float | None, after_s: float = 0.0) -> Act:
    fault = load_fault(kind)
    return Act(fault, fault.deed(params), params, after_s, for_s if fault.lasting else None)


def _lasts_s(
    of: FaultPart | Component, draw: random.Random, recorded_s: float | None
) -> float | None:
    if isinstance(of.repair, Repair):
        return repair_s(of.repair, draw)
    return recorded_s if of.for_s is None else of.for_s


# --- recorded traces ----------------------------------------------------------------------------


def _recorded(
    part: FaultPart,
    schedule: Schedule,
    trace: Trace,
    name: str,
    units: Sequence[Candidate],
    seed: int,
    duration_s: float,
) -> tuple[list[Arrival], list[str]]:
    pool, problems = _pool(part, units)
    if problems:
        return [], problems
    out = []
    for number, outage in enumerate(_within(schedule, trace, duration_s)):
        row = _named_row(part, outage) or _row(part, stream(seed, name, "mix", number))
        victims: tuple[str, ...] = (host(outage.unit, pool),)
        if row is not None and row.where is not None:
            # A cause that takes a whole group, or another role, is not one unit's alone.
            draw = stream(seed, name, "where", number)
            victims, problems = select(row.where, units, draw, _kinds(part, row))
            if problems:
                return [], problems
        lasts_s = None if outage.up_s is None else (outage.up_s - outage.down_s) / schedule.compress
        acts = _acts(part, row, stream(seed, name, "repair", number), lasts_s)
        about = {**_about(row), "recorded_unit": outage.unit, "trace_line": outage.line}
        if outage.cause:
            about["cause"] = outage.cause
        at_s = schedule.from_s + outage.down_s / schedule.compress
        out.append(Arrival(at_s, victims, acts, about))
    if not out:
        problems = ["schedule: no outage of the trace begins in the fault window"]
    return out, problems


def _pool(part: FaultPart, units: Sequence[Candidate]) -> tuple[tuple[str, ...], list[str]]:
    """Whom the trace's hosts stand for: units to which all that they may suffer applies."""
    where = part.where
    rows: Sequence[Component | None] = [r for r in part.mix or () if r.where is None] or [None]
    kinds = {kind for row in rows for kind in _kinds(part, row)}
    if where in ("minority", "majority", "group"):
        return (), [f"where: a trace has its own victims; {where!r} cannot narrow them down"]
    return select("all" if where == "one" else where, units, random.Random(0), sorted(kinds))


def _within(schedule: Schedule, trace: Trace, duration_s: float) -> list[Outage]:
    """Outages that begin in the fault window."""
    end = min(duration_s, duration_s if schedule.until_s is None else schedule.until_s)
    fit = [o for o in trace.outages if schedule.from_s + o.down_s / schedule.compress < end]
    return fit[: schedule.at_most]


def _named_row(part: FaultPart, outage: Outage) -> Component | None:
    return next((c for c in part.mix or () if c.component == outage.cause), None)


def notes(faults: Sequence[FaultPart], units: Sequence[Candidate], duration_s: float) -> list[str]:
    """What a reader of the journal should know about the traces behind it and about whom a fault
    leaves out, one sentence each."""
    out = spared(faults, units)
    for index, part in enumerate(faults):
        if part.trace is not None and part.schedule is not None:
            name = part.name or f"f{index + 1}"
            out.append(f"{name}: {_note(part, part.schedule, part.trace, units, duration_s)}")
    return out


def spared(faults: Sequence[FaultPart], units: Sequence[Candidate]) -> list[str]:
    """Whom a fault leaves out of those that its ``where`` means, since it cannot apply to them."""
    out = []
    for index, part in enumerate(faults):
        name = part.name or f"f{index + 1}"
        rows: Sequence[Component | None] = part.mix or (None,)
        for row in rows:
            where, kinds = _where(part, row), _kinds(part, row)
            reasons, left = left_out(where, units, kinds)
            if reasons:
                of = "" if row is None else f", {row.component}"
                out.append(
                    f"{name}{of}: where = {_written(where)} leaves out {alike(reasons)}; only "
                    f"{', '.join(left)} can be hit"
                )
    return out


def _written(where: Where) -> str:
    return f'"{where}"' if isinstance(where, str) else str(where)


def _note(
    part: FaultPart,
    schedule: Schedule,
    trace: Trace,
    units: Sequence[Candidate],
    duration_s: float,
) -> str:
    used = _within(schedule, trace, duration_s)
    pool, _ = _pool(part, units)
    anywhere, same = _overlaps(used, pool)
    hit = {host(o.unit, pool) for o in used}
    licence = f", licence {trace.about['licence']}" if "licence" in trace.about else ""
    return (
        f"trace {trace.name} (sha256 {trace.sha256[:16]}{licence}): {len(trace.outages)} outages "
        f"of {len(trace.units)} units in {trace.length_s:g} s, {schedule.compress:g} times as "
        f"fast; {len(used)} begin in the fault window, on {len(hit)} of {len(pool)} units; "
        f"{anywhere} of them while another is still on, {same} on the same unit"
    )


def _overlaps(outages: Sequence[Outage], pool: Sequence[str]) -> tuple[int, int]:
    """How many outages begin while an earlier one is on: anywhere, and on the same unit of ours."""
    anywhere = same = 0
    until: dict[str, float] = {}
    for outage in outages:
        ours = host(outage.unit, pool)
        anywhere += any(end > outage.down_s for end in until.values())
        same += until.get(ours, 0.0) > outage.down_s
        ends = float("inf") if outage.up_s is None else outage.up_s
        until[ours] = max(until.get(ours, 0.0), ends)
    return anywhere, same
