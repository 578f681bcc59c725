"""A memory limit that ends a process, on this machine's control groups where it has any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ControlError
from harness.runtimes.cgroups import Controller, _candidates
from harness.runtimes.memory import MemoryGroup, Squeeze, find_memory

FOUND = find_memory()


def test_the_memory_controller_is_found_by_its_name() -> None:
    text = "30 20 0:25 / /cg/memory rw - cgroup cgroup rw,memory\n"
    text += "31 20 0:26 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
    own = "4:memory:/job\n2:cpu:/job\n"
    assert list(_candidates(text, own, "memory")) == [Controller(Path("/cg/memory/job"), 1)]


@pytest.mark.parametrize(
    ("version", "limit", "none", "count"),
    [
        (1, "memory.limit_in_bytes", "-1", "memory.oom_control"),
        (2, "memory.max", "max", "memory.events"),
    ],
)
def test_files_of_both_versions(
    tmp_path: Path, version: int, limit: str, none: str, count: str
) -> None:
    group = MemoryGroup(Controller(tmp_path, version), "run", "learner-0")
    (group.path / count).write_text("oom_kill_disable 0\noom_kill 2\n")
    group.limit(1 << 20)
    assert (group.path / limit).read_text() == str(1 << 20)
    group.limit(None)
    assert (group.path / limit).read_text() == none
    assert group.kills() == 2
    (group.path / count).unlink()
    with pytest.raises(ControlError, match="cannot read"):
        group.kills()


@pytest.mark.live
@pytest.mark.skipif(FOUND is None, reason="no control group with a memory limit can be made here")
def test_the_kernel_ends_the_process_and_not_the_ballast() -> None:
    assert FOUND is not None
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    squeeze = Squeeze(MemoryGroup(FOUND, f"test-{os.getpid()}", "sleeper"), os.environ)
    try:
        squeeze.prepare()
        squeeze.press(sleeper.pid)
        assert sleeper.wait(30) == -9
        assert squeeze.group.kills() >= 1
    finally:
        sleeper.kill()
        sleeper.wait()
        squeeze.close()
        squeeze.group.remove()
    assert not squeeze.group.path.exists()
