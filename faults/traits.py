"""To which units a fault can apply at all: what it breaks, they must have.

A target says of each unit which of these it has (``targets.base.UnitSpec.traits``). A fault that
cannot apply to its victim is refused before anything starts: run all the same, it would end as a
fault without effect. Kinds that are not in :data:`WANTS` apply to whatever has a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from faults.base import Trait

LACKING: Mapping[Trait, str] = {
    "steps": "it takes no training steps",
    "updates": "it pushes no updates",
    "durable": "it keeps no durable state that its restart needs",
    "link": "it has no link to another unit",
    "proxy": "it is not what carries the links",
}
"""Trait to what is said of a unit without it."""

PROXY: frozenset[Trait] = frozenset({"proxy"})
"""The traits of a run's proxy, which is a unit of ours and none of the target's."""

WANTS: Mapping[str, Trait] = {
    "kill_proxy": "proxy",
    **dict.fromkeys(("hang", "straggle"), "steps"),
    **dict.fromkeys(
        ("corrupt_update", "stale_update", "duplicate_update", "truncated_update"), "updates"
    ),
    **dict.fromkeys(
        ("lose_checkpoint", "corrupt_checkpoint", "torn_write", "disk_full"), "durable"
    ),
    **dict.fromkeys(
        (
            *("partition", "partition_oneway", "refuse", "stall", "reset", "latency"),
            *("bandwidth", "cut", "flap"),
        ),
        "link",
    ),
}
"""Fault kind to the trait that its victim needs."""


def unfit(kinds: Iterable[str], traits: frozenset[Trait] | None) -> str:
    """Why one of ``kinds`` cannot apply to a unit with ``traits``; empty when all can.

    Of a unit whose traits are not told (None) everything is believed.
    """
    if traits is None:
        return ""
    for kind in kinds:
        wanted = WANTS.get(kind)
        if wanted is not None and wanted not in traits:
            return f"{kind} cannot apply: {LACKING[wanted]}"
        if wanted is None and traits == PROXY:
            return f"{kind} cannot apply: it is the proxy, which only kill_proxy breaks"
    return ""
