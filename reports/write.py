"""Writes every report of a run beside its journal; a pure function of the journal's bytes."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import HarnessError
from reports.build import Analysis, analyse
from reports.history import read_history
from reports.html import render
from reports.junit import junit
from reports.prom import metrics
from reports.schema import Report, to_json
from reports.text import summary

FILES = ("report.json", "report.html", "summary.md", "junit.xml", "metrics.prom")
"""What :func:`write_reports` writes."""


def write_reports(run_dir: Path) -> Report:
    """Compute and write all reports of the run in ``run_dir``; returns the report.

    Raises ``harness.errors.JournalError`` when there is no journal to read and
    ``harness.errors.HarnessError`` when the directory cannot be written.
    """
    analysis = analyse(read_history(run_dir))
    for name, data in documents(analysis).items():
        _replace(run_dir / name, data)
    return analysis.report


def documents(analysis: Analysis) -> dict[str, bytes]:
    """File name to content of every report."""
    report = analysis.report
    return {
        "report.json": to_json(report),
        "report.html": render(analysis),
        "summary.md": summary(report),
        "junit.xml": junit(report),
        "metrics.prom": metrics(report),
    }


def _replace(path: Path, data: bytes) -> None:
    """Write whole or not at all, so that nobody ever reads half a report."""
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error}") from error
