"""What is damaged of a dead unit's files, and what is spared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from faults.base import Damage
from harness.errors import ControlError
from harness.runtimes.state_files import damage
from targets.diloco.storage import FragmentStore, StateDamaged
from targets.unit_files import StateDir


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The state of a syncer that lived: records, arrays, a snapshot for later runs."""
    state = StateDir(tmp_path)
    state.take_lease()
    state.next_incarnation()
    store = FragmentStore(tmp_path / "fragments", "layout")
    for version in (1, 2, 3):
        array = np.full(64, version, np.float32)
        store.save(0, version, array, array)
        state.save("fragment/0", {"version": version})
    part = tmp_path / "checkpoints" / "00000008" / "fragment-000.safetensors"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 64)
    for age, path in enumerate(sorted(tmp_path.rglob("*.*"), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, ns=(age, age))
    return tmp_path


def test_what_is_lost_is_all_but_the_counter_of_lives(
    unit: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("snapshots")
    (elsewhere / "00000016").mkdir()
    (elsewhere / "00000016" / "part.json").write_text("{}")
    assert "1 files removed of its snapshots" in damage(unit, "lose", 0, elsewhere)
    assert list(elsewhere.iterdir()) == []
    left = {path.name for path in unit.rglob("*") if path.is_file()}
    assert left == {"incarnation", "lease", "lock"}
    again = StateDir(unit)
    assert (again.next_incarnation(), again.load()) == (2, {})


def test_a_torn_write_cuts_the_newest_record_and_it_is_noticed(unit: Path) -> None:
    said = damage(unit, "tear")
    assert "saved-" in said
    state = StateDir(unit)
    assert state.load() == {"fragment/0": {"version": 2}}
    assert list(state.damaged) == ["fragment/0"]


def test_flipped_bits_hit_the_newest_arrays_and_it_is_noticed(unit: Path) -> None:
    assert "fragment-000-v00000003.safetensors" in damage(unit, "flip")
    store = FragmentStore(unit / "fragments", "layout")
    with pytest.raises(StateDamaged, match="v00000003"):
        store.load(0, 3, 64)
    assert store.load(0, 2, 64)[0][0] == 2, "the version before is whole"
    assert (
        unit / "checkpoints" / "00000008" / "fragment-000.safetensors"
    ).read_bytes() == b"x" * 64


def test_arrays_that_nobody_will_read_are_not_worth_a_flip(unit: Path) -> None:
    """The unit died between an array and its record: the next life begins with the one before."""
    array = np.full(64, 4, np.float32)
    FragmentStore(unit / "fragments", "layout").save(0, 4, array, array)
    assert "fragment-000-v00000003.safetensors" in damage(unit, "flip")


def test_damage_that_comes_twice_does_not_undo_itself(unit: Path) -> None:
    for nth in (1, 2):
        damage(unit, "flip", nth)
    with pytest.raises(StateDamaged):
        FragmentStore(unit / "fragments", "layout").load(0, 3, 64)


def test_records_are_flipped_where_there_are_no_arrays(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    for step in (4, 5):
        state.save("step", step)
    assert "saved-" in damage(tmp_path, "flip")
    assert StateDir(tmp_path).load() == {"step": 4}


@pytest.mark.parametrize("how", ["flip", "tear"])
def test_where_nothing_was_written_nothing_is_damaged(tmp_path: Path, how: Damage) -> None:
    StateDir(tmp_path).next_incarnation()
    assert damage(tmp_path, how) == "nothing was written that could be damaged"
    assert StateDir(tmp_path).next_incarnation() == 2


def test_what_cannot_be_changed_is_said(unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, length: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "truncate", refuse)
    with pytest.raises(ControlError, match=r"cannot damage the state.*not permitted"):
        damage(unit, "tear")
