"""The journal's line of a merge, kept with the fragment: it may die with the life that wrote it.

The merge was sent by then, so that a later life has to say that it happened (``LastMerged``). Only
of the newest one: each merge is told before the next one begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert, to_builtins

from harness.events import Contribution, LastMerged
from targets.node import Desk


def line(
    desk: Desk,
    quorum: int,
    contributions: Sequence[Contribution],
    excluded: Mapping[str, str],
    reason: str,
    rule: str,
) -> dict[str, Any]:
    """What a later life needs to repeat the line of this merge."""
    return {
        "at": desk.now,
        "life": desk.incarnation,
        "quorum": quorum,
        "contributions": to_builtins(contributions),
        "excluded": excluded,
        "reason": reason,
        "rule": rule,
    }


def repeat(desk: Desk, saved: Mapping[str, Any], fragments: int) -> None:
    """Tell the last life's last merge, if ``saved`` has its line and it was of this run."""
    found = [
        (saved[key]["clock"], p)
        for p in range(fragments)
        if "line" in saved.get(key := f"fragment/{p}", ())
    ]
    if not found:
        return
    clock, p = max(found)
    value = saved[f"fragment/{p}"]
    kept = value["line"]
    if kept["life"] >= desk.incarnation:
        return  # of another run, whose state this one took over
    desk.note(
        LastMerged,
        life=kept["life"],
        ago_ns=desk.now - kept["at"],
        clock=clock,
        fragment=p,
        version=value["version"],
        quorum=kept["quorum"],
        contributions=convert(kept["contributions"], tuple[Contribution, ...]),
        excluded=kept["excluded"],
        reason=kept["reason"],
        digest=value["digest"],
        rule=kept["rule"],
    )
