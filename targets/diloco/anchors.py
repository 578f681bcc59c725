"""Anchors: the versions of fragments that two ends hold bit for bit, for payloads that are changes.

Upstream a learner sends how far it moved since the version that it took from the syncer last. The
syncer keeps what its receivers made of the last few broadcasts, adds the change to that version
and has the learner's fragment; from there on everything is as with whole fragments: the delta is
anchored at the syncer's own previous fragment (paper D.2), whatever the push built upon.

Downstream the syncer sends how far the merged fragment is from what the receivers hold. What they
make of it is not exactly the merge, and the syncer keeps that too: the next change is one from
there, so rounding is never added up but made good by the next broadcast. Learners move away from
what they hold and not from what the syncer meant, so deltas are anchored there; the outer step is
then applied to the exact fragment.
"""

from __future__ import annotations

from collections.abc import Sequence

from targets.diloco import codec
from targets.diloco.arrays import Flat
from targets.diloco.messages import Payload


class Received:
    """What one learner was sent last of each fragment. Does nothing unless ``needed``.

    ``took`` and ``forget`` belong to the main lane, ``pack`` to any thread, with an anchor that
    was published together with the snapshot that is packed.
    """

    def __init__(self, fragments: int, *, needed: bool, feedback: bool) -> None:
        self._needed = needed
        self._feedback = feedback
        self._now: list[Flat | None] = [None] * fragments
        self.published: tuple[Flat | None, ...] = tuple(self._now)
        # Error feedback: what earlier pushes left out, and what the one under way leaves out. A
        # learner is not told whether its push was merged; that it was is the usual case.
        self._owed: dict[int, Flat] = {}
        self._left_out: dict[int, Flat] = {}

    def anchor(self, fragment: int) -> Flat | None:
        """What a broadcast of ``fragment`` is a change of; None when there is none."""
        return self._now[fragment]

    def took(self, fragment: int, flat: Flat) -> None:
        """The replica's fragment is now ``flat``, as the syncer sent it."""
        if self._needed:
            self._now[fragment] = flat
            if fragment in self._left_out:
                self._owed[fragment] = self._left_out.pop(fragment)

    def forget(self) -> None:
        """The replica's parameters are now somebody else's, between two broadcasts."""
        self._now = [None] * len(self._now)
        self._owed.clear()
        self._left_out.clear()

    def publish(self) -> None:
        """Let reads that begin from now on use the anchors as they are."""
        self.published = tuple(self._now)

    def pack(self, fragment: int, flat: Flat, anchor: Flat | None) -> Payload:
        """``flat`` as its change since ``anchor``; whole, in bf16, when there is no anchor."""
        if anchor is None:
            return codec.pack([flat], "bf16")
        if not self._feedback:
            return codec.pack_change(flat, anchor)[0]
        owed = self._owed.get(fragment)
        meant = flat if owed is None else flat + owed
        payload, received = codec.pack_change(meant, anchor)
        self._left_out[fragment] = meant - received
        return payload


class Sent:
    """What receivers made of each fragment's newest ``kept`` versions."""

    def __init__(self, initial: Sequence[Flat], kept: int) -> None:
        self._kept = kept
        self._held: list[dict[int, Flat]] = [{0: flat} for flat in initial]

    def newest(self, fragment: int) -> Flat:
        """What receivers hold now."""
        held = self._held[fragment]
        return held[max(held)]

    def at(self, fragment: int, version: int) -> Flat | None:
        """What receivers of ``version`` hold; None when that is too long ago."""
        return self._held[fragment].get(version)

    def put(self, fragment: int, version: int, flat: Flat) -> None:
        """``flat`` was sent as ``version``; what is too old goes."""
        held = self._held[fragment]
        held[version] = flat
        for old in sorted(held)[: -self._kept]:
            del held[old]

    def restart(self, fragment: int, version: int, flat: Flat) -> None:
        """``version`` is the newest, and nothing is known of others."""
        self._held[fragment] = {version: flat}
