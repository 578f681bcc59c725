"""The plugin, run by pytest on small suites of its own, with and without workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARAMS = (
    '{"learners": 3, "trainer": "scripted", "fragments": 4, "sync_every": 4, "step_time_s": 0.1}'
)
SUITE = f"""
import pytest

@pytest.mark.chaos("kill-one", runtime="simulated", seed=3, params={PARAMS})
def test_good(chaos_run):
    assert chaos_run.report.goodput.uptime_ratio == 1.0
    assert chaos_run.history.learners

@pytest.mark.chaos("kill-one", runtime="simulated", params={{"learners": 2, "quorum": 9}})
def test_bad(chaos_run):
    raise AssertionError("never reached")

@pytest.mark.chaos(runtime="simulated", seed=3, params={PARAMS})
def test_drives(chaos_cluster):
    with chaos_cluster.fault("pause", where="learner-1") as victims:
        assert victims == ("learner-1",)
        chaos_cluster.run_for(4)
    chaos_cluster.expect_recovery(within_s=10)

@pytest.mark.chaos(runtime="simulated", seed=3, params={PARAMS})
def test_body_fails(chaos_cluster):
    with chaos_cluster.fault("pause", where="learner-1"):
        raise ValueError("the body's own reason")

@pytest.mark.chaos(runtime="simulated", seed=3, params={PARAMS})
def test_proves_nothing(chaos_cluster):
    with chaos_cluster.fault("straggle", where="learner-1", factor=1.0):
        chaos_cluster.run_for(4)

def test_plain():
    pass
"""


@pytest.fixture(scope="module", params=[(), ("-n", "2")], ids=["alone", "workers"])
def output(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints for the suite above."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--tb=short",
        "-Werror",
    ]
    command += ["-o", f"pythonpath={ROOT}", "--junitxml", str(folder / "junit.xml")]
    done = subprocess.run(
        [*command, *request.param, "test_suite.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr + (folder / "junit.xml").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "PASSED test_suite.py::test_good",
        "PASSED test_suite.py::test_drives",
        "PASSED test_suite.py::test_plain",
        "FAILED test_suite.py::test_body_fails - ValueError: the body's own reason",
        "ERROR test_suite.py::test_bad",
        "ERROR test_suite.py::test_proves_nothing",
        "quorum is 9 but there are only 2 learners",
    ],
)
def test_each_outcome_is_its_own_test_s(output: str, line: str) -> None:
    assert line in output


def test_one_bad_experiment_stops_nobody_else(output: str) -> None:
    assert "INTERNALERROR" not in output
    assert "ERROR test_suite.py::test_body_fails" not in output, "its own failure is enough"
    # test_proves_nothing passes its body and errors in teardown, so it counts twice.
    assert re.search(r"1 failed, 4 passed.*, 2 errors", output)


def test_numbers_and_reports_reach_whoever_reads_the_session(output: str) -> None:
    for name in ("chaos.outcome", "chaos.goodput_ratio", "chaos.seed", "chaos.report_path"):
        assert f'name="{name}"' in output, "properties survive workers"
    assert "chaos experiments" in output
    assert output.count("report.html") >= 4


@pytest.mark.parametrize("name", ["", "docker,moon"])
def test_an_unknown_requirement_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_x(): pass\n")
    command = [sys.executable, "-m", "pytest", "-o", f"pythonpath={ROOT}", "test_x.py"]
    done = subprocess.run(
        [*command, f"--chaos-require={name}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode == 4) == bool(name)
    assert ("unknown moon" in done.stderr + done.stdout) == bool(name)
