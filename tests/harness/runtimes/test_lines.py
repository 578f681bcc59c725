"""Unit output to events: rebasing, torn lines, strays, and lines a unit has no right to."""

from __future__ import annotations

import io

from harness import events
from harness.runtimes.lines import LINE_BYTES_MAX, UnitLines


def step(t_ns: int, unit: str = "learner-0") -> events.Step:
    return events.Step(
        t_ns=t_ns, unit=unit, incarnation=1, step=3, began_at_ns=t_ns - 50, tokens=64
    )


def lines(log: io.BytesIO) -> UnitLines:
    return UnitLines("learner-0", epoch_ns=1_000, log=log)


def test_events_come_out_on_the_clock_of_the_run_whatever_the_chunks() -> None:
    text = events.encode(step(1_100)) + events.encode(step(1_200))
    for cut in range(len(text)):
        log = io.BytesIO()
        split = lines(log)
        found = split.feed(text[:cut]) + split.feed(text[cut:])
        split.end()
        assert found == [step(100), step(200)]
        assert log.getvalue() == b""


def test_everything_that_is_no_event_is_kept_in_the_log() -> None:
    log = io.BytesIO()
    split = lines(log)
    assert split.feed(b"warming up\n{'event'}\n" + b'{"event":"step","t_ns":"x"}\n') == []
    assert log.getvalue().startswith(b"warming up\n{'event'}\n[unreadable event: ")


def test_a_torn_last_line_is_logged_and_makes_no_event() -> None:
    log = io.BytesIO()
    split = lines(log)
    assert split.feed(events.encode(step(1_100))[:-9]) == []
    split.end()
    assert log.getvalue().startswith(b'[torn line] {"event":"step"')


def test_a_unit_speaks_for_itself_only() -> None:
    log = io.BytesIO()
    split = lines(log)
    forged = events.FaultExecuted(t_ns=1_100, fault="f1", kind="kill", unit="learner-0")
    assert split.feed(events.encode(step(1_100, "learner-1")) + events.encode(forged)) == []
    assert log.getvalue().count(b"[not this unit's to say]") == 2


def test_an_unknown_kind_of_this_unit_is_kept() -> None:
    found = lines(io.BytesIO()).feed(b'{"event":"brand_new","t_ns":1500,"unit":"learner-0"}\n')
    assert found == [events.Unknown(t_ns=500, kind="brand_new", fields={"unit": "learner-0"})]


def test_an_endless_line_does_not_fill_the_memory() -> None:
    log = io.BytesIO()
    split = lines(log)
    for _ in range(3):
        split.feed(b"x" * (LINE_BYTES_MAX // 2 + 1))
    assert len(log.getvalue()) > LINE_BYTES_MAX
