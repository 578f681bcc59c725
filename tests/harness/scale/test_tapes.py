"""Synthetic tapes: simulated chips' failures as an experiment that maps back onto their goodput."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.scale.chips import Cluster, simulate
from harness.scale.tapes import SETTLED_S, TAIL_S, excerpt, experiment, trace
from harness.tracefile import parse
from reports.build import build

MILLION = Cluster(chips=1_200_000, learners=8)
LENGTH_S = 1800.0


def test_the_same_seed_gives_the_same_tape() -> None:
    one, other = (excerpt(MILLION, 3, LENGTH_S) for _ in range(2))
    assert one == other
    assert trace(one) == trace(other)
    assert trace(one) != trace(excerpt(MILLION, 4, LENGTH_S))


def test_the_trace_is_sound_and_holds_every_stall() -> None:
    found = excerpt(MILLION, 1, LENGTH_S)
    parsed, problems = parse(trace(found), "t")
    assert problems == []
    assert len(parsed.outages) == sum(map(len, found.stalls)) > 50
    away = sum((o.up_s or LENGTH_S) - o.down_s for o in parsed.outages)
    assert away == pytest.approx(found.stalled_s, abs=0.1)
    assert max(o.up_s or 0 for o in parsed.outages) <= LENGTH_S


def test_a_long_excerpt_has_the_clusters_goodput() -> None:
    """12 h after it settled: what the excerpt says of the chips is what the simulation says."""
    long = excerpt(MILLION, 1, 12 * 3600.0)
    assert long.goodput == pytest.approx(simulate(MILLION, 1).goodput, abs=0.006)
    assert long.goodput == pytest.approx(long.goodput_window, abs=0.002)
    assert 0.96 < long.speed < 0.98, "3 % of the slices are out in the mean"


def test_no_slices_out_and_no_stalls_are_told_apart() -> None:
    instant = Cluster(chips=1_200_000, learners=8, return_mean_s=1e-6)
    assert excerpt(instant, 1, LENGTH_S).speed == pytest.approx(1.0, abs=1e-3)
    free = Cluster(chips=1_200_000, learners=8, down_s=0.0, up_s=0.0)
    with pytest.raises(ValueError, match="no learner stalls within 1800 s"):
        excerpt(free, 1, LENGTH_S)


def test_the_experiment_says_what_to_expect() -> None:
    found = excerpt(MILLION, 1, LENGTH_S)
    table = experiment(found, "t.csv")
    assert table["target"]["params"]["speeds"] == [round(s, 6) for s in found.speeds]
    assert table["gate"]["goodput_min"] == pytest.approx(found.expected, abs=0.021)
    whole = 8 * (LENGTH_S + TAIL_S)
    assert found.expected == pytest.approx(1 - found.stalled_s / whole)


@pytest.mark.parametrize("minutes", ["5", "30"])
def test_the_printed_figures_multiply(
    minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However much of a short run is its quiet tail; where a speed varies, too."""
    path = tmp_path / "t.toml"
    told = ["simulate", "--tape", str(path), "--tape-minutes", minutes]
    assert main([*told, "--speed-cv", "0.1"]) == 0
    pattern = re.compile(r"([\d.]+)% expected of the run, times ([\d.]+).*?chips' ([\d.]+)%", re.S)
    for text in (capsys.readouterr().out, path.read_text()):
        found = pattern.search(text)
        assert found is not None, text
        run, share, chips = map(float, found.groups())
        assert run * share == pytest.approx(chips, abs=0.02)
        assert f"{minutes} minutes and a quiet tail of 40 s" in text
    short = excerpt(MILLION, 1, 300.0)
    assert short.goodput_window == pytest.approx(short.expected * short.speed, rel=1e-12)
    assert short.goodput_window > short.goodput, "nothing stalls in the tail"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--learners", "65", "--tape", "t.toml"], "at most 64 learners"),
        (["--tape", "t.json"], "must end in .toml"),
        (["--tape", "t.toml", "--tape-minutes", "0"], "length must be positive"),
        (["--tape", "t.toml", "--tape-minutes", "inf"], "at most 604800 s, got inf s"),
        (["--tape", "t.toml", "--tape-minutes", "nan"], "length must be positive"),
        (["--tape", "t.toml", "--tape-minutes", "1e9"], "at most 604800 s"),
        (["--chips", "3000", "--tape", "t.toml"], "a longer tape is needed"),
        (["--chips", "100", "--tape", "t.toml"], "need at least"),
        (["--paper", "--tape", "t.toml"], "--tape is of one cluster"),
        (["--sweep", "quorum", "--tape", "t.toml"], "--tape is of one cluster"),
    ],
)
def test_impossible_tapes(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["spec.toml", "spec.csv"])
def test_no_file_is_overwritten(
    there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run's directory holds a spec.toml."""
    (tmp_path / there).write_text("kept")
    told = ["simulate", "--tape", str(tmp_path / "spec.toml"), "--tape-minutes", "5"]
    assert main(told) == 2
    assert f"{tmp_path / there} would be overwritten" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(there, "kept")]


def test_training_on_the_tape_has_its_goodput(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real protocol under the stalls of a million chips, and its journal is a tape."""
    spec, out = tmp_path / "million.toml", tmp_path / "run"
    assert main(["simulate", "--tape", str(spec), "--tape-minutes", "10", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    more = ["--set", 'trainer="quadratic"', "--set", "scripted_elements=64", "--replay", "--quiet"]
    assert main(["run", str(spec), "--out", str(out), *more]) == 0
    report = build(out)
    assert report.goodput.ratio == pytest.approx(told["goodput_run_expected"], abs=0.005)
    chips = report.goodput.ratio * told["mean_speed"]
    assert chips == pytest.approx(told["goodput_chips_window"], abs=0.005)
    assert report.goodput.uptime_ratio == 1.0
    assert report.faults.effective == report.faults.planned == told["stalls"]
    replay = next(i for i in report.invariants if i.name == "replay")
    assert replay.valid is True


def test_an_excerpt_begins_when_slices_have_settled() -> None:
    assert 5 * MILLION.return_mean_s < SETTLED_S
