"""CPU groups: finding a place, quotas, and what version 2 would be told (on plain files)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.errors import ControlError
from harness.runtimes.cgroups import CpuController, CpuGroup, _candidates, find_controller


def mounts(root: Path, kind: str, options: str, inside: str = "/") -> str:
    return f"30 20 0:25 {inside} {root} rw,relatime - {kind} {kind} {options}\n"


def test_version_1_is_found_by_its_controller() -> None:
    text = mounts(Path("/cg/cpu,cpuacct"), "cgroup", "rw,cpu,cpuacct") + mounts(
        Path("/cg/memory"), "cgroup", "rw,memory"
    )
    own = "4:memory:/job\n2:cpu,cpuacct:/job\n"
    assert list(_candidates(text, own)) == [CpuController(Path("/cg/cpu,cpuacct/job"), 1)]


def test_a_container_sees_its_own_group_as_the_root() -> None:
    text = mounts(Path("/cg/cpu"), "cgroup", "rw,cpu", inside="/docker/abc")
    assert list(_candidates(text, "2:cpu:/docker/abc\n")) == [CpuController(Path("/cg/cpu"), 1)]


def test_version_2_tries_the_own_group_and_its_parent() -> None:
    found = list(_candidates(mounts(Path("/cg"), "cgroup2", "rw"), "0::/user/session\n"))
    assert found == [
        CpuController(Path("/cg/user/session"), 2),
        CpuController(Path("/cg/user"), 2),
    ]


def test_nowhere_is_none(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("")
    (tmp_path / "own").write_text("1:name=systemd:/\n0::/\n")
    assert find_controller(tmp_path / "mounts", tmp_path / "own") is None
    assert find_controller(tmp_path / "missing", tmp_path / "own") is None


def test_a_plain_directory_is_no_controller(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(mounts(tmp_path, "cgroup2", "rw"))
    (tmp_path / "own").write_text("0::/\n")
    before = sorted(os.listdir(tmp_path))
    assert find_controller(tmp_path / "mounts", tmp_path / "own") is None
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.2, "2000 10000"), (2, "20000 10000"), (0.01, "1000 100000"), (None, "max 10000")],
)
def test_version_2_is_told_quota_and_period(tmp_path: Path, share: float | None, told: str) -> None:
    group = CpuGroup(CpuController(tmp_path, 2), "r", "u")
    group.share(share)
    assert (group.path / "cpu.max").read_text() == told


@pytest.mark.parametrize("share", [0, -1, 0.0001, 5000, float("nan")])
def test_a_share_that_cannot_be_is_refused(tmp_path: Path, share: float) -> None:
    group = CpuGroup(CpuController(tmp_path, 2), "r", "u")
    with pytest.raises(ValueError, match=r"between .* and 1024"):
        group.share(share)


def test_the_real_kernel_takes_it(tmp_path: Path) -> None:
    controller = find_controller()
    if controller is None:
        pytest.skip("no CPU control group can be made here")
    group = CpuGroup(controller, f"test-{os.getpid()}", tmp_path.name)
    try:
        group.add(2**22 - 1)  # gone: nothing to move
        for share in (0.5, 0.01, 3, None):
            group.share(share)
    finally:
        group.remove()
    group.remove()
    assert not group.path.exists()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ControlError, match="cannot make cgroup"):
        CpuGroup(CpuController(tmp_path / "file", 1), "r", "u")
