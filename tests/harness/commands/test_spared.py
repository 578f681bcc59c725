"""Whom a fault leaves out is told before the run and in its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.__main__ import main
from harness.events import RunStarted
from harness.journal import read_journal
from tests.harness.specs import spec_text

SAID = (
    'f1: where = "all" leaves out learner-0, learner-1, learner-2: lose_checkpoint cannot apply: '
    "it keeps no durable state that its restart needs; only syncer can be hit"
)


@pytest.mark.parametrize(
    ("kind", "told"), [("lose_checkpoint", (SAID,)), ("kill", ()), ("straggle", ())]
)
def test_units_that_keep_nothing_are_named_as_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, told: tuple[str, ...]
) -> None:
    """``where = "all"`` hit the syncer alone, and nothing said so."""
    more = "factor = 2.0\n" if kind == "straggle" else ""
    path = tmp_path / "a.toml"
    path.write_text(
        spec_text(f'[[fault]]\nkind = "{kind}"\nwhere = "all"\nat_s = 1\n{more}', duration_s=4)
    )
    out = tmp_path / "out"
    main(["run", str(path), "--seed", "1", "--quiet", "--out", str(out)])
    said = capsys.readouterr().out
    (run,) = [e for e in read_journal(out / "journal.jsonl").events if isinstance(e, RunStarted)]
    assert run.notes == told
    before, _, _ = said.partition("a: ")
    assert [line.removeprefix("note: ") for line in before.splitlines()[2:]] == list(told)
    assert ("leaves out" in (out / "summary.md").read_text()) == bool(told)


def test_rows_of_a_mix_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        '[[fault]]\nwhere = "all"\nat_s = 1\nname = "storm"\n'
        '[[fault.mix]]\ncomponent = "disk"\ncount = 1\nkind = "torn_write"\n'
        '[[fault.mix]]\ncomponent = "cpu"\ncount = 1\nkind = "kill"\n'
    )
    path = tmp_path / "a.toml"
    path.write_text(spec_text(rows, duration_s=4))
    main(["run", str(path), "--seed", "1", "--quiet", "--out", str(tmp_path / "out")])
    notes = [li for li in capsys.readouterr().out.splitlines() if li.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith('note: storm, disk: where = "all" leaves out learner-0, ')
