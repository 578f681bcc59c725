"""Two runs side by side."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import SpecError
from reports.build import analyse
from reports.compare import as_html, as_json, as_text, compare, load
from reports.history import fold
from reports.schema import Report, to_json
from reports.write import write_reports
from tests.reports.builder import Cluster, Kill, Straggle, journal, write
from tests.reports.test_html import EVIL, Page


def report_of(cluster: Cluster) -> Report:
    return analyse(fold(journal(cluster.events()))).report


CALM = Cluster(experiment="calm")
STORM = Cluster(experiment="storm", faults=[Kill("learner-0", 3.03), Straggle("learner-1", 5, 3)])


def test_figures_point_to_the_better_run() -> None:
    found = {f.name: f for f in compare(report_of(CALM), report_of(STORM)).figures}
    assert found["goodput"].better == "A"
    assert found["goodput"].a == "100.0%"
    assert found["goodput"].change.startswith("×0.")
    assert found["tokens lost"].better == "A"
    assert found["uptime"].change == "same"
    assert found["uptime"].better == "", "a tie"
    assert found["overruns"].better == "", "about the host"
    # A has no fault, so nothing can be said about healing.
    assert (found["healing, longest"].a, found["healing, longest"].better) == ("–", "")
    back = {f.name: f for f in compare(report_of(STORM), report_of(CALM)).figures}
    assert back["goodput"].better == "B"


@pytest.mark.parametrize(
    ("ratio", "better"), [(1.0, ""), (1.009, ""), (0.991, ""), (1.02, "B"), (0.98, "A")]
)
def test_figures_within_a_hundredth_are_a_tie(ratio: float, better: str) -> None:
    calm = report_of(CALM)
    assert calm.goodput.ratio is not None
    one = msgspec.structs.replace(calm.goodput, ratio=0.5)
    other = msgspec.structs.replace(calm.goodput, ratio=0.5 * ratio)
    pair = [msgspec.structs.replace(calm, goodput=g) for g in (one, other)]
    found = {f.name: f for f in compare(pair[0], pair[1]).figures}
    assert found["goodput"].better == better


def test_warnings_about_runs_that_do_not_compare() -> None:
    calm, storm = report_of(CALM), report_of(STORM)
    run = msgspec.structs.replace(storm.run, seed=8, host_fingerprint="other")
    said = compare(calm, msgspec.structs.replace(storm, run=run)).warnings
    assert "different experiments: calm and storm" in said
    assert "different seeds: 7 and 8" in said
    assert "different hosts: unknown and other" in said
    assert compare(calm, calm).warnings == ()
    doubtful = report_of(Cluster(experiment="calm", compute_ms=150))
    assert any("B is not conclusive" in w for w in compare(calm, doubtful).warnings)


def test_runs_that_do_not_compare_are_called_so() -> None:
    calm = report_of(CALM)
    assert compare(calm, report_of(STORM)).comparable
    here = msgspec.structs.replace(calm.run, host_fingerprint="here")
    there = msgspec.structs.replace(calm.run, host_fingerprint="there")
    apart = compare(
        msgspec.structs.replace(calm, run=here), msgspec.structs.replace(calm, run=there)
    )
    assert not apart.comparable
    assert as_text(apart).endswith("proves nothing\n")
    assert not compare(calm, report_of(Cluster(compute_ms=150))).comparable
    cut = analyse(fold(journal(CALM.events()[:5]))).report
    assert not compare(calm, cut).comparable


def test_text_html_and_json() -> None:
    comparison = compare(report_of(CALM), report_of(STORM))
    shown = as_text(comparison)
    assert "goodput              100.0%" in shown
    assert "warning: different experiments: calm and storm" in shown
    page = as_html(comparison).decode()
    found = Page(page)
    assert not [tag for tag, _ in found.tags if tag == "script"]
    assert "Read with care" in page
    assert page.count('<svg class="bar"') == 2
    data = msgspec.json.decode(as_json(comparison))
    assert data["a"]["run"]["experiment"] == "calm"
    assert as_html(comparison) == as_html(comparison)


def test_hostile_names_stay_text() -> None:
    calm = report_of(CALM)
    run = msgspec.structs.replace(calm.run, experiment=EVIL, repeat=EVIL, target=EVIL)
    page = as_html(compare(msgspec.structs.replace(calm, run=run), calm)).decode()
    tags = [tag for tag, _ in Page(page).tags]
    assert "script" not in tags
    assert "img" not in tags


def test_loads_run_directories_journals_and_reports(tmp_path: Path) -> None:
    run = write(tmp_path / "run", CALM.events())
    report = write_reports(run)
    assert load(run) == load(run / "journal.jsonl") == load(run / "report.json") == report
    (run / "journal.jsonl").unlink()
    assert load(run) == report


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such run directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(SpecError, match=r"neither journal\.jsonl nor report\.json"):
        load(tmp_path)
    (tmp_path / "report.json").write_bytes(b"{}")
    with pytest.raises(SpecError, match="not a report of schema 1"):
        load(tmp_path)
    (tmp_path / "report.json").write_bytes(to_json(report_of(CALM))[:-40])
    with pytest.raises(SpecError, match="not a report of schema 1"):
        load(tmp_path / "report.json")
