"""All reports at once: a pure function of the journal's bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError
from reports.write import FILES, write_reports
from tests.reports.builder import Cluster, Cut, Kill, Pause, Straggle, write

CLUSTER = Cluster(
    learners=4,
    faults=[
        Kill("learner-0", 3.03, 0.4),
        Cut("learner-1", 4, 2),
        Straggle("learner-2", 5, 2),
        Pause("learner-3", 6, 1),
    ],
    gate={"goodput_min": 0.5, "healing_p95_s_max": 3},
)

_PROGRAM = """
import sys
from pathlib import Path
from reports.write import write_reports
write_reports(Path(sys.argv[1]))
heavy = {"jax", "grpc", "docker", "pydantic", "numpy", "flax"} & set(sys.modules)
assert not heavy, heavy
ours = {m.split(".")[0] for m in sys.modules} & {"targets", "faults", "harness", "reports"}
assert ours == {"harness", "reports"}, ours
"""


def digests(directory: Path) -> dict[str, str]:
    return {n: hashlib.sha256((directory / n).read_bytes()).hexdigest() for n in FILES}


def test_writes_every_report_and_leaves_nothing_else(tmp_path: Path) -> None:
    run = write(tmp_path / "run", CLUSTER.events())
    report = write_reports(run)
    assert sorted(p.name for p in run.iterdir()) == sorted([*FILES, "journal.jsonl"])
    assert report.run.experiment == "fake"
    assert all((run / name).stat().st_size > 500 for name in FILES)


def test_the_same_journal_gives_the_same_bytes(tmp_path: Path) -> None:
    """Twice here, in other places, and in other processes with other hash seeds."""
    run = write(tmp_path / "run", CLUSTER.events())
    write_reports(run)
    first = digests(run)
    write_reports(run)
    assert digests(run) == first
    other = write(tmp_path / "elsewhere" / "run", CLUSTER.events())
    for seed in ("1", "4242"):
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(other)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=60,
        )
        assert digests(other) == first


def test_another_journal_gives_other_bytes(tmp_path: Path) -> None:
    run = write(tmp_path / "run", CLUSTER.events())
    write_reports(run)
    first = digests(run)
    write(tmp_path / "other", Cluster(learners=4).events())
    write_reports(tmp_path / "other")
    assert not set(first.values()) & set(digests(tmp_path / "other").values())


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    run = write(tmp_path / "run", CLUSTER.events())
    # A directory in the way of a file stops root, too, which permissions do not.
    (run / "report.html.part").mkdir()
    with pytest.raises(HarnessError, match=r"cannot write .*report\.html"):
        write_reports(run)
