"""What workers do for checkpoints: write parts, seal snapshots, drop old ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from targets.diloco.checkpoints import KEPT, Checkpoints, Manifest, Part, Read, prune
from targets.diloco.messages import KeepPart, PartKept, PruneParts, SealSnapshot


@dataclass(frozen=True)
class Keeper:
    """One unit's way to its checkpoints. ``run`` and ``layout`` are those that parts are of."""

    store: Checkpoints
    unit: str
    role: str
    run: str
    layout: str

    def keep(
        self,
        job: KeepPart,
        read: Read,
        *,
        trained: int = 0,
        moments: int = 0,
        digests: Mapping[str, str] | None = None,
    ) -> PartKept:
        """Write the part whose arrays ``read`` gives. Raises ``OSError`` when the disk does."""
        part = self.store.keep(
            Part(
                unit=self.unit,
                role=self.role,
                marker=job.marker,
                incarnation=job.incarnation,
                run=self.run,
                layout=self.layout,
                state=job.state,
                trained=trained,
                moments=moments,
                digests=dict(digests or {}),
            ),
            read,
        )
        named = part.digests or {f"fragment-{f}": p[0].digest for f, p in enumerate(part.payloads)}
        return PartKept(part.nbytes, part.digest(), dict(named))

    def seal(self, job: SealSnapshot) -> tuple[int, ...]:
        """Complete the checkpoint or give it up; the markers that are worth keeping."""
        if job.members is not None:
            manifest = Manifest(
                marker=job.marker,
                run=self.run,
                layout=self.layout,
                members=job.members,
                omitted=job.omitted,
                in_flight="",
            )
            self.store.seal(manifest, job.in_flight)
        kept = self.store.markers(sealed=True)[-KEPT:]
        prune(self.store, kept, job.marker)
        return kept

    def prune(self, job: PruneParts) -> None:
        """Drop what the syncer does not need any more."""
        prune(self.store, job.keep, job.upto)


def keeper_of(keeper: Keeper | None) -> Keeper:
    """The worker's keeper; raises ``RuntimeError`` for a worker that was given none."""
    if keeper is None:
        raise RuntimeError("this unit was told no place for checkpoints")
    return keeper
