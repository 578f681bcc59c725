"""What units in containers are told of checkpoints, and what is mounted for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.events import UnitInfo
from harness.runtimes.docker_checkpoints import EARLIER, INSIDE, mounted
from targets.base import UnitSpec


def unit(**config: Any) -> UnitSpec:
    return UnitSpec(UnitInfo(name="learner-0", role="learner"), config=config)


def test_without_checkpoints_nothing_is_mounted(tmp_path: Path) -> None:
    assert mounted(unit(index=0), tmp_path, wanted=False) == ({"index": 0}, [])
    assert list(tmp_path.iterdir()) == []


def test_a_units_parts_go_below_the_run_directory(tmp_path: Path) -> None:
    config, binds = mounted(unit(index=0), tmp_path, wanted=True)
    folder = tmp_path / "checkpoints" / "learner-0"
    assert folder.is_dir()  # made by us, or it would belong to root
    assert (config, binds) == ({"index": 0}, [f"{folder}:{INSIDE}"])


def test_the_part_to_go_on_from_is_read_only(tmp_path: Path) -> None:
    told = {"directory": "/earlier/run/learner-0", "marker": 40, "lives": {}}
    before = unit(index=0, resume=told)
    config, binds = mounted(before, tmp_path, wanted=False)
    assert config["resume"] == {**told, "directory": EARLIER}
    assert binds == [f"/earlier/run/learner-0:{EARLIER}:ro"]
    assert before.config["resume"] == told


def test_a_learner_without_a_part_is_still_told_of_its_lives(tmp_path: Path) -> None:
    config, binds = mounted(unit(resume={"lives": {"learner-0": 2}}), tmp_path, wanted=False)
    assert (config["resume"], binds) == ({"lives": {"learner-0": 2}}, [])
