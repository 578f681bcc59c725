"""What the syncer has committed, per fragment, and how a later life finds it again.

Arrays are the worker's; here are the numbers that go with them. A fragment's durable form, one
JSON object under ``fragment/P``, holds all that a restarted syncer needs to neither commit a
version twice nor merge a step twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from targets.diloco.evaluation import Evaluations
from targets.diloco.roster import Roster


class Committed:
    """The newest version of each of ``fragments`` fragments."""

    def __init__(self, fragments: int, roster: Roster, evaluations: Evaluations) -> None:
        self.versions = [0] * fragments
        self.steps = [0] * fragments
        """The global step at which each version was committed."""
        self.floor = [0] * fragments
        """Per fragment, the version that a damaged disk made necessary; older bases are refused."""
        self.bereft = False
        """What the worker holds is nothing that anybody should be given."""
        self._roster = roster
        self._evaluations = evaluations

    def durable(self, fragment: int, digest: str) -> dict[str, Any]:
        """What a later life needs to go on with this fragment; ``digest`` names the arrays,
        which the worker keeps under the same version."""
        return {
            "clock": self.steps[fragment],
            "version": self.versions[fragment],
            "digest": digest,
            "floor": self.floor[fragment],
            "tokens": self._evaluations.saved(fragment),
            "merged": {
                peer.name: [
                    peer.incarnation,
                    peer.merged_through[fragment],
                    peer.contributed[fragment],
                ]
                for peer in self._roster.peers
            },
        }

    def resume(self, fragment: int, saved: Mapping[str, Any]) -> None:
        """Go on from a fragment's :meth:`durable` form, with what it says of the learners."""
        self.versions[fragment] = saved["version"]
        self.steps[fragment] = saved["clock"]
        self.floor[fragment] = saved.get("floor", 0)
        self._evaluations.resume(fragment, saved)
        for name, (incarnation, through, version) in saved["merged"].items():
            peer = self._roster.by_name.get(name)
            if peer is None or incarnation < peer.incarnation:
                continue
            if incarnation > peer.incarnation:
                peer.begin_life(incarnation)
            peer.merged_through[fragment] = through
            peer.contributed[fragment] = version

    def snapshot(self, closed: int, lives_before: Mapping[str, int]) -> dict[str, Any]:
        """The syncer's part of a checkpoint at global step ``closed``; ``lives_before`` are lives
        of learners in earlier runs."""
        peers = self._roster.peers
        return {
            "step": closed,
            "versions": list(self.versions),
            "committed": list(self.steps),
            "fragments": [self.durable(p, "") for p in range(len(self.versions))],
            "merged": {
                peer.name: {
                    "incarnation": peer.incarnation,
                    "through": list(peer.merged_through),
                    "contributed": list(peer.contributed),
                    "position": peer.position,
                }
                for peer in peers
            },
            "lives": {
                peer.name: lives_before.get(peer.name, 0) + peer.incarnation for peer in peers
            },
        }
