"""Targets whose units train in lockstep: when the end of one explains the end of others.

The members of a world stop together and start anew together. That is how such a target works, so
their exits are no failures of their own, as long as the world ended for a reason that is known: a
fault on one of them, or a member that was taken back at a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.events import UnitExited, WorldEnded, WorldFormed
from reports.effects import EXIT_SLACK_NS, FaultFact
from reports.history import History
from reports.lives import Seen

RESTART_CODE = 75
"""Exit code of a unit that wants to be started anew (EX_TEMPFAIL)."""

_ABORTED = 6
"""A collective library may abort its process when its peers are gone."""


def ended_with_its_world(
    history: History, event: UnitExited, facts: Sequence[FaultFact]
) -> Seen[WorldFormed] | None:
    """The world whose end, for a known reason, explains this exit; None when there is none."""
    if event.code != RESTART_CODE and event.signal != _ABORTED:
        return None
    formed = _last_world(history, event)
    if formed is None:
        return None
    for seen in history.worlds_ended:
        ended = seen.event
        if ended.world == formed.event.world and ended.t_ns <= event.t_ns + EXIT_SLACK_NS:
            return formed if _has_reason(history, formed.event, ended, facts) else None
    return formed if _launcher_died(history, formed.event, event, facts) else None


def _last_world(history: History, event: UnitExited) -> Seen[WorldFormed] | None:
    found = None
    for seen in history.worlds:
        if seen.event.t_ns <= event.t_ns and event.unit in seen.event.members:
            found = seen
    return found


def _has_reason(
    history: History, formed: WorldFormed, ended: WorldEnded, facts: Sequence[FaultFact]
) -> bool:
    if ended.planned:
        return ended.because in history.units and ended.because not in formed.members
    suspects = (ended.because,) if ended.because else formed.members
    return any(
        fact.window.unit in suspects
        and fact.window.asked_ns is not None
        and fact.window.asked_ns <= ended.t_ns
        for fact in facts
    )


def _launcher_died(
    history: History, formed: WorldFormed, event: UnitExited, facts: Sequence[FaultFact]
) -> bool:
    """Whoever formed the world was hit by a fault and ended, and the world with it."""
    return any(
        formed.unit == seen.event.unit
        and formed.t_ns <= seen.event.t_ns <= event.t_ns + EXIT_SLACK_NS
        for seen in history.exits
    ) and any(
        fact.window.unit == formed.unit and (fact.window.asked_ns or event.t_ns) < event.t_ns
        for fact in facts
    )
