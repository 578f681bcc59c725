"""Merges that a syncer took back: what a damaged or lost disk did not give it again.

Their tokens are in no parameters any more, whoever had trained them and however long ago.
"""

from __future__ import annotations

from harness.events import Merged, RolledBack
from reports.history import History
from reports.lives import Seen


def undone(history: History) -> list[tuple[Seen[RolledBack], list[Seen[Merged]]]]:
    """Each rollback with the merges before it that are lost by it."""
    return [(back, _gone(history, back)) for back in history.rolled_back]


def undone_lines(history: History, until_ns: int | None = None) -> frozenset[int]:
    """Journal lines of merges that were taken back until some instant (None: ever)."""
    return frozenset(
        merge.line
        for back, gone in undone(history)
        if until_ns is None or back.event.t_ns <= until_ns
        for merge in gone
    )


def _gone(history: History, back: Seen[RolledBack]) -> list[Seen[Merged]]:
    event = back.event
    seen = [m for m in history.merges if m.event.fragment == event.fragment and m.line < back.line]
    if event.version == event.before + 1:  # the newest that it knew of was damaged itself
        return [m for m in seen if m.event.version == event.before]
    return [m for m in seen if event.before < m.event.version < event.version]
