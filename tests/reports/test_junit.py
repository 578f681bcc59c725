"""JUnit XML: valid whatever the logs hold; inconclusive is an error and never a pass."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec

from reports.build import analyse
from reports.history import fold
from reports.junit import clean, junit, properties
from reports.schema import Report
from tests.reports import hand
from tests.reports.builder import Cluster, Ghost, Kill, journal


def report_of(cluster: Cluster) -> Report:
    return analyse(fold(journal(cluster.events()))).report


def test_a_pass() -> None:
    root = ET.fromstring(junit(analyse(fold(journal(hand.journal()))).report))
    suite = root.find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    # The verdict, 14 checks and one gate.
    assert suite.get("tests") == "16" == str(len(cases))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))
    found = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert found["chaos.goodput_ratio"] == "0.8"
    assert found["chaos.outcome"] == "passed"
    assert found["chaos.faults.effective"] == "1"
    assert found["chaos.self_healing_seconds.max"] == "3.7"
    assert "chaos.self_healing_seconds.p50" not in found


def test_a_missed_gate_is_a_failure() -> None:
    report = report_of(Cluster(faults=[Kill("learner-1", 4)], gate={"goodput_min": 0.999}))
    root = ET.fromstring(junit(report))
    failed = [c.get("name") for c in root.iter("testcase") if c.find("failure") is not None]
    assert failed == ["verdict", "goodput_min"]
    assert not list(root.iter("error"))


def test_inconclusive_is_an_error() -> None:
    root = ET.fromstring(junit(report_of(Cluster(faults=[Ghost("learner-1", 4, 1)]))))
    verdict = next(root.iter("testcase"))
    error = verdict.find("error")
    assert error is not None
    assert error.get("type") == "no-effect"
    assert "diloco-chaos run fake --seed 7" in (error.text or "")


def test_control_characters_and_markup_from_logs() -> None:
    evil = '\x1b[31mred\x00\x08 ]]> <&" \ufffe \ud800 end'
    report = report_of(Cluster(faults=[Ghost("learner-1", 4, 1)]))
    verdict = msgspec.structs.replace(report.verdict, reasons=[evil])
    invariants = [msgspec.structs.replace(i, why=evil, valid=False) for i in report.invariants]
    run = msgspec.structs.replace(report.run, experiment=evil, repeat=evil)
    data = junit(msgspec.structs.replace(report, verdict=verdict, invariants=invariants, run=run))
    root = ET.fromstring(data)
    error = next(root.iter("error"))
    assert error.get("message") == clean(evil)
    assert "\x1b" not in data.decode()
    assert clean("tab\tline\n ok é 🙂") == "tab\tline\n ok é 🙂"


def test_properties_are_strings_and_leave_out_the_unknown() -> None:
    report = report_of(Cluster(loss_from=None))
    found = properties(report)
    assert all(isinstance(v, str) for v in found.values())
    assert "chaos.final_loss" not in found
    assert found["chaos.residue_count"] == "0"
