"""What a crash leaves on a simulated disk."""

from __future__ import annotations

from random import Random

from harness.sim.storage import Disk, frozen_copy


class Always(Random):
    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


def test_a_synced_write_survives() -> None:
    disk = Disk()
    disk.begin("a", 1)
    disk.synced(10)
    assert disk.crash(10, Random(0)) == ""
    assert disk.saved() == {"a": 1}


def test_an_unfinished_write_leaves_the_old_value_or_the_new_one() -> None:
    for draw, value in ((0.1, 2), (0.9, 1)):
        disk = Disk()
        disk.begin("a", 1)
        disk.synced(0)
        disk.begin("a", 2)
        assert "in progress" in disk.crash(5, Always(draw))
        assert disk.saved() == {"a": value}


def test_later_changes_do_not_reach_what_was_written() -> None:
    disk, value = Disk(), {"versions": [1, 2]}
    disk.begin("a", value)
    value["versions"].append(3)
    disk.synced(0)
    disk.saved()["a"]["versions"].append(4)
    assert disk.saved() == {"a": {"versions": [1, 2]}}


def test_a_lying_disk_forgets_its_last_moments_and_nothing_older() -> None:
    disk = Disk(unsynced_ns=100)
    for now in (0, 50, 200, 250):
        disk.begin("a", now)
        disk.synced(now)
    disk.begin("b", 1)
    disk.synced(260)
    assert "lost 3 writes" in disk.crash(280, Random(0))
    assert disk.saved() == {"a": 50}


def test_messages_inside_are_shared_and_containers_are_not() -> None:
    marker = object()
    value = {"a": [(marker, [1])]}
    copy = frozen_copy(value)
    assert copy == value
    assert copy["a"][0][0] is marker
    assert copy["a"][0][1] is not value["a"][0][1]
