"""What the syncer decides about reports and pushes, as functions that answer with a reason.

A refusal begins with one word for its kind, as ``harness.events.UpdateRefused`` wants it.
"""

from __future__ import annotations

import msgspec

from targets.diloco import wiretypes
from targets.diloco.messages import Push

REFUSALS = frozenset(
    {
        "stale",
        "duplicate",
        "late",
        "non-finite",
        "outlier",
        "truncated",
        "checksum",
        "layout",
        "fenced",
    }
)


def quorum(fresh: int, training: int, needed: int, step: int) -> tuple[bool, str]:
    """Whether step ``step`` has its quorum: ``needed`` learners that reported since it opened."""
    if fresh >= needed:
        return True, f"{fresh} of {training} learners reported in step {step}, quorum {needed}"
    return False, (
        f"step {step} waits for its quorum: {fresh} of {training} learners reported, "
        f"{needed} needed"
    )


class Expected(msgspec.Struct, frozen=True, gc=False):
    """What the syncer knows about one learner and one fragment when a push arrives."""

    incarnation: int
    request: int
    fragment: int
    step: int
    """The syncer's open step t."""
    version: int
    committed: int
    """The step at which ``version`` was committed."""
    merged_through: int
    """The learner's last local step whose tokens are already in the fragment."""
    stale_limit: int
    elements: int | None
    """Parameters in the fragment; None when the syncer was not told."""
    floor: int = 0
    """What builds upon an older version may be in one that a damaged disk took back."""


def admit(push: Push, want: Expected) -> tuple[bool, str]:
    """Whether ``push`` may enter the merge that is being collected, and why (not)."""
    if push.incarnation != want.incarnation:
        return False, f"fenced: from life {push.incarnation}, the learner lives {want.incarnation}"
    if push.request != want.request:
        return False, f"late: answers request {push.request}, open is {want.request}"
    if push.fragment != want.fragment:
        return False, f"layout: holds fragment {push.fragment}, asked for {want.fragment}"
    age = want.step - push.base_clock
    if age > want.stale_limit and push.base_version != want.version:
        # (What builds on the newest version is as new as can be, whatever steps were skipped.)
        # First of what may be said of old content: it is also likely to have been merged already.
        return False, f"stale: its base is {age} steps old, the bound is {want.stale_limit}"
    if push.since_step < want.merged_through:
        return False, (
            f"duplicate: covers local steps after {push.since_step}, "
            f"those up to {want.merged_through} are merged already"
        )
    if push.base_version < want.floor:
        return False, (
            f"duplicate: builds on version {push.base_version}, and what became of it was lost "
            f"with the syncer's disk; version {want.floor} replaces it"
        )
    if push.base_version > want.version or (
        push.base_version == want.version and push.base_clock != want.committed
    ):
        return False, (
            f"fenced: builds on version {push.base_version} of step {push.base_clock}, "
            f"the syncer has version {want.version} of step {want.committed}"
        )
    if push.c_steps <= 0 or push.c_tokens <= 0 or push.step - push.since_step != push.c_steps:
        return False, (
            f"layout: counters disagree: steps {push.since_step} to {push.step}, "
            f"{push.c_steps} counted, {push.c_tokens} tokens"
        )
    return _whole(push, want.elements)


def _whole(push: Push, elements: int | None) -> tuple[bool, str]:
    payload = push.payload
    if elements is not None and payload.dtype in wiretypes.DTYPES:
        due = wiretypes.nbytes(payload.dtype, elements)
        if payload.nbytes != due:
            return False, (
                f"truncated: {payload.nbytes} bytes of {payload.dtype}, the fragment has {due}"
            )
    return True, "admitted"


def refusal(why: str) -> str:
    """A worker's reason for dropping an input, with its kind in front."""
    kind = why.split(":", 1)[0]
    return why if kind in REFUSALS else f"non-finite: {why}"
