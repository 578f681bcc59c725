"""Checkpoints in figures: in the report, on the terminal and on the page."""

from __future__ import annotations

from harness import events as ev
from reports.build import Analysis, analyse
from reports.history import fold
from reports.html import render
from reports.schema import Report
from reports.text import checkpoints_line, checkpoints_tile, terminal
from tests.reports.builder import Cluster, journal

MS = 1_000_000


def analysis_with(*extra: ev.Event) -> Analysis:
    events = list(Cluster().events())
    at = next(i for i, e in enumerate(events) if isinstance(e, ev.WindowEnded))
    return analyse(fold(journal((*events[:at], *extra, *events[at:]))))


def report_with(*extra: ev.Event) -> Report:
    return analysis_with(*extra).report


def part(unit: str, took_ms: int, **own: object) -> ev.Checkpointed:
    return ev.Checkpointed(
        t_ns=9_000 * MS,
        unit=unit,
        incarnation=1,
        marker=20,
        step=20,
        nbytes=1_000_000,
        took_ns=took_ms * MS,
        **own,  # type: ignore[arg-type]
    )


def test_a_run_without_checkpoints_says_nothing_of_them() -> None:
    report = report_with()
    assert report.checkpoints is None
    assert "checkpoints   " not in terminal(report)


def test_what_they_cost_is_said() -> None:
    members = {f"learner-{i}": 1 for i in range(3)}
    done = ev.SnapshotComplete(
        t_ns=9_100 * MS,
        unit="syncer",
        incarnation=1,
        marker=20,
        members=members,
        in_flight={"learner-0": 0, "learner-1": 2, "learner-2": 1},
        took_ns=300 * MS,
    )
    analysis = analysis_with(part("syncer", 80), *(part(name, 120) for name in members), done)
    report, found = analysis.report, analysis.report.checkpoints
    assert found is not None
    assert (found.begun, found.complete, found.bytes) == (1, 1, 4_000_000)
    assert (found.part_p50_s, found.complete_p50_s, found.in_flight_max) == (0.12, 0.3, 2)
    line = "1 of 1 complete; 4.0 MB, each part durable in 0.12 s, all in 0.30 s (medians)"
    assert checkpoints_line(found) == line
    assert f"checkpoints    {line}" in terminal(report)
    page = render(analysis).decode()
    assert line in page
    assert page.count("1 of 1") == 2, "the tile says it once, the section once"
    assert "<b>1 of 1</b><span>complete; 4.0 MB</span>" in page


def test_one_that_is_not_complete_has_no_size() -> None:
    found = report_with(part("syncer", 80)).checkpoints
    assert found is not None
    assert (found.complete, found.bytes, found.complete_p50_s) == (0, None, None)
    assert checkpoints_line(found) == "0 of 1 complete"


def test_a_resumed_run_says_from_where() -> None:
    seam = ev.Resumed(
        t_ns=1, unit="syncer", incarnation=1, run="first", marker=0, step=0, versions=(0, 0)
    )
    own = ev.Resumed(
        t_ns=2,
        unit="learner-1",
        incarnation=1,
        run="first",
        marker=0,
        step=0,
        versions=(0, 0),
        since=(0, 0),
    )
    found = report_with(seam, own).checkpoints
    assert found is not None
    assert (found.resumed_run, found.resumed_step, found.resumed_parts) == ("first", 0, 1)
    assert checkpoints_line(found) == "went on from step 0 with 1 learners' parts"
    assert checkpoints_tile(found) == "went on from step 0"
