"""What the syncer remembers about each learner: its session, its life, and what of it is merged."""

from __future__ import annotations

from collections.abc import Sequence

from targets.diloco.liveness import NEVER, Link
from targets.diloco.params import DilocoParams

UNKNOWN = -1
"""The version of a fragment that a learner is not known to hold."""


class Peer:
    """One learner as the syncer knows it."""

    __slots__ = (
        "awaiting",
        "away",
        "contributed",
        "fresh",
        "greeted",
        "holds",
        "incarnation",
        "link",
        "merged_through",
        "name",
        "position",
        "reading",
        "training",
        "wanted",
    )

    def __init__(self, name: str, params: DilocoParams) -> None:
        self.name = name
        self.link = Link(name, params)
        self.away = "never connected"
        """Why there is no link, while there is none."""
        self.incarnation = 0
        """The newest life that said hello; older ones are fenced off. Outlives the session."""
        self.merged_through = [0] * params.fragments
        """Per fragment, the last local step of this life whose tokens were merged."""
        self.contributed = [0] * params.fragments
        """Per fragment, the newest version that this life had a part in."""
        self.position = -1
        """The last local step reported by this life."""
        self.end_session("never connected")

    def end_session(self, why: str) -> None:
        """The connection is gone; what is known about the life stays."""
        self.link.up = False
        self.away = why
        self.greeted = False
        self.training = False
        """Whether it holds state and steps; those are whom a grace window waits for."""
        self.awaiting = False
        """A newcomer whose state has not been sent; broadcasts would reach it too early."""
        self.wanted: set[int] = set()
        """Fragments to be sent once the worker has read them."""
        self.reading = 0
        """Reads for this learner that the worker has not finished."""
        self.fresh = False
        self.holds = [UNKNOWN] * len(self.merged_through)
        """Per fragment, the version it was sent last or said that it holds: what a broadcast may
        be a change of."""

    def begin_life(self, incarnation: int) -> None:
        """A newer life than any before: nothing of it is merged yet."""
        self.incarnation = incarnation
        self.merged_through = [0] * len(self.merged_through)
        self.contributed = [0] * len(self.contributed)
        self.position = -1


class Roster:
    """All learners of the run, in the order in which sums and sends go (by name)."""

    def __init__(self, names: Sequence[str], params: DilocoParams) -> None:
        self.peers = tuple(Peer(name, params) for name in sorted(names))
        self.by_name = {peer.name: peer for peer in self.peers}

    def fresh(self) -> int:
        """How many reported since the open step opened, and are connected."""
        return sum([peer.fresh for peer in self.peers])

    def training(self) -> int:
        """How many are connected and stepping."""
        return sum([peer.training for peer in self.peers])

    def due_ns(self) -> int:
        """When the liveness of some link needs a look."""
        return min([peer.link.due_ns() for peer in self.peers], default=NEVER)

    def donors(self, newcomer: str) -> tuple[str, ...]:
        """Learners that could hand their inner state to ``newcomer``."""
        return tuple(p.name for p in self.peers if p.training and p.name != newcomer)
