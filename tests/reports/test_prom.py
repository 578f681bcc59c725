"""Prometheus text: well-formed, base units, every label written even when zero."""

from __future__ import annotations

import re

import msgspec

from reports.build import analyse
from reports.history import fold
from reports.ledger import LABELS
from reports.prom import metrics
from tests.reports import hand
from tests.reports.builder import Cluster, Cut, Kill, journal

LINE = re.compile(r'^([a-z_]+)(\{([a-z_]+="(\\.|[^"\\])*",?)+\})? (-?[0-9.e+-]+|\+Inf)$')


def lines_of(cluster: Cluster) -> list[str]:
    return metrics(analyse(fold(journal(cluster.events()))).report).decode().splitlines()


def test_every_line_is_well_formed_and_belongs_to_its_family() -> None:
    family = ""
    seen: set[str] = set()
    for line in lines_of(Cluster(faults=[Kill("learner-0", 4.03), Cut("learner-1", 5, 1.5)])):
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in seen
            seen.add(family)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            assert line.split()[3] in ("gauge", "counter", "histogram")
        else:
            found = LINE.match(line)
            assert found, line
            assert found.group(1).startswith(family)
            assert family.startswith("decoupled_diloco_")


def test_figures_by_hand() -> None:
    shown = metrics(analyse(fold(journal(hand.journal()))).report).decode()
    assert "decoupled_diloco_goodput_ratio 0.8\n" in shown
    assert 'decoupled_diloco_badput_seconds_total{type="lost"} 1.5\n' in shown
    assert 'decoupled_diloco_faults_total{fault="kill",outcome="effective"} 1\n' in shown
    assert (
        'decoupled_diloco_self_healing_seconds_bucket{fault="kill",phase="reintegrate",le="3"} 0'
        in shown
    )
    assert (
        'decoupled_diloco_self_healing_seconds_bucket{fault="kill",phase="reintegrate",le="4"} 1'
        in shown
    )
    assert 'decoupled_diloco_run_outcome{outcome="passed"} 1\n' in shown
    assert 'decoupled_diloco_run_outcome{outcome="deviated"} 0\n' in shown


def test_every_badput_label_even_when_zero() -> None:
    shown = "\n".join(lines_of(Cluster()))
    for label in LABELS:
        if label != "useful":
            assert f'badput_seconds_total{{type="{label}"}} 0' in shown


def test_label_values_are_escaped() -> None:
    report = analyse(fold(journal(hand.journal()))).report
    run = msgspec.structs.replace(report.run, experiment='a"b\\c\nd')
    shown = metrics(msgspec.structs.replace(report, run=run)).decode()
    assert 'experiment="a\\"b\\\\c\\nd"' in shown
    assert all(LINE.match(line) for line in shown.splitlines() if not line.startswith("#"))
