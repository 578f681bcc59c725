"""The report as one self-contained page: no network, no script, readable in any browser.

All text that came from outside (names, log lines, reasons) is escaped by the template engine or by
the drawing code. Long tables are capped and say so. The same analysis gives the same bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from harness.events import ProxyChanged, UnitNote
from reports import charts, text
from reports.build import Analysis
from reports.lanes import swim_lanes
from reports.ledger import LABELS
from reports.losschart import token_chart
from reports.schema import Report

ROWS_MAX = 200
"""Rows of any table on the page."""

DATA_BYTES_MAX = 300_000
"""Embedded JSON above this is cut down to the parts of fixed size."""

GLOSSARY = (
    ("learner", "one island of compute that trains its own replica on its own data"),
    ("syncer", "merges fragments from learners into new versions; never trains"),
    ("fragment", "one of P disjoint groups of parameters, synchronized on its own"),
    ("quorum", "how many learners a merge needs; the grace window waits a little for more"),
    ("window", "from steady state to the end of the quiet tail; all ratios are over it"),
    ("allocated time", "the window's length times the learners that were asked for"),
    ("goodput", "share of allocated time in steps that count, up to their nominal time"),
    (
        "merged goodput",
        "goodput that counts a step only by the share of parameters it was merged into",
    ),
    ("lost (time)", text.LABEL_WORDS["lost"] + "; 0 in a run that lost nobody"),
    ("overwritten by merges (tokens)", text.TOKENS_NOTE),
    ("uptime", "share of the window in which at least one learner was stepping"),
    ("planned, executed, effective", "drawn from the spec; carried out; seen in the victim"),
    ("self-healing latency", "from the effect (or the lift) to the first merged contribution"),
    ("incarnation", "number of a unit's life; it rises by one with every start"),
    ("overrun", "a step whose compute alone took longer than its emulated time"),
    ("residue", "anything of the run that was still there after it"),
)

_HERE = Path(__file__).parent


def render(analysis: Analysis) -> bytes:
    """The whole page."""
    drawing = swim_lanes(analysis)
    loss, loss_note = charts.loss_chart(analysis)
    learned, learned_note = token_chart(analysis.report.quality)
    report = analysis.report
    page = environment().get_template("report.html.j2")
    return page.render(
        r=report,
        t=text,
        title=text.title(report),
        tone=tone(report),
        lanes=drawing,
        rate=charts.rate_chart(analysis),
        loss=loss,
        loss_note=loss_note,
        learned=learned,
        learned_note=learned_note,
        bar=charts.goodput_bar(report),
        shares=shares(report),
        phases=phases(analysis),
        healing=_capped(report.healing),
        longest=max((h.reintegrate_s or 0.0 for h in report.healing), default=0.0),
        healing_bar=charts.healing_bar,
        fault_rows=_capped(report.faults.rows),
        members=participation(analysis),
        by_learner=list(report.goodput.by_learner_s.items())[:ROWS_MAX],
        notes=_capped(unit_notes(analysis)),
        data=embedded(report),
        labels=LABELS,
        glossary=GLOSSARY,
        steady=analysis.history.steady,
        params=sorted(analysis.history.run.params.items()),
    ).encode()


def tone(report: Report) -> str:
    """good, bad or doubt: colour and shape of the banner."""
    if report.verdict.exit_status == 0:
        return "good"
    return "bad" if report.verdict.conclusive else "doubt"


@cache
def environment() -> jinja2.Environment:
    """Where templates are found; text from a run is escaped by default."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    env.filters["percent"] = text.percent
    env.filters["duration"] = text.duration
    env.filters["count"] = text.count
    env.filters["checkpoints"] = text.checkpoints_line
    env.filters["checkpoints_tile"] = text.checkpoints_tile
    # The stylesheet is ours and must not be escaped; nothing from a run ever goes into it.
    env.globals["css"] = Markup((_HERE / "report.css").read_text())
    return env


@dataclass(frozen=True)
class Share:
    """One row under the goodput bar. ``tenths`` are tenths of a percent and sum to 1000."""

    label: str
    words: str
    seconds: float
    tenths: int

    @property
    def percent(self) -> str:
        """The share, one decimal."""
        return f"{self.tenths / 10:.1f}%"


def shares(report: Report) -> list[Share]:
    """Every label's share, rounded so that the column visibly sums to 100.0 %."""
    total = report.goodput.allocated_s
    ledger = report.goodput.ledger_s
    if total <= 0:
        return [Share(name, text.LABEL_WORDS[name], ledger[name], 0) for name in LABELS]
    exact = [ledger[name] / total * 1000 for name in LABELS]
    # The first label is what the banner calls goodput and must read the same in both places; what
    # rounding leaves over goes to the others, largest remainder first.
    whole = [round(exact[0]), *(int(value) for value in exact[1:])]
    order = sorted(range(1, len(LABELS)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: max(0, 1000 - sum(whole))]:
        whole[i] += 1
    whole[-1] -= max(0, sum(whole) - 1000)
    return [
        Share(name, text.LABEL_WORDS[name], ledger[name], whole[i]) for i, name in enumerate(LABELS)
    ]


@dataclass(frozen=True)
class Phase:
    """Steady-state figures of one stretch of the window."""

    name: str
    seconds: float
    cells: tuple[str, ...]


PHASE_ROWS = ("steps per second", "tokens per second", "merges per second", "learners per merge")


def phases(analysis: Analysis) -> list[Phase]:
    """The same figures before the first fault, while faults ran, and in the quiet tail."""
    history = analysis.history
    start, end = analysis.ledger.start_ns, analysis.ledger.end_ns
    executed = [w.executed_ns for w in history.faults if w.executed_ns is not None]
    first = min([t for t in executed if start <= t <= end], default=None)
    over = history.window_ended.event.t_ns if history.window_ended else end
    over = min(max(over, start), end)
    if first is None:
        spans = [("before the tail", start, over), ("quiet tail", over, end)]
    else:
        spans = [
            ("before the first fault", start, first),
            ("while faults ran", first, max(first, over)),
            ("quiet tail", max(first, over), end),
        ]
    steps = [(s.event.t_ns, s.event.tokens) for u in history.learners for s in history.steps(u)]
    return [_phase(analysis, name, a, b, steps) for name, a, b in spans if b > a]


def _phase(
    analysis: Analysis, name: str, start: int, end: int, steps: Sequence[tuple[int, int]]
) -> Phase:
    seconds = (end - start) / 1e9
    inside = [tokens for t, tokens in steps if start < t <= end]
    merges = [m.event for m in analysis.history.merges if start < m.event.t_ns <= end]
    members = sum(len(m.contributions) for m in merges)
    cells = (
        f"{len(inside) / seconds:.2f}",
        f"{sum(inside) / seconds:,.0f}",
        f"{len(merges) / seconds:.2f}",
        f"{members / len(merges):.2f}" if merges else "–",
    )
    return Phase(name, seconds, cells)


@dataclass(frozen=True)
class Member:
    """One learner's part in the merges of the window."""

    unit: str
    merges: int
    total: int
    reasons: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float | None:
        """Share of the merges in which it took part."""
        return self.merges / self.total if self.total else None


def participation(analysis: Analysis) -> list[Member]:
    """Who was in how many merges, and why the others were left out (commonest reasons)."""
    ledger = analysis.ledger
    inside = [
        m.event for m in analysis.history.merges if ledger.start_ns < m.event.t_ns <= ledger.end_ns
    ]
    took: Counter[str] = Counter()
    why: dict[str, Counter[str]] = {}
    for merge in inside:
        took.update({p.unit for p in merge.contributions})
        for unit, reason in merge.excluded.items():
            why.setdefault(unit, Counter())[reason] += 1
    return [
        Member(unit, took[unit], len(inside), tuple(_commonest(why.get(unit, Counter()))))
        for unit in analysis.history.learners[:ROWS_MAX]
    ]


def _commonest(reasons: Counter[str]) -> list[tuple[str, int]]:
    """Reasons that differ in their numbers alone are one reason, told by its commonest wording."""
    groups: dict[str, Counter[str]] = {}
    for reason, times in reasons.items():
        groups.setdefault(re.sub(r"\d+", "#", reason), Counter())[reason] = times
    told = [
        (min(group, key=lambda reason: (-group[reason], reason)), group.total())
        for group in groups.values()
    ]
    return sorted(told, key=lambda item: (-item[1], item[0]))[:4]


def unit_notes(analysis: Analysis) -> list[tuple[str, str, str, str, int]]:
    """(when, unit, kind, text, journal line) of what units and the proxy said in passing."""
    found = []
    for seen in analysis.history.notes:
        event = seen.event
        when = f"{event.t_ns / 1e9:.2f} s"
        if isinstance(event, UnitNote):
            found.append((when, event.unit, event.what, event.detail[:500], seen.line))
        elif isinstance(event, ProxyChanged):
            found.append((when, event.unit or "proxy", "proxy", event.what[:500], seen.line))
    return found


@dataclass(frozen=True)
class Capped:
    """The first rows of a table and how many there are."""

    rows: Sequence[Any]
    total: int

    @property
    def note(self) -> str:
        """ "showing N of M" when some are left out."""
        if len(self.rows) == self.total:
            return ""
        return f"showing {len(self.rows)} of {self.total}; all are in report.json"


def _capped(rows: Sequence[Any]) -> Capped:
    return Capped(rows[:ROWS_MAX], len(rows))


def embedded(report: Report) -> Markup:
    """report.json for machines, safe inside a script element; cut down when it is very large."""
    data = msgspec.json.encode(report)
    if len(data) > DATA_BYTES_MAX:
        small = msgspec.structs.replace(
            report,
            healing=[],
            faults=msgspec.structs.replace(report.faults, rows=[], skipped=[]),
        )
        data = msgspec.json.encode(small)
    if len(data) > DATA_BYTES_MAX:
        data = b'{"schema": 1, "cut": "see report.json"}'
    # Inside a script element only "<" can end or open anything.
    return Markup(data.decode().replace("<", "\\u003c"))
