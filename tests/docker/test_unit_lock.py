"""The unit image's part of the lock: everything needed, nothing else, hashes kept."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docker" / "unit_lock.py"

LOCK = """\
# made by a tool
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via
    #   beta
    #   gamma
beta[extra]==2.0 \\
    --hash=sha256:bb
    # via diloco-chaos (pyproject.toml)
delta==4.0 \\
    --hash=sha256:dd
    # via alpha
gamma==3.0 \\
    --hash=sha256:cc
"""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_closure_follows_who_needs_whom(script: dict[str, Any]) -> None:
    found = script["entries"](LOCK)
    assert set(found) == {"alpha", "beta", "delta", "gamma"}
    assert script["needed_by"](found["alpha"]) == {"beta", "gamma"}
    assert script["closure"](found, {"beta"}) == {"beta", "alpha", "delta"}
    assert script["closure"](found, {"delta"}) == {"delta"}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_hashes_survive(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "names").write_text("# a comment\nbeta\n")
    done = run(tmp_path / "lock", tmp_path / "names")
    assert done.returncode == 0
    assert re.findall("sha256:(..)", done.stdout) == ["aa", "ab", "bb", "dd"]


def test_a_name_that_is_not_locked_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "names").write_text("beta\nomega\n")
    done = run(tmp_path / "lock", tmp_path / "names")
    assert done.returncode == 2
    assert "omega" in done.stderr
    assert not done.stdout


def test_the_real_lock_holds_all_that_units_need_and_no_tools() -> None:
    done = run(ROOT / "requirements.lock", ROOT / "docker" / "unit-requirements.txt")
    assert done.returncode == 0, done.stderr
    names = set(re.findall(r"(?m)^([a-z0-9._-]+)==", done.stdout))
    assert {"jax", "jaxlib", "numpy", "grpcio", "scipy", "msgspec"} <= names
    assert not names & {"pytest", "mypy", "ruff", "docker", "playwright", "hypothesis"}
