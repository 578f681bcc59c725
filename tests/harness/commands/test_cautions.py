"""Parameters that are allowed and seldom meant: told before the run, in journal and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.__main__ import main
from harness.events import RunStarted
from harness.journal import read_journal
from targets.diloco.params import DilocoParams

SPEC = """
title = "close merges"
duration_s = 4
quiet_tail_s = 4

[target]
name = "diloco"

[target.params]
learners = 3
fragments = 2
trainer = "scripted"
"""


@pytest.mark.parametrize(
    ("sync_every", "quorum", "told"),
    [(2, 1, True), (2, 2, True), (2, 3, False), (3, 1, False)],
)
def test_merges_so_close_that_a_learner_can_starve_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sync_every: int, quorum: int, told: bool
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"{SPEC}sync_every = {sync_every}\nquorum = {quorum}\n")
    out = tmp_path / "out"
    main(["run", str(path), "--seed", "1", "--quiet", "--out", str(out)])
    said = [li for li in capsys.readouterr().out.splitlines() if li.startswith("note: ")]
    (run,) = [e for e in read_journal(out / "journal.jsonl").events if isinstance(e, RunStarted)]
    if told:
        start = f"sync_every is {sync_every} and quorum is {quorum} of 3: a learner that trails"
        assert [note.startswith(f"note: {start}") for note in said] == [True]
        assert run.notes == (said[0].removeprefix("note: "),)
        assert "a learner that trails the quorum" in (out / "summary.md").read_text()
    else:
        assert (said, run.notes) == ([], ())


@pytest.mark.parametrize(
    ("blocking", "speeds", "quorum", "told"),
    [
        (True, (1.15, 0.7, 1.0), 1, True),
        (True, (1.0, 1.0, 1.0), 1, False),
        (True, (1.15, 0.7, 1.0), 3, False),
        (False, (1.15, 0.7, 1.0), 1, False),
    ],
)
def test_waiting_beside_slower_learners_is_warned_of(
    blocking: bool, speeds: tuple[float, ...], quorum: int, told: bool
) -> None:
    params = DilocoParams(learners=3, quorum=quorum, blocking=blocking, speeds=speeds)
    assert [c.startswith("blocking, quorum is 1 of 3") for c in params.cautions()] == [True] * told
