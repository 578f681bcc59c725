"""The page: self-contained, escaped, capped, readable without scripts, small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from harness import events as ev
from reports.build import Analysis, analyse
from reports.history import fold
from reports.html import render, shares
from reports.lanes import Scale, swim_lanes, thin
from reports.ledger import LABELS, Segment
from reports.schema import from_json
from tests.reports.builder import (
    MS,
    SECOND,
    Cluster,
    Cut,
    Ghost,
    Kill,
    Pause,
    Scripted,
    Straggle,
    change,
    journal,
    replace,
)

STORM: list[Scripted] = [
    Kill("learner-0", 3.03, 0.4),
    Cut("learner-1", 4, 2),
    Straggle("learner-2", 5, 2),
    Pause("learner-3", 6, 1),
]
EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(2)>\'"&'


def analysis_of(events: list[ev.AnyEvent]) -> Analysis:
    return analyse(fold(journal(events)))


def page_of(events: list[ev.AnyEvent]) -> str:
    return render(analysis_of(events)).decode()


class Page(HTMLParser):
    """Collects what a browser would act on, and checks that elements nest."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        found = dict(attrs).get("id")
        if found:
            self.ids.append(found)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(Cluster(learners=4, faults=STORM, gate={"goodput_min": 0.5}).events())


def test_self_contained_and_without_scripts(page: str) -> None:
    found = Page(page)
    scripts = [attrs for tag, attrs in found.tags if tag == "script"]
    assert [s["type"] for s in scripts] == ["application/json"]
    for tag, attrs in found.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img"), tag
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert (value or "").startswith("#"), (tag, name, value)
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_anchors_and_ids(page: str) -> None:
    found = Page(page)
    assert len(found.ids) == len(set(found.ids))
    for _, attrs in found.tags:
        target = attrs.get("href")
        if target:
            assert target[1:] in found.ids, target
    for name in ("verdict", "timeline", "goodput", "healing", "faults", "checks", "merges"):
        assert name in found.ids


def test_svgs_are_well_formed(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.S)
    assert len(drawings) > 10
    for drawing in drawings:
        ET.fromstring(drawing)


def test_it_says_the_things(page: str) -> None:
    words = " ".join(" ".join(Page(page).words).split())
    assert "PASSED" in words
    assert "diloco-chaos run fake --seed 7" in words
    for fault in ("f1 kill", "f2 partition", "f3 straggle", "f4 pause"):
        assert fault in words
    assert "its process ended with signal 9" in words
    assert "0 containers, 0 networks, 0 volumes, 0 processes, 0 toxics left behind" in words
    for label in LABELS:
        assert f"url(#p-{label})" in page
        assert f'id="p-{label}"' in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_every_colour_is_used_with_a_pattern_and_defined_for_both_schemes(page: str) -> None:
    light, dark = page.split("@media (prefers-color-scheme: dark)", 1)
    for label in LABELS:
        for half in (light, dark.split("* {", 1)[0]):
            assert f"--{label}:" in half
            assert f"--{label}-2:" in half


def test_the_goodput_table_sums_to_one_hundred() -> None:
    for learners in (1, 3, 7):
        report = analysis_of(Cluster(learners=learners, faults=[Kill("learner-0", 3.03)]).events())
        rows = shares(report.report)
        assert sum(row.tenths for row in rows) == 1000
        assert all(row.tenths >= 0 for row in rows)
        ratio = report.report.goodput.ratio
        assert ratio is not None
        assert rows[0].percent == f"{ratio:.1%}"


def hostile() -> list[ev.AnyEvent]:
    events = Cluster(learners=2, faults=[Kill("learner-1", 4.03)]).events()
    head = events[0]
    assert isinstance(head, ev.RunStarted)
    events[0] = replace(
        head,
        experiment=EVIL,
        repeat=EVIL,
        commit=EVIL,
        proxy=EVIL,
        host_fingerprint=EVIL,
        params={**head.params, "data": EVIL},
    )
    events = change(events, ev.Merged, lambda m: replace(m, excluded={"learner-1": EVIL}), 60)
    events = change(events, ev.LinkDown, lambda e: replace(e, why=EVIL))
    events = change(events, ev.SteadyState, lambda e: replace(e, why=EVIL))
    common: dict[str, Any] = {"fault": EVIL, "kind": EVIL, "unit": EVIL}
    events[-1:] = [
        ev.UnitNote(t_ns=5 * SECOND, unit="learner-0", incarnation=1, what=EVIL, detail=EVIL),
        ev.FaultPlanned(t_ns=0, planned_at_ns=1, **common),
        ev.FaultAsked(t_ns=1, **common),
        ev.FaultExecuted(t_ns=1, **common),
        ev.FaultPlanned(t_ns=0, planned_at_ns=1, fault="f8", kind="kill", unit="learner-0"),
        ev.FaultSkipped(t_ns=1, fault="f8", kind="kill", unit="learner-0", why=EVIL),
        ev.HarnessFailed(t_ns=11 * SECOND, where=EVIL, why=EVIL),
        events[-1],
    ]
    return events


def test_hostile_text_is_only_ever_text() -> None:
    page = page_of(hostile())
    found = Page(page)
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert all("onerror" not in attrs for _, attrs in found.tags)
    assert EVIL in "".join(found.words)
    # Markup that merely escapes once would show entities to the reader.
    assert "&amp;lt;" not in page
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.S):
        ET.fromstring(drawing)


def test_embedded_json_is_the_report() -> None:
    analysis = analysis_of(hostile())
    page = render(analysis).decode()
    data = page.split('id="report-data">', 1)[1].split("</script>", 1)[0]
    assert "<" not in data
    assert from_json(data.encode()) == analysis.report


def test_long_tables_are_capped_and_say_so() -> None:
    faults = [Ghost("learner-1", 2 + i / 100, 0.5) for i in range(450)]
    page = page_of(Cluster(learners=2, faults=faults).events())
    assert "showing 200 of 450; all are in report.json" in page


def test_a_hundred_thousand_events_fit() -> None:
    faults: list[Scripted] = [
        f
        for i in range(60)
        for f in (
            Straggle(f"learner-{i % 4}", 20 + 9.0 * i, 3.0),
            Kill(f"learner-{4 + i % 4}", 21.03 + 9.0 * i, 0.5),
        )
    ]
    cluster = Cluster(learners=8, faults=faults, window_s=590, tail_s=10, fragments=(1000,) * 8)
    events = cluster.events()
    assert len(events) >= 100_000
    page = render(analysis_of(events))
    assert len(page) <= 1_500_000
    assert b"showing" in page


def test_sixty_four_learners_fit() -> None:
    faults = [Straggle(f"learner-{i}", 2 + i / 10, 40) for i in range(64)]
    cluster = Cluster(learners=64, faults=faults, window_s=60, fragments=(1000,) * 4)
    assert len(render(analysis_of(cluster.events()))) <= 1_500_000


def test_thinning_keeps_the_majority_and_the_ends() -> None:
    segments = [
        Segment(i * MS, (i + 1) * MS, "useful" if i % 3 else "slowed") for i in range(30_000)
    ]
    segments += [Segment(30_000 * MS, 40_000 * MS, "lost")]
    found = thin(segments, Scale(0, 40_000 * MS), 500)
    assert len(found) <= 500
    assert (found[0].start_ns, found[-1].end_ns) == (0, 40_000 * MS)
    assert [s.label for s in found] == ["useful", "lost"]
    assert found[1].start_ns == 30_000 * MS
    for before, after in pairwise(found):
        assert before.end_ns == after.start_ns


def test_axis_ticks_are_round_and_few() -> None:
    for seconds in (0.5, 3, 12, 75, 600, 3600, 86_400):
        ticks = Scale(0, round(seconds * 1e9)).ticks()
        assert 3 <= len(ticks) <= 13, (seconds, ticks)
    assert Scale(0, 75 * SECOND).ticks() == [i * 10 * SECOND for i in range(8)]


def test_pages_without_steady_state_without_faults_and_cut_short() -> None:
    never = change(Cluster().events(), ev.SteadyState, lambda e: None)
    assert "steady state was not reached" in page_of(never)
    assert "This experiment has no fault." in page_of(Cluster().events())
    cut = page_of(Cluster().events()[:400])
    assert "the journal was cut short" in cut
    alone = page_of(Cluster().events()[:1])
    assert "HARNESS ERROR (inconclusive)" in alone


def test_a_healed_lane_shows_death_birth_and_the_cut_link() -> None:
    svg = str(swim_lanes(analysis_of(Cluster(learners=4, faults=STORM).events())).svg)
    assert svg.count('class="cross"') == 1
    assert svg.count('class="birth"') == 1
    assert "incarnation 2, started by supervisor, at 3.43 s" in svg
    assert svg.count('class="down"') == 2
    assert svg.count('class="shade"') == 4


def test_very_large_reports_embed_less() -> None:
    from reports.html import DATA_BYTES_MAX, embedded

    report = analysis_of(Cluster(learners=2, faults=[Kill("learner-1", 4.03)]).events()).report
    big = msgspec.structs.replace(report, healing=report.healing * 5000)
    assert len(embedded(big)) <= DATA_BYTES_MAX
    assert msgspec.json.decode(str(embedded(big)).encode())["healing"] == []
