"""The twin of a run whose durations are known: a simulated one that claims to be live."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands.twin import sim_options
from harness.journal import read_journal
from reports.measured import measure
from tests.harness.specs import spec_text

KILLS = "".join(
    f'[[fault]]\nkind = "kill"\nwhere = "learner-{i}"\nat_s = {at}\n' for i, at in ((1, 2), (2, 9))
)
OPTIONS = """[runtime_options]
restart_ms = [300, 300]
spawn_ms = [70, 70]
import_ms = [1500, 1500]
compile_ms = [700, 700]
latency_ms = [4, 4]
step_jitter_ms = 6
step_gap_ms = 5
load_ms = 400
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(spec without the durations, run directory that has them and claims to be live)."""
    folder = tmp_path_factory.mktemp("twin")
    spec = folder / "exp.toml"
    text = spec_text(KILLS, duration_s=16, quiet_tail_s=6)
    spec.write_text(text + OPTIONS)
    out = folder / "live"
    assert main(["run", str(spec), "--seed", "5", "--out", str(out), "--quiet"]) == 0
    spec.write_text(text)
    journal = out / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert lines[0].count('"runtime":"simulated"') == 2, "of the run and of its spec"
    lines[0] = lines[0].replace('"runtime":"simulated"', '"runtime":"process"', 1)
    journal.write_text("".join(lines))
    return spec, out


def test_durations_come_back_as_they_went_in(live: tuple[Path, Path]) -> None:
    found = sim_options(measure(read_journal(live[1] / "journal.jsonl").events))
    assert found.restart_ms == (300.0, 300.0)
    assert found.spawn_ms == (70.0, 70.0)
    assert found.import_ms == (1500.0, 1500.0)
    assert found.compile_ms == (700.0, 700.0)
    assert found.latency_ms[0] == pytest.approx(4, rel=0.1)
    assert found.step_jitter_ms == pytest.approx(6, rel=0.1)
    assert found.step_gap_ms == pytest.approx(5, rel=0.01)
    # Waiting for a fragment to come by is in it, too: less than a step.
    assert found.load_ms is not None
    assert 395 <= found.load_ms <= 500


def test_twins_agree(
    live: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, run = live
    given = ["twin", str(spec), "--live", str(run), "--out", str(tmp_path / "t")]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "live and simulated twin AGREE" in said
    assert "1,500.0 ms" in said
    report = json.loads((tmp_path / "t" / "simulated" / "report.json").read_text())
    assert report["run"]["seed"] == 5
    # compare tells the same of the two directories.
    assert main(["compare", str(run), str(tmp_path / "t" / "simulated")]) == 0
    assert "live and simulated twin AGREE" in capsys.readouterr().out


def test_a_twin_with_wrong_durations_disagrees(
    live: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, run = live
    # The same faults, but units that take six seconds more to come back: goodput falls.
    slow = tmp_path / "exp.toml"
    slow.write_text(spec.read_text() + "[runtime_options]\nrestart_ms = [6000, 6000]\n")
    out = tmp_path / "slow"
    assert main(["run", str(slow), "--seed", "5", "--out", str(out), "--quiet"]) in (0, 1)
    main(["compare", str(run), str(out)])
    assert "live and simulated twin DISAGREE" in capsys.readouterr().out


def test_json_is_one_object(
    live: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, run = live
    given = ["twin", str(spec), "--live", str(run), "--out", str(tmp_path / "t"), "--json"]
    assert main(given) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["ok"] is True
    assert value["twin"]["victims"] == []


def test_a_run_of_something_else_is_refused(
    live: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["twin", "kill-one", "--live", str(live[1]), "--out", str(tmp_path / "t")]
    assert main(given) == 2
    assert "is a run of 'exp', not of 'kill-one'" in capsys.readouterr().err


def test_a_run_that_proves_nothing_decides_nothing(
    live: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut"
    cut.mkdir()
    text = (live[1] / "journal.jsonl").read_text().splitlines(keepends=True)
    (cut / "journal.jsonl").write_text("".join(text[: len(text) // 2]))
    given = ["twin", str(live[0]), "--live", str(cut), "--out", str(tmp_path / "t")]
    assert main(given) == 4
    assert "the live run proves nothing: harness-error" in capsys.readouterr().err
