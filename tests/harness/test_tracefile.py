"""Traces: sound ones are read, bad ones get every mistake with its line number."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from harness.spec_faults import traces
from harness.tracefile import Outage, host, parse

HEAD = "time_s,unit,event,cause\n"
SOUND = HEAD + "1,a,down,GPU\n2,b,down\n3.5,a,up\n9,c,down,fire\n9,b,up\n"


def wrong(text: str, claimed_s: float | None = None) -> list[str]:
    return parse(text, "t", claimed_s)[1]


def test_rows_become_outages() -> None:
    trace, problems = parse("# about: a test\n# licence: none\n" + SOUND, "t")
    assert problems == []
    assert trace.outages == (
        Outage("a", 1.0, 3.5, "GPU", 4),
        Outage("b", 2.0, 9.0, "", 5),
        Outage("c", 9.0, None, "fire", 7),
    )
    assert trace.units == ("a", "b", "c")
    assert trace.length_s == 9.0
    assert trace.about == {"about": "a test", "licence": "none"}
    assert trace.sha256 != parse(SOUND, "t")[0].sha256


def test_a_trace_without_causes_and_with_blank_lines() -> None:
    trace, problems = parse("time_s,unit,event\n\n0,a,down\n\n4,a,up\n", "t")
    assert problems == []
    assert trace.outages == (Outage("a", 0.0, 4.0, "", 3),)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("-4,d,down", "line 7: time_s is -4, which is negative"),
        ("4,d,down", "line 7: time_s is 4 after 9 in line 6: rows must ascend"),
        ("soon,d,down", "line 7: time_s is 'soon', which is no number"),
        ("nan,d,down", "line 7: time_s is 'nan', which is no number"),
        ("inf,d,down", "line 7: time_s is 'inf', which is no number"),
        ("9,c,down", "line 7: c goes down, yet it is down since line 5"),
        ("9,d,up", "line 7: d comes up, yet it is not down"),
        ("9,d,explode", "line 7: unknown event 'explode' (known: down, up)"),
        ("9,,down", "line 7: unit is empty"),
        ("9,d", "line 7: 2 fields where 4 are expected"),
        ("9,d,down,x,y", "line 7: 5 fields where 4 are expected"),
    ],
)
def test_each_mistake_names_its_line(row: str, said: str) -> None:
    assert wrong(SOUND) == []
    found = wrong(SOUND + row + "\n")
    assert len(found) == 1
    assert found[0].startswith(said)


def test_all_mistakes_at_once() -> None:
    found = wrong(SOUND + "-1,d,down\n8,d,down\n9,d,down\n9,e,gone\n")
    assert [f.split(":")[0] for f in found] == ["line 7", "line 10", "line 8", "line 9"]


def test_nothing_to_read() -> None:
    assert wrong("") == ["the trace holds no row"]
    assert wrong(HEAD) == ["the trace holds no row"]
    assert "first row must be" in wrong("unit,time_s,event\na,1,down\n")[0]


def test_a_span_that_does_not_match_its_length() -> None:
    rows = HEAD + "".join(f"{10 * i},u{i},down\n" for i in range(1, 11))
    assert wrong(rows, 100) == []
    assert wrong(rows, 110) == [], "one more gap of silence is no mistake"
    assert "rows span 100 s" in wrong(rows, 200)[0]
    assert "line 11: time_s is 100, later than length_s = 50" in wrong(rows, 50)[0]
    assert "its comment length_s = 50" in wrong("# length_s: 50\n" + rows)[0]
    assert "no number" in wrong("# length_s: 13 days\n" + rows)[0]
    assert len(wrong("# length_s: 50\n" + rows, 200)) == 2, "both claims are checked"


def test_too_many_rows_are_refused_at_once() -> None:
    rows = "".join(f"{i},u,{('down', 'up')[i % 2]}\n" for i in range(100_002))
    assert any("more than 100,000 rows" in p for p in wrong(HEAD + rows))


def test_the_same_trace_hits_the_same_units_whatever_their_number() -> None:
    ours = [f"learner-{i}" for i in range(8)]
    recorded = [f"node-{i}" for i in range(200)]
    for few, more in pairwise(range(1, 9)):
        moved = [u for u in recorded if host(u, ours[:few]) != host(u, ours[:more])]
        assert {host(u, ours[:more]) for u in moved} == {ours[few]}, "only to the new one"
    counts = [sum(host(u, ours) == name for u in recorded) for name in ours]
    assert min(counts) >= 10
    assert host("learner-3", ours) == "learner-3", "a namesake stands for itself"


@pytest.mark.parametrize("name", traces())
def test_built_in_traces_are_sound_and_say_that_they_are_synthetic(name: str) -> None:
    import harness

    folder = Path(harness.__path__[0]) / "traces"
    trace, problems = parse((folder / f"{name}.csv").read_text(), name)
    assert problems == []
    assert "ynthetic" in trace.about["about"]
    assert {"licence", "length_s"} <= set(trace.about)
