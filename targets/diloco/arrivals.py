"""Fragments that a learner was sent and has not adopted yet.

The parameters change between two steps only, so what comes in the middle of one waits. A whole
fragment takes the place of what waits of it; changes (``wire_down``) apply one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from targets.diloco.messages import Fragment


class Arrivals:
    """Of ``fragments`` fragments. ``relative`` says whether what is sent may be changes, which can
    only be added to what the syncer itself has sent."""

    def __init__(self, fragments: int, relative: bool) -> None:
        self.known = [0] * fragments
        """Newest version received, adopted or not."""
        self.awaited = [0] * fragments
        """Global step of the newest version received."""
        self.adopting: list[Fragment] = []
        """Those whose job is queued, in order."""
        self._relative = relative
        self._waiting: dict[int, list[Fragment]] = {}
        """Fragment to what came of it since the last step."""

    def expect(self, f: Fragment) -> None:
        """It will be part of the state."""
        self.known[f.fragment] = f.version
        self.awaited[f.fragment] = f.committed

    def came(self, f: Fragment) -> bool:
        """Whether it is newer than what is here; then it waits to be adopted."""
        p = f.fragment
        if f.version <= self.known[p]:
            return False
        self.expect(f)
        queued = self._waiting.get(p, []) if f.payload.relative else []
        self._waiting[p] = [*queued, f]
        return True

    def start(self, versions: Sequence[int], committed: Sequence[int]) -> None:
        """A state that did not come from the syncer is being loaded: it has these versions."""
        # A change can only be added to what the syncer sent, so that has to be adopted once more.
        self.known = [max(0, version - self._relative) for version in versions]
        self.awaited = list(committed)

    def to_adopt(self) -> list[Fragment]:
        """All that waits; from here on its jobs are queued."""
        out = list(chain.from_iterable(self._waiting.values()))
        self.adopting += out
        self._waiting.clear()
        return out

    def forget(self) -> dict[int, Fragment]:
        """The state is none after all: the newest of each fragment that waited for it."""
        newest = {p: queued[-1] for p, queued in self._waiting.items()}
        self._waiting.clear()
        self.known = [0] * len(self.known)
        return newest
