"""Mixes, repair times, groups, traces: what is drawn, from which stream, and how it is spread."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from faults.select import Candidate
from harness.arrivals import notes
from harness.mixes import LLAMA3
from harness.plan import Planned, make
from harness.spec import NS, read_table

UNITS = [
    Candidate("syncer", "syncer"),
    *(Candidate(f"learner-{i}", "learner", f"region-{i // 2}") for i in range(6)),
]
HEAD = {"title": "t", "duration_s": 60, "target": {"name": "diloco"}}
POISSON = {"process": "poisson", "mean_gap_s": 2.0}


def parts(*faults: Mapping[str, Any], duration_s: float = 60, base: Path | None = None) -> Any:
    draft = read_table(
        {**HEAD, "duration_s": duration_s, "fault": list(faults)}, "t", "", gates={}, base=base
    )
    assert draft.problems == ()
    return draft.faults


def planned(*faults: Mapping[str, Any], seed: int = 1, duration_s: float = 60) -> list[Planned]:
    items, problems = make(parts(*faults, duration_s=duration_s), UNITS, seed, duration_s)
    assert problems == []
    return items


def mistakes(*faults: Mapping[str, Any], base: Path | None = None) -> list[str]:
    """What the spec's reader and the plan say together."""
    draft = read_table({**HEAD, "fault": list(faults)}, "t", "", gates={}, base=base)
    found = [f for f in draft.faults if f is not None]
    return [*draft.problems, *make(found, UNITS, 1, 60)[1]]


def facts(items: list[Planned], name: str) -> list[tuple[Any, ...]]:
    return [
        (i.fault, i.kind, i.unit, i.at_ns, i.for_ns)
        for i in items
        if i.fault.partition(".")[0] == name
    ]


# --- named streams ------------------------------------------------------------------------------

STORM = {"mix": "llama3", "schedule": {**POISSON, "offenders": 0.3}}


def test_adding_a_fault_does_not_move_the_others() -> None:
    alone = planned(STORM)
    beside = planned(STORM, {"kind": "pause", "at_s": 1, "repair": {"median_s": 2}}, STORM)
    assert facts(alone, "f1") == facts(beside, "f1")
    assert [f[1:] for f in facts(beside, "f3")] != [f[1:] for f in facts(beside, "f1")]


def test_a_named_fault_is_not_moved_by_one_put_before_it() -> None:
    named = {**STORM, "name": "storm"}
    assert facts(planned(named), "storm") == facts(
        planned({"kind": "kill", "at_s": 1}, named), "storm"
    )


def test_each_question_has_a_stream_of_its_own() -> None:
    pause = {"kind": "pause", "schedule": POISSON}
    plain = planned({**pause, "for_s": 2})
    drawn = planned({**pause, "repair": {"median_s": 2}})
    assert [f[:4] for f in facts(plain, "f1")] == [f[:4] for f in facts(drawn, "f1")]
    longer = planned({**pause, "repair": {"median_s": 2}}, duration_s=120)
    assert facts(longer, "f1")[: len(drawn)] == facts(drawn, "f1")
    # With a mix the instants stay, too.
    mixed = {i.at_ns for i in planned({"mix": "llama3", "schedule": POISSON})}
    assert {i.at_ns for i in plain} <= mixed


# --- how long -----------------------------------------------------------------------------------


def test_repair_times_are_lognormal() -> None:
    repair = {"process": "lognormal", "median_s": 4.0, "sigma": 0.8}
    items = planned({"kind": "pause", "schedule": POISSON, "repair": repair}, duration_s=8000)
    logs = [math.log(i.for_ns / NS) for i in items if i.for_ns is not None]
    assert len(logs) == len(items) > 3500
    assert statistics.fmean(logs) == pytest.approx(math.log(4.0), abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.8, rel=0.04)
    thirds = statistics.quantiles(logs, n=3)
    assert thirds[1] - thirds[0] == pytest.approx(2 * 0.4307 * 0.8, rel=0.08), "normal, not uniform"


def test_a_repair_without_spread_is_its_median() -> None:
    items = planned({"kind": "pause", "at_s": 1, "repair": {"median_s": 4, "sigma": 0}})
    assert [i.for_ns for i in items] == [4 * NS]


def test_weibull_gaps_below_one_cluster() -> None:
    def cv(schedule: Mapping[str, Any]) -> float:
        items = planned({"kind": "kill", "schedule": schedule}, duration_s=8000)
        times = [i.at_ns / NS for i in items if i.at_ns is not None]
        gaps = [b - a for a, b in pairwise(times)]
        return statistics.stdev(gaps) / statistics.fmean(gaps)

    assert cv(POISSON) == pytest.approx(1.0, abs=0.06)
    # Coefficient of variation of a Weibull of shape 0.5 is sqrt(5).
    assert cv({"process": "weibull", "shape": 0.5, "mean_gap_s": 2.0}) == pytest.approx(
        math.sqrt(5), rel=0.12
    )


# --- what ---------------------------------------------------------------------------------------


def test_llama_3_has_eighteen_rows_that_add_up() -> None:
    assert len(LLAMA3) == 18
    assert sum(row["count"] for row in LLAMA3) == 419


def test_components_are_drawn_by_their_counts() -> None:
    items = planned(
        {"mix": "llama3", "schedule": {"process": "fixed", "mean_gap_s": 1}}, duration_s=8000
    )
    # A fault on several units is one arrival.
    acts = {i.fault: i.params["component"] for i in items}
    seen = Counter(acts.values())
    total = 7999
    for row in LLAMA3:
        # A crash loop and a hang before a kill are several acts of one arrival.
        twice = 2 if row["kind"] == "crash_loop" or "then" in row else 1
        expected = total * row["count"] / 419
        spread = 4 * math.sqrt(expected) * twice
        assert seen[row["component"]] == pytest.approx(expected * twice, abs=spread), row


def test_a_mix_of_one_s_own_with_a_second_act() -> None:
    mix = [
        {
            "component": "chip",
            "count": 3,
            "kind": "hang",
            "for_s": 2,
            "then": {"kind": "kill", "after_s": 2},
        }
    ]
    items = planned({"mix": mix, "at_s": 5, "where": "learner-1"})
    assert [(i.fault, i.kind, i.unit, i.at_ns, i.for_ns) for i in items] == [
        ("f1.1", "hang", "learner-1", 5 * NS, 2 * NS),
        ("f1.2", "kill", "learner-1", 7 * NS, None),
    ]
    assert {i.params["component"] for i in items} == {"chip"}


def test_lasting_members_of_a_built_in_mix_end() -> None:
    items = planned({"mix": "llama3", "schedule": POISSON}, duration_s=2000)
    assert {i.kind for i in items if i.lasting} >= {"partition", "hang", "straggle"}
    assert all((i.for_ns is not None) == i.lasting for i in items)
    ours = planned({"mix": "llama3", "schedule": POISSON, "for_s": 7}, duration_s=2000)
    assert {i.for_ns for i in ours if i.kind == "partition"} == {7 * NS}


# --- whom ---------------------------------------------------------------------------------------


def test_a_group_falls_together() -> None:
    items = planned({"kind": "kill_group", "where": "group", "schedule": POISSON}, duration_s=400)
    by_instant: dict[int | None, list[str]] = {}
    for item in items:
        by_instant.setdefault(item.at_ns, []).append(item.unit)
    regions = {tuple(units) for units in by_instant.values()}
    assert regions == {
        ("learner-0", "learner-1"),
        ("learner-2", "learner-3"),
        ("learner-4", "learner-5"),
    }


def test_without_groups_there_is_no_group_to_hit() -> None:
    lone = [Candidate("learner-0", "learner")]
    _, problems = make(parts({"kind": "kill", "where": "group", "at_s": 1}), lone, 1, 60)
    assert problems == ["f1.where: 'group' matches no unit (units: learner-0; groups: none)"]


def test_repeat_offenders_take_over() -> None:
    def top(offenders: float) -> float:
        schedule = {**POISSON, "offenders": offenders}
        items = planned({"kind": "kill", "schedule": schedule}, duration_s=2000)
        return Counter(i.unit for i in items).most_common(1)[0][1] / len(items)

    assert top(0.0) < 0.22
    assert top(0.97) > 0.3
    assert top(1.0) == 1.0


def test_an_offender_takes_no_region_and_no_syncer_with_it() -> None:
    mix = [
        {"component": "chip", "count": 1, "kind": "kill"},
        {"component": "rack", "count": 1, "kind": "kill_group", "where": "group"},
        {"component": "store", "count": 1, "kind": "terminate", "where": "syncer"},
    ]
    schedule = {**POISSON, "offenders": 0.9}
    items = planned({"mix": mix, "schedule": schedule}, duration_s=600)
    hit: dict[str, set[int]] = {}
    for at_ns in {i.at_ns for i in items}:
        some = [i for i in items if i.at_ns == at_ns]
        hit.setdefault(some[0].kind, set()).add(len(some))
    assert hit == {"kill": {1}, "kill_group": {2}, "terminate": {1}}
    assert {i.unit for i in items if i.kind == "terminate"} == {"syncer"}


# --- traces -------------------------------------------------------------------------------------

CSV = """\
# licence: none
time_s,unit,event,cause
10,learner-1,down,GPU
20,learner-2,down,rack
30,learner-1,up
60,learner-4,down
80,learner-2,up
100,learner-4,up
"""


def replay(tmp_path: Path, text: str = CSV, **fault: Any) -> dict[str, Any]:
    (tmp_path / "t.csv").write_text(text)
    schedule = {"process": "trace", "file": "t.csv", "compress": 10, **fault.pop("schedule", {})}
    return {"kind": "partition", "schedule": schedule, **fault}


def test_a_trace_is_replayed_compressed(tmp_path: Path) -> None:
    fault = replay(tmp_path)
    items, problems = make(parts(fault, base=tmp_path), UNITS, 1, 60)
    assert problems == []
    assert facts(items, "f1") == [
        ("f1.1", "partition", "learner-1", 1 * NS, 2 * NS),
        ("f1.2", "partition", "learner-2", 2 * NS, 6 * NS),
        ("f1.3", "partition", "learner-4", 6 * NS, 4 * NS),
    ]
    assert items[0].params == {"recorded_unit": "learner-1", "trace_line": 3, "cause": "GPU"}
    assert facts(items, "f1") == facts(make(parts(fault, base=tmp_path), UNITS, 2, 60)[0], "f1")


def test_overlaps_are_counted_and_told(tmp_path: Path) -> None:
    text = CSV.replace("60,learner-4", "60,node-x").replace("100,learner-4", "100,node-x")
    found = parts(replay(tmp_path, text, where=["learner-2"]), base=tmp_path)
    (note,) = notes(found, UNITS, 60)
    for said in (
        "3 outages of 3 units in 100 s",
        "10 times as fast",
        "on 1 of 1 units",
        "licence none",
    ):
        assert said in note
    assert "2 of them while another is still on, 2 on the same unit" in note
    (note,) = notes(parts(replay(tmp_path), base=tmp_path), UNITS, 60)
    assert "2 of them while another is still on, 0 on the same unit" in note


def test_causes_name_rows_of_the_mix(tmp_path: Path) -> None:
    mix = [
        {"component": "GPU", "count": 1, "kind": "kill"},
        {"component": "rack", "count": 1, "kind": "partition", "where": "group", "for_s": 3},
    ]
    fault = replay(tmp_path, mix=mix)
    del fault["kind"]
    items, problems = make(parts(fault, base=tmp_path), UNITS, 1, 60)
    assert problems == []
    assert facts(items, "f1")[0] == ("f1.1", "kill", "learner-1", NS, None)
    rack = [i for i in items if i.fault == "f1.2"]
    assert len(rack) == 2
    assert {i.for_ns for i in rack} == {3 * NS}
    assert items[-1].params["component"] in ("GPU", "rack"), "no cause: drawn"
    unknown = replay(tmp_path, CSV.replace("rack", "ghost"), mix=mix)
    del unknown["kind"]
    (said,) = mistakes(unknown, base=tmp_path)
    assert "line 4: cause 'ghost' is no component of the mix" in said


def test_a_bad_trace_is_refused_with_every_line(tmp_path: Path) -> None:
    text = CSV + "50,learner-9,down\n-3,learner-9,down\n101,learner-0,explodes\n"
    found = mistakes(replay(tmp_path, text, schedule={"length_s": 5000}), base=tmp_path)
    assert len(found) == 4
    for part in ("line 9", "line 10", "line 11", "rows span"):
        assert sum(part in f and f.startswith("f1.schedule.file t.csv: ") for f in found) == 1


def test_many_mistakes_are_counted(tmp_path: Path) -> None:
    text = CSV + "".join(f"{200 + i},x,explodes\n" for i in range(50))
    found = mistakes(replay(tmp_path, text), base=tmp_path)
    assert len(found) == 21
    assert found[-1].endswith("and 30 more")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": {"file": "no.csv"}}, "no.csv cannot be read"),
        ({"schedule": {"compress": 0}}, "schedule.compress"),
        ({"schedule": {"mean_gap_s": 3}}, "schedule.mean_gap_s: a trace has its own arrivals"),
        ({"for_s": 3}, "takes no for_s"),
        ({"where": "minority"}, "'minority' cannot narrow them down"),
        ({"schedule": {"from_s": 59.5}}, "no outage of the trace begins in the fault window"),
    ],
)
def test_what_a_trace_cannot_be_combined_with(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    found = mistakes(replay(tmp_path, **change), base=tmp_path)
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"mix": "llama4", "at_s": 1}, "unknown mix 'llama4' (built in: llama3)"),
        ({"mix": [], "at_s": 1}, "give the name of a built-in mix"),
        ({"mix": "llama3", "kind": "kill", "at_s": 1}, "a kind or a mix, not both"),
        ({"mix": [{"component": "a", "count": 0, "kind": "kill"}], "at_s": 1}, "mix[0].count"),
        ({"mix": [{"component": "a", "kind": "kill"}], "at_s": 1}, "mix[0].count: missing"),
        (
            {"mix": [{"component": "a", "count": 1, "kind": "kil"}], "at_s": 1},
            "unknown fault 'kil'",
        ),
        (
            {"mix": [{"component": "a", "count": 1, "kind": "straggle"}], "at_s": 1},
            "mix[0].factor: missing",
        ),
        (
            {"mix": [{"component": "a", "count": 1, "kind": "kill", "where": "x"}], "at_s": 1},
            "mix[0].where: 'x' matches no unit",
        ),
        (
            {"mix": 2 * [{"component": "a", "count": 1, "kind": "kill"}], "at_s": 1},
            "component 'a' is there more than once",
        ),
        (
            {
                "mix": [{"component": "a", "count": 1, "kind": "kill", "then": {"kind": "x"}}],
                "at_s": 1,
            },
            "mix[0].then.kind: unknown fault 'x'",
        ),
        ({"kind": "kill", "at_s": 1, "repair": {"median_s": 2}}, "takes no repair"),
        ({"kind": "pause", "at_s": 1, "repair": {"median_s": 0}}, "repair.median_s"),
        ({"kind": "pause", "at_s": 1, "for_s": 1, "repair": {"median_s": 2}}, "give one"),
        ({"kind": "kill", "schedule": {"process": "poisson"}}, "mean_gap_s: missing; poisson"),
        ({"kind": "kill", "schedule": {**POISSON, "file": "x"}}, "file: only a trace has it"),
        ({"kind": "kill", "schedule": {"process": "trace"}}, "file: missing"),
        ({"kind": "kill", "at_s": 1, "trace": 3}, "trace: unknown parameter"),
        ({"mix": "llama3", "at_s": 1, "params": {}}, "params: unknown key"),
        ({"kind": "kill", "at_s": 1, "name": "Two words"}, "name"),
    ],
)
def test_each_mistake_is_named(fault: dict[str, Any], said: str) -> None:
    found = mistakes(fault)
    assert len(found) == 1, found
    assert said in found[0]


def test_two_faults_cannot_share_a_name() -> None:
    one = {"kind": "kill", "at_s": 1, "name": "storm"}
    assert mistakes(one, one) == ["f2.name: 'storm' already names f1"]
    assert mistakes({**one, "name": "f2"}, {"kind": "kill", "at_s": 2}) == [
        "f1.name: 'f2' already names f2"
    ]
