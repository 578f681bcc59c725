"""Drawn experiments: sound, varied, and a function of the seed alone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from harness.compose import check
from harness.fuzz.draw import TAIL_S, WINDOW_S, draw
from harness.fuzz.write import to_toml, write_experiment
from harness.spec import read_table, read_text

SEEDS = range(300)


def test_every_experiment_is_sound() -> None:
    for seed in SEEDS:
        check(read_table(draw(seed), "drawn", "", gates={}), seed)


def test_the_seed_decides() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_there_is_time_to_heal() -> None:
    for seed in SEEDS:
        for fault in draw(seed)["fault"]:
            assert fault["at_s"] < WINDOW_S
    assert TAIL_S >= 20, "restarts, backoff and a cycle of fragments must fit in"


def test_everything_is_drawn_sooner_or_later() -> None:
    tables = [draw(seed) for seed in SEEDS]
    kinds = {f["kind"] for t in tables for f in t["fault"]}
    assert len(kinds) >= 16
    params = [t["target"]["params"] for t in tables]
    assert {p["learners"] for p in params} == {1, 2, 3, 4, 5, 6}
    assert any(p["quorum"] == p["learners"] > 1 for p in params)
    assert any(p.get("blocking") for p in params)
    assert {p["grace"] for p in params} == {True, False}
    assert any("syncer" in f["where"] for t in tables for f in t["fault"])


@pytest.mark.parametrize("seed", range(20))
def test_written_experiments_read_back(seed: int) -> None:
    table = draw(seed)
    text = to_toml(table, ["why: it was drawn", "two\nlines"])
    assert tomllib.loads(text) == tomllib.loads(to_toml(table))
    assert text.startswith("# why: it was drawn\n# two\n# lines\n")
    read = tomllib.loads(text)
    assert read["target"] == table["target"]
    assert read["fault"] == table["fault"]
    check(read_text(text, "file", gates={}), seed)


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "fuzz-7.toml"
    command = write_experiment(path, draw(7), 7)
    assert command == f"diloco-chaos run '{path}' --runtime simulated --seed 7"
    assert path.exists()
