"""A journal that no run would have written is never green, whatever it claims."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import events as ev
from harness import runner
from harness.__main__ import main
from reports.build import analyse, build
from reports.history import fold
from reports.integrity import damage
from reports.schema import Verdict
from tests.reports import hand
from tests.reports.builder import (
    MS,
    SECOND,
    Cluster,
    Kill,
    Pause,
    Straggle,
    change,
    journal,
    replace,
    write,
)

Events = list[ev.AnyEvent]


def sound() -> Events:
    faults = [Kill("learner-1", 4.03, 0.4), Pause("learner-2", 5.0, 1.0)]
    return Cluster(faults=faults).events()


def verdict_of(events: Events) -> Verdict:
    return analyse(fold(journal(events))).report.verdict


def head(**fields: Any) -> Callable[[Events], Events]:
    return lambda events: change(events, ev.RunStarted, lambda e: replace(e, **fields))


def shuffled(events: Events) -> Events:
    first, *middle, last = events
    random.Random(5).shuffle(middle)
    return [first, *middle, last]


def ended_early(events: Events) -> Events:
    return [*events[:-3], events[-1], *events[-3:-1]]


def phases_swapped(events: Events) -> Events:
    at = [i for i, e in enumerate(events) if isinstance(e, ev.WindowEnded | ev.TailEnded)]
    out = list(events)
    out[at[0]], out[at[1]] = out[at[1]], out[at[0]]
    return out


def step(**fields: Any) -> Callable[[Events], Events]:
    return lambda events: change(events, ev.Step, lambda s: replace(s, **fields), 30)


def before_the_last(events: Events) -> Events:
    def early(s: ev.Step) -> ev.Step:
        return replace(s, began_at_ns=s.began_at_ns - 3 * SECOND)

    return change(events, ev.Step, early, 100)


DAMAGED: list[tuple[str, Callable[[Events], Events], str]] = [
    ("no first line", lambda e: e[1:], "lacks its first line"),
    ("first line elsewhere", lambda e: [e[1], e[0], *e[2:]], "the request is in line 2"),
    ("two first lines", lambda e: [e[0], *e], "line 2 begins another run"),
    ("schema", head(schema=2), "the journal has schema 2, this version reads 1"),
    ("no units", head(units=()), "the request names no unit"),
    ("no parameters", head(params={}), "the request holds no parameters"),
    (
        "a unit left out",
        head(units=(ev.UnitInfo(name="learner-0", role="learner"),)),
        "which the request does not name",
    ),
    ("shuffled", shuffled, "s older than the one before it"),
    ("turned round", lambda e: [e[0], *reversed(e[1:-1]), e[-1]], "not in their order"),
    ("goes on after its end", ended_early, "ends the run and"),
    ("ends twice", lambda e: [*e, e[-1]], "repeats run_ended"),
    ("phases swapped", phases_swapped, "the phases of the run are not in their order"),
    ("began after its end", step(began_at_ns=11 * SECOND), "began what had already ended"),
    ("negative amount", step(tokens=-64), "negative amount"),
    ("two steps at once", before_the_last, "began before its last one had ended"),
    ("an instant before all time", step(t_ns=-(10**15), began_at_ns=-(10**15)), "older than"),
    ("an instant after all time", step(t_ns=10**15), "older than"),
    (
        "no look for residue",
        lambda e: change(e, ev.ResidueFound, lambda _: None),
        "nobody looked for residue",
    ),
]


@pytest.mark.parametrize(
    ("break_it", "says"), [d[1:] for d in DAMAGED], ids=[d[0] for d in DAMAGED]
)
def test_each_kind_of_damage_is_a_harness_error(
    break_it: Callable[[Events], Events], says: str
) -> None:
    assert verdict_of(sound()).outcome == "passed"
    verdict = verdict_of(break_it(sound()))
    assert (verdict.outcome, verdict.exit_status) == ("harness-error", 4)
    assert [reason for reason in verdict.reasons if says in reason], verdict.reasons


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"event":"from_the_future","t_ns":1,"a":' + b"[" * 100_000,
        b'{"event":"unit_note","t_ns":1,"unit":' + b'{"a":' * 100_000,
        b"\x00\xff garbage",
        b'{"event":"step","t_ns":"soon"}',
        b'{"event":"from_the_future","t_ns":true}',
        b"{}",
        b"17",
    ],
    ids=["deep", "deep unknown", "deep known", "bytes", "wrong type", "bool", "empty", "number"],
)
def test_an_unreadable_line_is_named_and_the_gate_exits_4(line: bytes, tmp_path: Path) -> None:
    write(tmp_path, sound())
    assert main(["gate", str(tmp_path)]) == 0
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:40], line + b"\n", *lines[40:]]))
    verdict = build(tmp_path).verdict
    assert any(reason.startswith("unreadable line 41: ") for reason in verdict.reasons)
    assert main(["gate", str(tmp_path)]) == 4


def test_an_unreadable_first_line_is_no_pass(tmp_path: Path) -> None:
    write(tmp_path, sound())
    path = tmp_path / "journal.jsonl"
    data = path.read_bytes()
    path.write_bytes(b"#" + data)
    assert main(["gate", str(tmp_path)]) == 4


@pytest.mark.parametrize("name", ["decode", "read"])
def test_a_line_nested_too_deeply_is_a_value_error(name: str) -> None:
    line = b"[" * 100_000
    with pytest.raises(ValueError, match="nested too deeply"):
        ev.decode(line if name == "decode" else line.decode())


def test_sound_journals_are_sound() -> None:
    for events in (sound(), hand.journal(), Cluster(faults=[Straggle("learner-0", 3, 1)]).events()):
        assert damage(journal(events)) == []


def test_what_a_frozen_unit_writes_late_is_no_damage() -> None:
    """It may have taken an instant before it froze and write it down once it goes on."""
    events = Cluster(faults=[Pause("learner-2", 3.0, 7.0)]).events()
    thaw = next(i for i, e in enumerate(events) if isinstance(e, ev.FaultEnded))
    common: dict[str, Any] = {"t_ns": 3 * SECOND + MS, "incarnation": 1, "what": "late"}
    late = ev.UnitNote(unit="learner-2", **common)
    assert damage(journal([*events[: thaw + 1], late, *events[thaw + 1 :]])) == []
    other = ev.UnitNote(unit="learner-1", **common)
    (said,) = damage(journal([*events[: thaw + 1], other, *events[thaw + 1 :]]))
    assert "7.0 s older than the one before it" in said


def test_what_an_attached_unit_wrote_before_is_no_damage() -> None:
    first, *rest = sound()
    old = ev.UnitStarted(t_ns=-60 * SECOND, unit="syncer", incarnation=1, role="syncer")
    assert damage(journal([first, old, *rest])) == []
    at = len(rest) // 2
    assert damage(journal([first, *rest[:at], old, *rest[at:]])) != []


def test_the_schema_that_is_written_is_the_one_that_is_read() -> None:
    assert runner.SCHEMA == ev.SCHEMA
