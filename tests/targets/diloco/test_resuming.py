"""Real units: the whole cluster is killed at once, and a new one goes on from the checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.events import Checkpointed, Joined, Merged, Resumed, SnapshotComplete, Step
from targets.diloco import resuming
from targets.diloco.target import create
from tests.targets.diloco.cluster import Cluster, cluster

UNITS = ("syncer", "learner-0", "learner-1")


def params(**more: Any) -> dict[str, Any]:
    return {"checkpoint_every": 12, "scripted_elements": 300, **more}


def keeping(found: Cluster, home: Path, told: dict[str, Any] | None = None) -> None:
    """Start every unit, its parts of checkpoints going where a run keeps them."""
    for unit in UNITS:
        folder = str(home / resuming.FOLDER / unit)
        config = {"resume": told[unit]} if told is not None else {}
        found.start(unit, checkpoint_dir=folder, config=config)


def merges_beyond(running: Cluster, count: int) -> Callable[[], bool]:
    return lambda: len(running.events("syncer", Merged)) > count


def test_a_killed_cluster_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with cluster(first, (), **params()) as running:
        keeping(running, first)
        running.until(
            "two complete checkpoints",
            lambda: len(running.events("syncer", SnapshotComplete)) >= 2,
        )
        for unit in UNITS:  # no grace: whatever is being written is torn
            running.processes[unit].send_signal(signal.SIGKILL)
        for unit in UNITS:
            running.wait(unit)
        written = {
            (unit, c.marker): c for unit in UNITS for c in running.events(unit, Checkpointed)
        }

    layout = create(running.params, 7).layout_digest
    found = resuming.find(resuming.file_stores(first), "syncer", list(UNITS[1:]), layout)
    told = {unit: resuming.unit_config(found, first, unit) for unit in UNITS}
    marker = found.marker

    with cluster(second, (), **params()) as running:
        keeping(running, second, told)
        running.until("merges of the second run", merges_beyond(running, 5))
        running.until("a checkpoint of its own", lambda: running.events("syncer", SnapshotComplete))
        for unit in UNITS:
            (resumed,) = running.events(unit, Resumed)
            part = written[unit, marker]
            assert (resumed.marker, resumed.step) == (marker, part.step)
            assert (resumed.versions, resumed.digests) == (part.versions, part.digests)
        merges = running.events("syncer", Merged)
        assert min(m.clock for m in merges) == marker + 1
        versions = written["syncer", marker].versions
        for fragment, version in enumerate(versions):
            assert min(m.version for m in merges if m.fragment == fragment) == version + 1
        for unit in UNITS[1:]:
            assert running.events(unit, Joined)[0].source == "checkpoint"
            assert running.events(unit, Step)[0].step == written[unit, marker].step + 1


def test_a_later_life_does_not_go_on_from_the_part_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with cluster(first, (), **params()) as running:
        keeping(running, first)
        running.until("a checkpoint", lambda: running.events("syncer", SnapshotComplete))
        layout = create(running.params, 7).layout_digest
        for unit in UNITS:
            running.stop(unit)
    found = resuming.find(resuming.file_stores(first), "syncer", list(UNITS[1:]), layout)
    told = {unit: resuming.unit_config(found, first, unit) for unit in UNITS}
    with cluster(second, (), **params()) as running:
        keeping(running, second, told)
        running.until("merges", merges_beyond(running, 5))
        for unit in ("learner-1", "syncer"):
            before = len(running.events("syncer", Merged))
            running.stop(unit, signal.SIGKILL)
            folder = str(second / resuming.FOLDER / unit)
            running.start(unit, checkpoint_dir=folder, config={"resume": told[unit]})
            running.until("more merges", merges_beyond(running, before + 5))
        running.until("it is back", lambda: len(running.events("learner-1", Joined)) > 1)
        assert running.events("learner-1", Joined)[1].source != "checkpoint"
        assert len(running.events("syncer", Resumed)) == 1
        versions: dict[int, int] = {}
        for merge in running.events("syncer", Merged):
            assert merge.version > versions.get(merge.fragment, 0)
            versions[merge.fragment] = merge.version
