"""The syncer's state on disk and in memory: whole versions, the newest two, nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from targets.diloco.storage import (
    FragmentStore,
    MemoryStore,
    StateDamaged,
    StateError,
    Store,
)

Make = Callable[[], Store]


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FragmentStore(tmp_path / "f", "layout") if request.param == "disk" else MemoryStore()


def pair(value: float) -> tuple[np.ndarray, np.ndarray]:
    return np.full(3, value, np.float32), np.full(3, -value, np.float32)


def test_a_version_comes_back_and_may_be_written_to(store: Store) -> None:
    theta, buf = pair(1.5)
    store.save(0, 1, theta, buf)
    theta[:] = 9
    for _ in range(2):
        got = store.load(0, 1, 3)
        np.testing.assert_array_equal(got[0], pair(1.5)[0])
        np.testing.assert_array_equal(got[1], pair(1.5)[1])
        got[0][:] = 7


def test_the_newest_three_versions_of_each_fragment_stay(store: Store) -> None:
    for version in (1, 2, 3, 4):
        store.save(0, version, *pair(version))
    store.save(1, 1, *pair(1))
    assert store.versions(0) == [2, 3, 4]
    assert store.versions(1) == [1]
    assert store.versions(2) == []
    with pytest.raises(StateError, match="1"):
        store.load(0, 1, 3)


def test_saving_a_version_again_replaces_it(store: Store) -> None:
    store.save(0, 1, *pair(1))
    store.save(0, 1, *pair(2))
    assert store.load(0, 1, 3)[0][0] == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
@pytest.mark.parametrize("where", [0.5, 0.99])
def test_a_damaged_file_is_noticed_and_the_version_before_is_still_there(
    tmp_path: Path, damage: str, where: float
) -> None:
    store = FragmentStore(tmp_path, "layout")
    for version in (1, 2):
        store.save(0, version, np.full(500, version, np.float32), np.zeros(500, np.float32))
    path = store.path(0, 2)
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * where)] ^= 0x10
    cut = path.read_bytes()[: int(len(raw) * where)]
    path.write_bytes({"flip": bytes(raw), "cut": cut, "empty": b""}[damage])
    with pytest.raises(StateDamaged, match=path.name):
        store.load(0, 2, 500)
    assert store.load(0, 1, 500)[0][0] == 1


def test_a_later_process_finds_what_an_earlier_one_saved(tmp_path: Path) -> None:
    FragmentStore(tmp_path, "layout").save(3, 12, *pair(4))
    later = FragmentStore(tmp_path, "layout")
    assert later.versions(3) == [12]
    assert later.load(3, 12, 3)[0][0] == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    store = FragmentStore(tmp_path, "layout")
    store.save(0, 1, *pair(1))
    path = store.path(0, 1)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": whole[:-1], "empty": b"", "garbage": b"\xff" * 64}[damage])
    with pytest.raises(StateError, match=str(path)):
        store.load(0, 1, 3)


def test_state_of_another_layout_is_refused(tmp_path: Path) -> None:
    FragmentStore(tmp_path, "layout").save(0, 1, *pair(1))
    with pytest.raises(StateError, match="another parameter layout"):
        FragmentStore(tmp_path, "other").load(0, 1, 3)
    with pytest.raises(StateError, match="another parameter layout"):
        FragmentStore(tmp_path, "layout").load(0, 1, 4)


def test_a_death_before_the_rename_leaves_the_last_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FragmentStore(tmp_path, "layout")
    store.save(0, 1, *pair(1))

    def die(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            store.save(0, 2, *pair(2))
    assert FragmentStore(tmp_path, "layout").versions(0) == [1]
    store.save(0, 2, *pair(2))  # what was left behind does not stand in the way
    assert store.load(0, 2, 3)[0][0] == 2


def test_files_are_synced_before_they_get_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    rename, fsync = Path.rename, os.fsync

    def synced(handle: int) -> None:
        calls.append("fsync")
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    FragmentStore(tmp_path, "layout").save(0, 1, *pair(1))
    assert calls == ["fsync", "rename", "fsync"]
