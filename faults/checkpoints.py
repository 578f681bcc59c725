"""State faults: what a unit made durable is gone or damaged when it comes back.

One file for three members, since they differ in a word. Each is one deed, done by whatever keeps
the unit alive: the unit is killed, its files are damaged while nobody lives there, and only then
is it started again, so that the damage is really read. The counter of lives is spared: like the
restart count of an orchestrator it belongs to the place and not to what lives there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Damage, Deed, Param


class _StateFault:
    kind: str
    summary: str
    needs: frozenset[Capability] = frozenset({"kill", "state"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {}
    how: ClassVar[Damage]

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(action="damage", damage=self.how)


class LoseCheckpoint(_StateFault):
    """A disk that is lost with its machine."""

    kind = "lose_checkpoint"
    summary = "The unit dies, and all that it made durable is gone when it comes back."
    how = "lose"


class CorruptCheckpoint(_StateFault):
    """Bits that a disk does not give back as they were written."""

    kind = "corrupt_checkpoint"
    summary = "The unit dies, and bits of its newest checkpoint are flipped when it comes back."
    how = "flip"


class TornWrite(_StateFault):
    """What a crash in the middle of a write leaves where nobody syncs."""

    kind = "torn_write"
    summary = "The unit dies, and what it wrote last is cut short when it comes back."
    how = "tear"
