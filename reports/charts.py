"""The small drawings: the goodput bar, the token rate, the loss, and bars of healing phases."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from reports.build import Analysis
from reports.lanes import LEFT, RIGHT, WIDTH, Scale, number, scale_of, shade_of
from reports.ledger import LABELS
from reports.schema import HealingRow, Report

POINTS_MAX = 240
"""Points per curve."""

_HEIGHT = 190.0
_TOP, _BOTTOM = 12.0, 160.0


def goodput_bar(report: Report) -> Markup:
    """One bar of 100 %: every label's share of the allocated learner time."""
    total = report.goodput.allocated_s
    if total <= 0:
        return Markup("")
    width = 1120.0
    parts = [
        f'<svg class="bar" viewBox="0 0 {number(width)} 54" role="img" '
        'aria-label="Shares of the learners\' time">'
    ]
    x = 0.0
    for label in LABELS:
        share = report.goodput.ledger_s[label] / total
        wide = share * width
        if wide <= 0:
            continue
        parts.append(
            f"<g><title>{label} {share:.2%}</title>"
            f'<rect fill="url(#p-{label})" x="{x:.2f}" y="0" width="{wide:.2f}" height="36"/></g>'
        )
        text = f"{label.replace('_', ' ')} {share:.1%}"
        if wide > len(text) * 6.4:
            parts.append(f'<text class="tick" x="{x + 2:.1f}" y="50">{text}</text>')
        x += wide
    parts.append('<rect class="frame" x="0.5" y="0.5" width="1119" height="35"/></svg>')
    return Markup("".join(parts))


def healing_bar(row: HealingRow, longest_s: float) -> Markup:
    """Phases of one healing as marks on a line of common scale."""
    if longest_s <= 0:
        return Markup("")
    width = 150.0
    parts = [f'<svg class="heal" viewBox="0 0 {number(width)} 14" aria-hidden="true">']
    at = 0.0
    for phase, value in (
        ("down_restart", row.restart_s),
        ("down_init", row.ready_s),
        ("useful", row.reintegrate_s),
    ):
        if value is None:
            continue
        x = min(width, value / longest_s * width)
        if x > at:
            parts.append(
                f'<rect fill="url(#p-{phase})" x="{at:.1f}" y="2" '
                f'width="{x - at:.1f}" height="10"/>'
            )
            at = x
    parts.append("</svg>")
    return Markup("".join(parts))


def rate_chart(analysis: Analysis) -> Markup:
    """Tokens per second of all learners together, in bins of equal time."""
    history = analysis.history
    scale = scale_of(analysis)
    bins = min(160, max(1, scale.span_ns // 500_000_000))
    tokens = [0.0] * bins
    edges = [scale.start_ns + scale.span_ns * column // bins for column in range(bins + 1)]
    for unit in history.learners:
        for seen in history.steps(unit):
            step = seen.event
            length = step.t_ns - step.began_at_ns
            if length <= 0 or step.t_ns <= scale.start_ns or step.began_at_ns >= scale.end_ns:
                continue
            low = max(0, (step.began_at_ns - scale.start_ns) * bins // scale.span_ns)
            high = min(bins - 1, (step.t_ns - 1 - scale.start_ns) * bins // scale.span_ns)
            for column in range(low, high + 1):
                begin, end = edges[column], edges[column + 1]
                inside = (end if end < step.t_ns else step.t_ns) - (
                    begin if begin > step.began_at_ns else step.began_at_ns
                )
                if inside > 0:
                    tokens[column] += step.tokens * inside / length
    seconds = scale.span_ns / 1e9 / bins
    rates = [count / seconds for count in tokens]
    top = max(rates, default=0.0)
    if top <= 0:
        return Markup("")
    mids = [scale.start_ns + scale.span_ns * (2 * i + 1) // (2 * bins) for i in range(bins)]
    points = list(zip(mids, rates, strict=True))
    curve = _curve(points, scale, 0.0, top)
    area = f"M{number(scale.x(mids[0]))} {number(_BOTTOM)}L{curve[1:]}V{number(_BOTTOM)}z"
    body = f'<path class="area" d="{area}"/><path class="line" d="{curve}"/>'
    return _frame(analysis, scale, body, 0.0, top, "tokens per second, all learners")


def loss_chart(analysis: Analysis) -> tuple[Markup, str]:
    """Training loss of each learner over time, and a note on what was left out."""
    history = analysis.history
    scale = scale_of(analysis)
    curves: list[tuple[str, list[tuple[int, float]]]] = []
    total = shown = 0
    for unit in history.learners:
        found = [
            (s.event.t_ns, s.event.loss)
            for s in history.steps(unit)
            if s.event.loss is not None and scale.start_ns <= s.event.t_ns <= scale.end_ns
        ]
        thinned = _thin(found)
        total, shown = total + len(found), shown + len(thinned)
        if thinned:
            curves.append((unit, thinned))
    values = [v for _, points in curves for _, v in points]
    if not values:
        return Markup(""), ""
    low, high = min(values), max(values)
    room = (high - low or abs(high) or 1.0) * 0.05
    low, high = low - room if low < 0 else max(0.0, low - room), high + room
    parts = []
    for index, (unit, points) in enumerate(curves):
        style = f"c{index % 8}"
        parts.append(
            f'<path class="loss {style}" d="{_curve(points, scale, low, high)}">'
            f"<title>{escape(unit)}</title></path>"
        )
    legend = _legend([unit for unit, _ in curves])
    body = "".join(parts) + legend
    note = f"showing {shown} of {total} losses (means of neighbours)" if shown < total else ""
    return _frame(analysis, scale, body, low, high, "loss"), note


def _legend(units: Sequence[str]) -> str:
    parts = []
    for index, unit in enumerate(units[:8]):
        x = LEFT + 4 + index % 8 * 120
        parts.append(
            f'<path class="loss c{index % 8}" d="M{number(x)} 183h22"/>'
            f'<text class="tick" x="{number(x + 26)}" y="186">{escape(unit[:14])}</text>'
        )
    if len(units) > 8:
        x = WIDTH - RIGHT
        parts.append(
            f'<text class="tick" x="{number(x)}" y="186" text-anchor="end">'
            f"and {len(units) - 8} more</text>"
        )
    return "".join(parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Neighbours averaged so that at most POINTS_MAX points remain."""
    size = -(-len(points) // POINTS_MAX)
    if size <= 1:
        return points
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(g[len(g) // 2][0], sum(v for _, v in g) / len(g)) for g in groups]


def _curve(points: Sequence[tuple[int, float]], scale: Scale, low: float, high: float) -> str:
    span = high - low or 1.0
    where = (
        f"{number(scale.x(t))} {number(_BOTTOM - (v - low) / span * (_BOTTOM - _TOP))}"
        for t, v in points
    )
    return "M" + "L".join(where)


def _frame(
    analysis: Analysis, scale: Scale, body: str, low: float, high: float, name: str
) -> Markup:
    """Axes and shaded faults around a curve."""
    parts = [
        f'<svg class="chart" viewBox="0 0 {number(WIDTH)} {number(_HEIGHT)}" role="img" '
        f'aria-label="{escape(name)} over time">'
    ]
    rows = {id(h.fact.window): h for h in analysis.healing}
    for window in analysis.history.faults[:400]:
        if window.executed_ns is None:
            continue
        begin, end = shade_of(window, rows.get(id(window)), scale)
        x0, x1 = scale.x(begin), scale.x(end)
        said = escape(f"{window.fault} {window.kind} on {window.unit}")
        parts.append(
            f'<rect class="shade" x="{number(x0)}" y="{number(_TOP)}" '
            f'width="{number(max(1.5, x1 - x0))}" height="{number(_BOTTOM - _TOP)}">'
            f"<title>{said}</title></rect>"
        )
    for step in range(5):
        value = low + (high - low) * step / 4
        y = number(_BOTTOM - (_BOTTOM - _TOP) * step / 4)
        parts.append(f'<path class="grid" d="M{number(LEFT)} {y}H{number(WIDTH - RIGHT)}"/>')
        parts.append(
            f'<text class="tick" x="{number(LEFT - 6)}" y="{y}" dy="3" text-anchor="end">'
            f"{_short(value)}</text>"
        )
    for tick in scale.ticks():
        x = number(scale.x(tick))
        parts.append(
            f'<text class="tick" x="{x}" y="173" text-anchor="middle">{tick / 1e9:g} s</text>'
        )
    parts += [body, "</svg>"]
    return Markup("".join(parts))
