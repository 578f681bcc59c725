"""A report as JUnit XML: one case per check and gate, numbers as ``chaos.*`` properties."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from reports.schema import Report

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold; container logs are full of them."""


def clean(text: str) -> str:
    """The text without characters that XML 1.0 forbids."""
    return _FORBIDDEN.sub("\ufffd", text)


def properties(report: Report) -> dict[str, str]:
    """The numbers that go out as properties; unknown ones are left out."""
    good, verdict = report.goodput, report.verdict
    left = report.residue
    residue = sum(map(len, (left.containers, left.networks, left.volumes)))
    residue += len(left.processes) + len(left.toxics)
    values = {
        "chaos.outcome": verdict.outcome,
        "chaos.conclusive": str(verdict.conclusive).lower(),
        "chaos.exit_status": verdict.exit_status,
        "chaos.seed": report.run.seed,
        "chaos.runtime": report.run.runtime,
        "chaos.run": report.run.id,
        "chaos.goodput_ratio": good.ratio,
        "chaos.merged_goodput_ratio": good.merged_ratio,
        "chaos.uptime_ratio": good.uptime_ratio,
        "chaos.longest_stall_seconds": good.longest_stall_s,
        "chaos.self_healing_seconds.p50": report.healing_summary.p50_s,
        "chaos.self_healing_seconds.p95": report.healing_summary.p95_s,
        "chaos.self_healing_seconds.max": report.healing_summary.max_s,
        "chaos.self_healing_seconds.n": report.healing_summary.n,
        "chaos.faults.planned": report.faults.planned,
        "chaos.faults.executed": report.faults.executed,
        "chaos.faults.effective": report.faults.effective,
        "chaos.residue_count": residue,
        "chaos.final_loss": report.quality.final_loss,
        "chaos.loss_gap_ratio": report.quality.gap_ratio,
        "chaos.report_path": "report.html",
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def junit(report: Report) -> bytes:
    """The XML document."""
    name = clean(report.run.experiment)
    cases = [_verdict(report, name), *_checks(report, name), *_gates(report, name)]
    tally = {"failure": 0, "error": 0, "skipped": 0}
    for case in cases:
        for kind in tally:
            tally[kind] += case.find(kind) is not None
    suite = ET.Element(
        "testsuite",
        name=f"diloco-chaos.{name}",
        tests=str(len(cases)),
        failures=str(tally["failure"]),
        errors=str(tally["error"]),
        skipped=str(tally["skipped"]),
        time=f"{report.run.duration_s:.3f}",
        timestamp=clean(report.run.started_at),
    )
    held = ET.SubElement(suite, "properties")
    for key, value in properties(report).items():
        ET.SubElement(held, "property", name=key, value=clean(value))
    suite.extend(cases)
    root = ET.Element("testsuites", name="diloco-chaos")
    root.append(suite)
    ET.indent(root, " ")
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(group: str, name: str, time_s: float = 0.0) -> ET.Element:
    return ET.Element("testcase", classname=group, name=clean(name), time=f"{time_s:.3f}")


def _verdict(report: Report, name: str) -> ET.Element:
    case = _case(f"{name}.run", "verdict", report.run.duration_s)
    verdict = report.verdict
    if verdict.exit_status != 0:
        # An inconclusive run is an error and never a pass; a conclusive miss is a failure.
        kind = "failure" if verdict.conclusive else "error"
        message = clean("; ".join(verdict.reasons))
        found = ET.SubElement(case, kind, type=verdict.outcome, message=message)
        found.text = clean("\n".join([*verdict.reasons, f"repeat: {report.run.repeat}"]))
    return case


def _checks(report: Report, name: str) -> list[ET.Element]:
    cases = []
    for check in report.invariants:
        case = _case(f"{name}.checks", check.name)
        if check.valid is False:
            found = ET.SubElement(case, "failure", type="invariant", message=clean(check.why))
            found.text = clean(f"{check.claim}\njournal lines: {check.events}")
        elif check.valid == "unknown":
            kind = "error" if check.asked else "skipped"
            ET.SubElement(case, kind, type="unknown", message=clean(check.why))
        cases.append(case)
    return cases


def _gates(report: Report, name: str) -> list[ET.Element]:
    cases = []
    for gate in report.gates:
        case = _case(f"{name}.gates", gate.name)
        if not gate.ok:
            kind = "failure" if gate.value is not None else "error"
            text = f"{gate.value} {gate.unit} against {gate.bound:g}: {gate.why}"
            ET.SubElement(case, kind, type="gate", message=clean(text))
        cases.append(case)
    return cases
