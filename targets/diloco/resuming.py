"""From an earlier run's checkpoints to what a new run's units go on from.

    RUN/checkpoints/UNIT/MARKER/...      see ``targets.diloco.checkpoints``

The newest complete checkpoint whose syncer part is sound is taken. A learner whose part is
missing or damaged, or that was omitted, goes through recovery like any newcomer, and that is said;
without a sound syncer part there is nothing to go on from, and that is an error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from targets.diloco.checkpointing import Counters
from targets.diloco.checkpoints import (
    FORMAT,
    CheckpointError,
    Checkpoints,
    FileCheckpoints,
    InFlight,
    Manifest,
    Part,
)
from targets.diloco.messages import Push, Report
from targets.diloco.snapshots import Seam
from targets.diloco.storage import Store

FOLDER = "checkpoints"
"""Below a run's directory."""


class CannotResume(Exception):
    """Nothing to go on from; ``problems`` has every reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(problems))


@dataclass(frozen=True)
class Resumption:
    """What a new run goes on from."""

    run: str
    marker: int
    syncer: Part
    learners: dict[str, Part]
    in_flight: InFlight
    lives: dict[str, int]
    """Learner to the lives that it had before the first one here, as its data counts them."""
    notes: list[str] = field(default_factory=list)
    """What is not as it should be, though the run goes on."""

    def seam(self) -> Seam:
        """What the syncer's node needs of it."""
        return seam_of(self.syncer, self.learners, self.in_flight, self.lives)


def seam_of(
    syncer: Part, learners: Collection[str], in_flight: InFlight, lives: Mapping[str, int]
) -> Seam:
    """What the syncer's node goes on from; ``learners`` are those that go on from their parts."""
    state = syncer.state
    merged = {name: state["merged"][name] for name in sorted(learners) if name in state["merged"]}
    fragments = []
    for p, saved in enumerate(state["fragments"]):
        rows = {n: [1, row["through"][p], row["contributed"][p]] for n, row in merged.items()}
        fragments.append({**saved, "merged": rows, "digest": syncer.payloads[p][0].digest})
    messages: dict[str, list[Report | Push]] = {}
    for name, message in in_flight:
        if name in learners:
            again = msgspec.structs.replace(message, incarnation=1)
            messages.setdefault(name, []).append(again)
    return Seam(
        run=syncer.run,
        marker=syncer.marker,
        fragments=tuple(fragments),
        merged_through={name: tuple(row["through"]) for name, row in merged.items()},
        positions={name: row["position"] for name, row in merged.items()},
        in_flight={name: tuple(found) for name, found in sorted(messages.items())},
        lives=dict(lives),
        digests={f"fragment-{p}": f[0].digest for p, f in enumerate(syncer.payloads)},
    )


def find(
    stores: dict[str, Checkpoints], syncer: str, learners: Sequence[str], layout: str
) -> Resumption:
    """The newest complete checkpoint that is sound, from each unit's store.

    Raises :class:`CannotResume` naming what is wrong with every checkpoint there is.
    """
    own = stores.get(syncer)
    markers = own.markers(sealed=True) if own is not None else ()
    if own is None or not markers:
        begun = len(own.markers()) if own is not None else 0
        why = f"{begun} were begun and none was completed" if begun else "there is none"
        raise CannotResume([f"no complete checkpoint: {why}"])
    problems: list[str] = []
    for marker in reversed(markers):
        try:
            manifest, in_flight = own.sealed(marker)
            part = _sound(own, marker, syncer, manifest, layout)
        except CheckpointError as error:
            problems.append(f"checkpoint {marker}: {error}")
            continue
        notes = [f"{problem}; the one before it is used" for problem in problems]
        return _with_learners(stores, learners, manifest, part, in_flight, notes)
    raise CannotResume(problems)


def _with_learners(
    stores: dict[str, Checkpoints],
    learners: Sequence[str],
    manifest: Manifest,
    syncer: Part,
    in_flight: InFlight,
    notes: list[str],
) -> Resumption:
    found: dict[str, Part] = {}
    lives: dict[str, int] = {}
    for name in learners:
        lives[name] = syncer.state["lives"].get(name, 0)
        store = stores.get(name)
        if name in manifest.omitted:
            notes.append(f"{name} has no part ({manifest.omitted[name]}): it recovers from a peer")
            continue
        if name not in manifest.members:
            notes.append(f"{name} was no learner of that run: it recovers from a peer")
            continue
        try:
            if store is None:
                raise CheckpointError("its directory is missing")
            part = _sound(store, manifest.marker, name, manifest, syncer.layout)
        except CheckpointError as error:
            notes.append(f"{name}'s part is not used ({error}): it recovers from a peer")
            continue
        found[name] = part
        lives[name] = msgspec.convert(part.state, Counters).life - 1
    gone = sorted(set(manifest.members) - {syncer.unit, *learners})
    notes += [f"{name} has a part and is no learner of this run: left out" for name in gone]
    return Resumption(manifest.run, manifest.marker, syncer, found, in_flight, lives, notes)


def _sound(store: Checkpoints, marker: int, unit: str, manifest: Manifest, layout: str) -> Part:
    """The unit's part, if it is the one that the manifest names. Raises ``CheckpointError``."""
    part = store.load(marker)
    if max(part.format, manifest.format) > FORMAT:
        raise CheckpointError(f"{unit}'s part has format {part.format}, this version {FORMAT}")
    if part.layout != layout:
        raise CheckpointError(f"{unit}'s part is of another parameter layout or seed")
    if (part.unit, part.run) != (unit, manifest.run) or part.digest() != manifest.members.get(unit):
        raise CheckpointError(f"{unit}'s part is of another snapshot or run")
    return part


TRAINING = ("trainer", "inner_lr", "warmup_steps", "horizon_steps")
"""Parameters without which a learner's part is not the state that it was."""


def params_of(directory: Path) -> dict[str, Any]:
    """The target's parameters that the run in ``directory`` was given; empty when it does not say:
    then the parts themselves say whether they fit."""
    try:
        told = json.loads((directory / "spec.resolved.json").read_bytes())["target"]["params"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}


def changed(earlier: Any, now: Any) -> list[str]:
    """Which of :data:`TRAINING` are other ones in two sets of parameters, as sentences."""
    return [
        f"{name} was {getattr(earlier, name)!r} and is {getattr(now, name)!r} here: what units "
        "hold would be another state"
        for name in TRAINING
        if getattr(earlier, name) != getattr(now, name)
    ]


def file_stores(directory: Path) -> dict[str, Checkpoints]:
    """The checkpoints of every unit of the run in ``directory``, by unit."""
    folder = directory / FOLDER
    if not folder.is_dir():
        return {}
    return {p.name: FileCheckpoints(p) for p in sorted(folder.iterdir()) if p.is_dir()}


def fill_store(store: Store, syncer: Part) -> None:
    """Put the syncer's outer state where its worker looks for versions; again, after a death."""
    import numpy as np

    for p, version in enumerate(syncer.state["versions"]):
        if version and not store.versions(p):
            flats = [np.frombuffer(payload.data, "<f4").copy() for payload in syncer.payloads[p]]
            theta, momentum, *sent = flats
            store.save(p, version, theta, momentum, sent[0] if sent else None)


def fill_memory(memory: dict[tuple[int, int], str], syncer: Part) -> None:
    """As :func:`fill_store`, for a trainer without arithmetic."""
    for p, version in enumerate(syncer.state["versions"]):
        if version:
            memory.setdefault((p, version), syncer.payloads[p][0].digest)


# --- what a real unit is told, as JSON values ---------------------------------------------------


def unit_config(resumption: Resumption, directory: Path, unit: str) -> dict[str, Any]:
    """What ``unit`` is told of the checkpoint in the run ``directory``; see the readers below."""
    told: dict[str, Any] = {"lives": resumption.lives}
    if unit in (resumption.syncer.unit, *resumption.learners):
        told["directory"] = str((directory / FOLDER).resolve() / unit)
        told["marker"] = resumption.marker
        told["learners"] = sorted(resumption.learners)
    return told


def part_told(told: Mapping[str, Any]) -> Part | None:
    """The unit's part with its arrays; None for one that has none. Raises ``CheckpointError``."""
    if "directory" not in told:
        return None
    return FileCheckpoints(Path(told["directory"])).load(told["marker"])


def seam_told(told: Mapping[str, Any], part: Part) -> Seam:
    """The syncer's seam; ``part`` is its own. Raises ``CheckpointError``."""
    _, in_flight = FileCheckpoints(Path(told["directory"])).sealed(told["marker"])
    return seam_of(part, told["learners"], in_flight, told["lives"])
