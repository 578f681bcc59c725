"""Suites on the command line: each experiment in a folder of its own, then one page for all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from harness import catalogue
from harness import suite as suites
from harness.commands import resuming
from harness.errors import SpecError
from harness.suite import Suite
from reports import seam
from reports.build import build
from reports.compare import Comparison, as_html, as_text, compare
from reports.gate import GATES
from reports.schema import GateRow, Report
from reports.together import TOGETHER, exit_status, judge_together

STOPPED = (130, 143)
"""Exit statuses of a run that somebody stopped; the suite then stops, too."""


@dataclass(frozen=True)
class Outcome:
    """What a suite came to."""

    reports: tuple[Report, ...]
    comparisons: tuple[Comparison, ...]
    """The first run against each of the others."""
    gates: tuple[GateRow, ...]
    status: int


def known_run(directory: Path) -> None:
    """Raise :class:`SpecError` when the command line names no directory of a run or suite."""
    if not (directory / "journal.jsonl").exists() and not list(directory.glob(f"*{suites.KEPT}")):
        raise SpecError(str(directory), ["there is no run here: no journal.jsonl"])


def kept(directory: Path) -> Suite | None:
    """The suite whose directory this is; None when it is a run's or nobody's."""
    for path in sorted(directory.glob(f"*{suites.KEPT}")):
        name = path.name.removesuffix(suites.KEPT)
        try:
            given = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(str(path), [f"cannot be read: {error}"]) from error
        suite = suites.read(given, name, TOGETHER)
        # The command line may have named other seeds than the suite; what was run counts.
        names = (p.name.removeprefix("seed-") for p in directory.glob("seed-*"))
        seeds = tuple(sorted(int(n) for n in names if re.fullmatch(r"-?[0-9]+", n)))
        return replace(suite, seeds=seeds)
    return None


def carry_out(suite: Suite, out: Path, one: Callable[[str, Path], int]) -> Outcome | None:
    """Run every experiment with ``one(spec, directory)``, which returns its exit status.

    None when one of them was stopped: what there is of it lies in its own directory.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if kept(out) is not None:
            raise SpecError("--out", [f"{out} already holds a suite; name another folder"])
        (out / f"{suite.name}{suites.KEPT}").write_text(suite.text, encoding="utf-8")
    except OSError as error:
        raise SpecError("--out", [f"cannot write to {out}: {error.strerror or error}"]) from error
    for member, folder in in_order(suite):
        if one(member, out / folder) in STOPPED:
            return None
    return write(suite, out)


def controlling(suite: Suite, spec: str) -> str | None:
    """Folder of the member that is the control of the experiment ``spec``; None when its control
    is no member, or it has none."""
    draft = catalogue.find(spec, gates=GATES)
    asked = draft.head.control if draft.head is not None else None
    folder = Path(asked).stem if isinstance(asked, str) else ""
    return folder if folder in suite.folders() else None


def member(suite: Suite, spec: str) -> str:
    """What a member is found by: a file beside the suite, else a name or path."""
    beside = suite.base / spec if suite.base is not None else None
    return str(beside) if beside is not None and beside.is_file() else spec


def in_order(suite: Suite) -> list[tuple[str, str]]:
    """(member, folder) of each, those that others are compared with or go on from before these.

    Raises :class:`SpecError` for those that go round in a circle, and for a member that is not
    there or no TOML: the first one alone, so whoever can name them all does so before.
    """
    waiting = dict(zip(suite.folders(), suite.together, strict=True))
    needs = {
        f: {how(suite, member(suite, m)) for how in (controlling, resuming.member)}
        for f, m in waiting.items()
    }
    found: list[tuple[str, str]] = []
    while waiting:
        folder = next((f for f in waiting if not needs[f] & waiting.keys()), None)
        if folder is None:
            raise SpecError(suite.name, [f"together: {', '.join(waiting)} wait for each other"])
        found.append((waiting.pop(folder), folder))
    return found


def write(suite: Suite, out: Path) -> Outcome:
    """Compare the suite's runs and write the pages; a pure function of their journals."""
    found = judge(suite, out)
    first, *others = suite.folders()
    for folder, comparison in zip(others, found.comparisons, strict=True):
        page = as_html(
            comparison,
            title=suite.title,
            note=suite.description,
            gates=found.gates,
            links=(f"{first}/report.html", f"{folder}/report.html"),
        )
        (out / page_name(suite, folder)).write_bytes(page)
    (out / "suite.json").write_bytes(as_json(suite, found))
    return found


def page_name(suite: Suite, folder: str) -> str:
    """File of the page that compares the first run with the one in ``folder``."""
    return "compare.html" if len(suite.together) == 2 else f"compare-{folder}.html"


def judge(suite: Suite, out: Path) -> Outcome:
    """The suite's outcome, computed from the journals below ``out``."""
    reports = tuple(build(out / folder) for folder in suite.folders())
    comparisons = tuple(compare(reports[0], r, together=True) for r in reports[1:])
    gates = (*judge_together(suite.gate, reports), *seam.rows(out, suite.folders()))
    return Outcome(reports, comparisons, gates, exit_status(reports, gates))


def as_json(suite: Suite, found: Outcome) -> bytes:
    """The suite for machines."""
    value: dict[str, Any] = {
        "schema": 1,
        "suite": suite.name,
        "title": suite.title,
        "exit_status": found.status,
        "gates": found.gates,
        "runs": dict(zip(suite.folders(), found.reports, strict=True)),
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def terminal(suite: Suite, found: Outcome, out: Path) -> str:
    """The suite's last words on a terminal."""
    lines = [f"{suite.name}: {suite.title}", ""]
    for comparison in found.comparisons:
        lines += [as_text(comparison, gates=found.gates), ""]
    pages = [str(out / page_name(suite, f)) for f in suite.folders()[1:]]
    return "\n".join([*lines, *(f"side by side: {page}" for page in pages)]) + "\n"
