"""Two runs side by side, as text and as a page: what changed, and in whose favour.

Runs are told apart as A and B. A comparison of runs on different hosts or of different experiments
is shown all the same, with a warning: such a difference proves little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import SpecError
from reports import text
from reports.build import build
from reports.charts import goodput_bar
from reports.history import JOURNAL
from reports.html import environment, tone
from reports.ledger import LABELS
from reports.schema import GateRow, Report, from_json
from reports.twin import Twin, are_twins, judge
from reports.twin import lines as twin_lines


@dataclass(frozen=True)
class Figure:
    """One number of both runs. ``better`` is A, B, or empty: a tie, or nothing that is better."""

    name: str
    a: str
    b: str
    change: str
    better: str


@dataclass(frozen=True)
class Comparison:
    """Everything that a comparison shows."""

    a: Report
    b: Report
    figures: tuple[Figure, ...]
    ledger: tuple[Figure, ...]
    warnings: tuple[str, ...]
    comparable: bool
    """Whether a difference can mean anything: both runs measured something, on one host."""
    twin: Twin | None = None
    """For a live run and a simulated one of the same experiment and seed: whether they agree."""


def load(path: Path) -> Report:
    """The report of a run directory, journal or report.json.

    A journal is preferred, so that both sides are computed by this version. Raises
    ``harness.errors.SpecError`` when there is no run at ``path``, ``harness.errors.JournalError``
    when its journal cannot be read.
    """
    if path.suffix == ".json" and path.is_file():
        return _stored(path)
    if path.is_dir() and not (path / JOURNAL).exists():
        stored = path / "report.json"
        if stored.is_file():
            return _stored(stored)
        raise SpecError(str(path), ["neither journal.jsonl nor report.json is there"])
    if not path.exists():
        raise SpecError(str(path), ["there is no such run directory, journal or report.json"])
    return build(path)


def _stored(path: Path) -> Report:
    try:
        return from_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SpecError(str(path), [str(error)]) from error


Number = Callable[[Report], float | None]
Words = Callable[[float | None], str]


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


_FIGURES: tuple[tuple[str, Number, Words, int], ...] = (
    ("goodput", lambda r: r.goodput.ratio, text.percent, 1),
    ("merged goodput", lambda r: r.goodput.merged_ratio, text.percent, 1),
    ("uptime", lambda r: r.goodput.uptime_ratio, text.percent, 1),
    ("longest stall", lambda r: r.goodput.longest_stall_s, text.duration, -1),
    ("healing, median", lambda r: r.healing_summary.p50_s, text.duration, -1),
    ("healing, longest", lambda r: r.healing_summary.max_s, text.duration, -1),
    ("faults effective", lambda r: float(r.faults.effective), _count, 0),
    ("steps in the window", lambda r: float(r.goodput.steps), _count, 0),
    ("tokens trained", lambda r: float(r.goodput.tokens.trained), _count, 0),
    ("tokens merged", lambda r: r.goodput.tokens.merged, _count, 0),
    ("tokens lost", lambda r: r.goodput.tokens.lost, _count, -1),
    ("final loss", lambda r: r.quality.final_loss, _plain, -1),
    ("final accuracy", lambda r: r.quality.final_accuracy, text.percent, 1),
    ("bytes per step", lambda r: r.network.bytes_per_step, _count, -1),
    ("overruns", lambda r: r.goodput.overrun_ratio, text.percent, 0),
)
"""Name, value, how it is written, and whether more is better (1), worse (-1) or neither (0)."""


_SIGNS = {"useful": 1, "other": 0}
"""Labels of the ledger of which less is not better; nobody can say what unexplained time is."""

TIE = 0.01
"""Figures this close to each other, as a share of the larger one, make no run the better one."""


def compare(a: Report, b: Report, *, together: bool = False) -> Comparison:
    """Put two reports side by side. ``together``: they are of one suite, so different experiments
    are what was asked for."""
    figures = tuple(_figure(n, value(a), value(b), w, s) for n, value, w, s in _FIGURES)
    ledger = tuple(
        _figure(label, _share(a, label), _share(b, label), text.percent, s)
        for label, s in ((label, _SIGNS.get(label, -1)) for label in LABELS)
    )
    twin = judge(a, b) if are_twins(a, b) else None
    return Comparison(
        a, b, figures, ledger, tuple(_warnings(a, b, together)), _comparable(a, b), twin
    )


def _comparable(a: Report, b: Report) -> bool:
    measured = a.goodput.ratio is not None and b.goodput.ratio is not None
    sound = all(r.verdict.outcome not in ("harness-error", "host-too-slow") for r in (a, b))
    hosts = {h for h in (a.run.host_fingerprint, b.run.host_fingerprint) if h}
    return measured and sound and len(hosts) < 2


def _share(report: Report, label: str) -> float | None:
    total = report.goodput.allocated_s
    return report.goodput.ledger_s[label] / total if total else None


def _figure(name: str, a: float | None, b: float | None, words: Words, sign: int) -> Figure:
    if a is None or b is None:
        return Figure(name, words(a), words(b), "–", "")
    # The ratio only where it means something: no division by nothing, no "1.00x" of equals.
    change = "same" if a == b else f"×{b / a:.3f}" if a > 0 else "–"
    better = "" if sign == 0 or _tied(a, b) else "B" if (b - a) * sign > 0 else "A"
    return Figure(name, words(a), words(b), change, better)


def _tied(a: float, b: float) -> bool:
    return abs(b - a) <= TIE * max(abs(a), abs(b))


def _warnings(a: Report, b: Report, together: bool) -> list[str]:
    said = []
    for side, report in (("A", a), ("B", b)):
        if not report.verdict.conclusive:
            said.append(f"{side} is not conclusive: {'; '.join(report.verdict.reasons)}")
    if a.quality.held_out != b.quality.held_out:
        said.append("one loss is held-out, the other one training loss")
    for name, one, other in (
        ("experiments", a.run.experiment, b.run.experiment),
        ("runtimes", a.run.runtime, b.run.runtime),
        ("hosts", a.run.host_fingerprint, b.run.host_fingerprint),
        ("seeds", str(a.run.seed), str(b.run.seed)),
    ):
        # A simulated twin is of another runtime and of no host on purpose.
        if one == other or (together and name == "experiments"):
            continue
        if not (are_twins(a, b) and name in ("runtimes", "hosts")):
            said.append(f"different {name}: {one or 'unknown'} and {other or 'unknown'}")
    return said


def as_text(comparison: Comparison, gates: Sequence[GateRow] = ()) -> str:
    """The comparison for a terminal, and the bounds that a suite sets."""
    a, b = comparison.a, comparison.b
    rows = [["", "A", "B", "B to A", "better"]]
    rows.append(["outcome", text.title(a), text.title(b), "", ""])
    rows.append(["run", f"{a.run.experiment} {a.run.id}", f"{b.run.experiment} {b.run.id}", "", ""])
    rows += [[f.name, f.a, f.b, f.change, f.better] for f in comparison.figures]
    rows += [[f"time {f.name}", f.a, f.b, f.change, f.better] for f in comparison.ledger]
    lines = text.columns(rows)
    lines += [f"warning: {w}" for w in comparison.warnings]
    lines += [
        f"gate {g.name}: {_gate_value(g)}, {'met' if g.ok else f'not met: {g.why}'}" for g in gates
    ]
    if comparison.twin is not None:
        words = "AGREE" if comparison.twin.ok else "DISAGREE"
        lines += ["", f"live and simulated twin {words}", *twin_lines(comparison.twin)]
    if not comparison.comparable:
        lines.append("NOT COMPARABLE: a difference between these two runs proves nothing")
    return "\n".join(lines) + "\n"


def _gate_value(gate: GateRow) -> str:
    if gate.unit == "count":
        return f"{gate.value:g} ({gate.better} {gate.bound:g})"
    value = "unknown" if gate.value is None else f"×{gate.value:.2f}"
    return f"{value} ({gate.better} ×{gate.bound:g})"


def as_json(comparison: Comparison) -> bytes:
    """The comparison for machines."""
    value = {
        "schema": 1,
        "a": comparison.a,
        "b": comparison.b,
        "figures": comparison.figures,
        "ledger": comparison.ledger,
        "warnings": comparison.warnings,
        "comparable": comparison.comparable,
        "twin": comparison.twin
        and {"ok": comparison.twin.ok, **msgspec.to_builtins(comparison.twin)},
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def as_html(
    comparison: Comparison,
    *,
    title: str = "",
    note: str = "",
    gates: Sequence[GateRow] = (),
    links: tuple[str, str] = ("", ""),
) -> bytes:
    """The comparison as a self-contained page.

    ``title``, ``note`` and ``gates`` are those of a suite; ``links`` lead to the runs' own reports.
    """
    page = environment().get_template("compare.html.j2")
    sides = [
        (name, report, text.title(report), tone(report), goodput_bar(report))
        for name, report in (("A", comparison.a), ("B", comparison.b))
    ]
    return page.render(
        c=comparison,
        sides=sides,
        t=text,
        labels=LABELS,
        twin_lines=twin_lines,
        title=title,
        note=note,
        links=dict(zip("AB", links, strict=True)),
        gates=[(g, _gate_value(g)) for g in gates],
    ).encode()
