"""What a check is: a claim about a run, judged from its history, with the lines that prove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reports.effects import FaultFact
from reports.healing import Healing
from reports.history import History
from reports.tokens import Tokens

Valid = Literal[True, False, "unknown"]

EVENTS_MAX = 20
"""Lines of evidence kept per check."""


@dataclass(frozen=True)
class Evidence:
    """What checks judge: the history and what was derived from it once for all of them."""

    history: History
    facts: Sequence[FaultFact]
    healing: Sequence[Healing]
    tokens: Tokens
    """Over the whole run, not only the window."""


@dataclass(frozen=True)
class Finding:
    """A check's answer. ``asked`` is False where the run gave it nothing to judge."""

    valid: Valid
    why: str
    events: tuple[int, ...] = ()
    asked: bool = True


@dataclass(frozen=True)
class Check:
    """A named claim. ``safety`` claims hold on any host; the others need one that is fast
    enough, so a slow host makes them inconclusive."""

    name: str
    claim: str
    judge: Callable[[Evidence], Finding]
    safety: bool = True


def holds(why: str, *events: int) -> Finding:
    """Valid."""
    return Finding(True, why, _cap(events))


def broken(why: str, *events: int) -> Finding:
    """Invalid, with the events that prove it."""
    return Finding(False, why, _cap(events))


def unknown(why: str, *events: int) -> Finding:
    """Asked for, but the journal cannot say."""
    return Finding("unknown", why, _cap(events))


def not_asked(why: str) -> Finding:
    """Nothing in this run that the claim is about."""
    return Finding("unknown", f"not asked: {why}", (), asked=False)


def verdict_of(violations: Sequence[tuple[str, tuple[int, ...]]], good: Finding) -> Finding:
    """``good`` when there is no violation; else the first one in full and how many there are."""
    if not violations:
        return good
    text, _ = violations[0]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return broken(text + more, *(line for _, lines in violations for line in lines))


def _cap(events: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(events))[:EVENTS_MAX]
