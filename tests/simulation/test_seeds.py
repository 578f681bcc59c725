"""Drawn experiments raise no alarm; every experiment that once did stays in ``found/``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.fuzz.act import perform
from harness.fuzz.draw import draw
from reports.violations import Violation, judge

FOUND = sorted((Path(__file__).parent / "found").glob("*.toml"))
"""Each begins with a comment that says which check complained, and about what."""


def alarms(table: dict[str, Any], seed: int, *, twice: bool = False) -> list[Violation]:
    """What is wrong with the run; ``twice`` also compares the bytes of two runs."""
    ran = perform(table, seed)
    again = twice and perform(table, seed).journal != ran.journal
    return [*judge(ran), *([Violation("determinism", "two runs differ")] if again else [])]


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_clean_seeds(first: int) -> None:
    for seed in range(first, first + 25):
        assert alarms(draw(seed), seed, twice=seed % 20 == 0) == [], f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200, 1000, 100))
def test_a_thousand_clean_seeds(first: int) -> None:
    for seed in range(first, first + 100):
        assert alarms(draw(seed), seed) == [], f"seed {seed}"


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_fixed(path: Path) -> None:
    text = path.read_text()
    table = tomllib.loads(text)
    assert alarms(table, table["seed"]) == [], text.splitlines()[0]
