"""What outlives containers on a real engine: a tape to follow, a checkpoint to go on from, and a
state that faults damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.events import AnyEvent, FaultExecuted, ProxyChanged, ResidueFound, Resumed, UnitExited
from harness.journal import read_journal

pytestmark = [pytest.mark.docker, pytest.mark.slow]

HEAD = """title = "docker"
runtime = "docker"
duration_s = {duration_s}
quiet_tail_s = 3

[target]
name = "diloco"
params = {{ learners = 2, fragments = 2, sync_every = 4, step_time_s = 0.25, {more} }}
"""
SMALL_MODEL = "batch = 2, sequence = 32, checkpoint_every = 8"


def run(spec: Path, out: Path, *more: str) -> list[AnyEvent]:
    main(["run", str(spec), "--seed", "5", "--out", str(out), "--quiet", *more])
    events = read_journal(out / "journal.jsonl").events
    left = [e for e in events if isinstance(e, ResidueFound)]
    assert [e for e in left if e.containers or e.networks or e.volumes or e.processes] == []
    assert left, "the run did not get to its end"
    return list(events)


def test_a_run_is_followed_bit_for_bit_and_gone_on_from(tmp_path: Path) -> None:
    """The image's Python has another manual than ours: both must train on the same text."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(HEAD.format(duration_s=3, more=SMALL_MODEL))
    second.write_text(HEAD.format(duration_s=2, more=SMALL_MODEL))
    run(first, tmp_path / "one", "--replay")
    told = json.loads((tmp_path / "one" / "replay.jsonl").read_text())
    assert told.get("difference", "") == ""
    assert told["merges"] >= 4
    assert told["steps"] >= 10
    events = run(second, tmp_path / "two", "--resume", str(tmp_path / "one"))
    on = {e.unit for e in events if isinstance(e, Resumed)}
    assert on == {"syncer", "learner-0", "learner-1"}
    report = json.loads((tmp_path / "two" / "report.json").read_text())
    broken = [c for c in report["invariants"] if c["valid"] is False]
    assert broken == []


def test_state_memory_and_the_proxy_are_broken_for_real(tmp_path: Path) -> None:
    faults = (
        ("torn_write", "syncer", 1),
        ("oom", "learner-1", 3),
        ("kill_proxy", "proxy", 5),
        ("lose_checkpoint", "syncer", 7),
    )
    spec = tmp_path / "spec.toml"
    spec.write_text(
        HEAD.format(duration_s=9, more='trainer = "scripted"')
        + "".join(
            f'[[fault]]\nkind = "{kind}"\nwhere = "{where}"\nat_s = {at_s}\n'
            for kind, where, at_s in faults
        )
    )
    events = run(spec, tmp_path / "out")
    executed = [e.kind for e in events if isinstance(e, FaultExecuted)]
    assert sorted(executed) == sorted(kind for kind, _, _ in faults)
    ended = [(e.unit, e.signal) for e in events if isinstance(e, UnitExited) and e.oom]
    assert ended == [("learner-1", 9)]
    news = [e.what for e in events if isinstance(e, ProxyChanged)]
    assert news == ["the proxy ended", "the proxy was restarted", "every link restored"]
