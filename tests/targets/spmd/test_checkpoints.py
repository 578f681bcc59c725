"""Checkpoints: whole or refused, the newest few kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from targets.spmd.checkpoints import CheckpointError, Checkpoints


def flat(value: float) -> np.ndarray:
    return np.full(100, value, np.float32)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "c")
    store.save(10, flat(1.5))
    assert Checkpoints(tmp_path / "c").load(10, 100).tobytes() == flat(1.5).tobytes()


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for step in (10, 20, 30):
        store.save(step, flat(step))
    assert store.steps() == [20, 30]


def test_what_was_rolled_back_goes_when_another_way_is_taken(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(20, flat(20))
    store.save(40, flat(40))
    store.save(30, flat(30))
    assert store.steps() == [20, 30]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: data[:-4], "damaged"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
        (lambda data: b"", "cannot be read"),
        (lambda data: b"{}\n" + data, "cannot be read"),
        (lambda data: data.replace(b'"step":10', b'"step":11'), "of step 11"),
    ],
)
def test_damage_is_noticed(tmp_path: Path, damage: object, match: str) -> None:
    store = Checkpoints(tmp_path)
    store.save(10, flat(1))
    path = tmp_path / "step-10.ckpt"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=match):
        store.load(10, 100)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(10, flat(1))
    with pytest.raises(CheckpointError, match="100 values of step 10, not 99"):
        store.load(10, 99)


def test_what_a_kill_tore_is_no_checkpoint(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    (tmp_path / "step-10.tmp").write_bytes(b"half")
    assert store.steps() == []
