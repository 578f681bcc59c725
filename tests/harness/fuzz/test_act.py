"""A run in memory is the run that the file would hold."""

from __future__ import annotations

from pathlib import Path

import harness.runner
from harness.compose import check, compose
from harness.fuzz.act import perform
from harness.fuzz.draw import draw
from harness.rundir import RunDir
from harness.spec import read_table


def test_the_journal_in_memory_has_the_bytes_of_the_file(tmp_path: Path) -> None:
    table = draw(4)
    draft = read_table({**table, "runtime": "simulated"}, "fuzz", "", gates={})
    experiment = compose(check(draft, 4), run="fuzz", directory=tmp_path)
    harness.runner.run(experiment, RunDir(tmp_path))
    assert (tmp_path / "journal.jsonl").read_bytes() == perform(table, 4).journal
