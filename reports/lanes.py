"""The swim-lanes: one lane per unit over time, as inline SVG.

A learner's lane shows its ledger labels, by colour and by pattern; the syncer's lane one tick per
merge, as high as the share of learners in it. Behind the lane each fault on that unit is shaded
and named. Marks: a cross where a process ended, a numbered dot where a new life begins, a strip
below the bar while the unit's link was down. Big journals are thinned out by a fixed rule, and the
page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from harness.events import LinkDown
from reports.build import Analysis
from reports.healing import Healing
from reports.ledger import ABSENT, LABELS, Segment
from reports.lives import FaultWindow

LEFT = 112.0
WIDTH = 1120.0
RIGHT = 14.0
TOP = 30.0
ROW = 56.0
BAR_Y = 20.0
BAR_H = 18.0

SHAPES_MAX = 16_000
"""Bars drawn over all lanes, so that the page stays small."""

NARROW = 0.7
"""Width in pixels below which a bar is not drawn on its own."""

MARKS_MAX = 1_500
"""Ticks, crosses, dots and triangles per lane."""


@dataclass(frozen=True)
class Scale:
    """Time to pixels. Times in ns."""

    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the axis; at least 1."""
        return max(1, self.end_ns - self.start_ns)

    def x(self, t_ns: int) -> float:
        """Horizontal position of an instant, clamped to the plot."""
        share = (t_ns - self.start_ns) / self.span_ns
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[int]:
        """Round instants, five to twelve of them."""
        seconds = self.span_ns / 1e9
        step = 1e-3
        for base in (1, 2, 5):
            for power in range(-3, 6):
                size = base * 10.0**power
                if seconds / size <= 12 and (step == 1e-3 or size < step):
                    step = size
        step_ns = max(1, round(step * 1e9))
        first = -(-self.start_ns // step_ns) * step_ns
        return list(range(first, self.end_ns + 1, step_ns))


@dataclass(frozen=True)
class Drawing:
    """An SVG and what was left out of it (empty when nothing was)."""

    svg: Markup
    note: str


def number(value: float) -> str:
    """A coordinate with at most one decimal, as short as possible."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def scale_of(analysis: Analysis) -> Scale:
    """From the run's start, or shortly before steady state when starting took long."""
    history = analysis.history
    end = max(history.end_ns, 1)
    start = history.start_ns
    if start is not None and start > 0.25 * end:
        return Scale(max(0, start - (end - start) // 12), end)
    return Scale(0, end)


def swim_lanes(analysis: Analysis) -> Drawing:
    """All lanes in one drawing."""
    history = analysis.history
    scale = scale_of(analysis)
    units = [*history.syncers, *history.learners]
    height = TOP + ROW * max(1, len(units)) + 8
    out = [
        f'<svg class="lanes" viewBox="0 0 {number(WIDTH)} {number(height)}" role="img" '
        f'aria-label="Timeline of {len(units)} units">',
        _axis(scale, height),
    ]
    notes: list[str] = []
    hidden: list[tuple[int, int]] = []
    per_lane = SHAPES_MAX // max(1, len(history.learners))
    for index, unit in enumerate(units):
        top = TOP + index * ROW
        out.append(f'<g transform="translate(0 {number(top)})">')
        out.append(_lane(analysis, scale, unit, per_lane, notes, hidden))
        out.append("</g>")
    if hidden:
        few, all_bars = sum(a for a, _ in hidden), sum(b for _, b in hidden)
        words = (
            f"showing {few} of {all_bars} bars in {len(hidden)} of {len(history.learners)} lanes"
        )
        notes.append(f"{words}, each pixel by what fills most of it")
    out += [_milestones(analysis, scale, height), "</svg>"]
    return Drawing(Markup("".join(out)), "; ".join(dict.fromkeys(notes)))


def _axis(scale: Scale, height: float) -> str:
    parts = []
    for tick in scale.ticks():
        x = number(scale.x(tick))
        parts.append(f'<path class="grid" d="M{x} {number(TOP)}V{number(height - 8)}"/>')
        label = f"{tick / 1e9:g} s"
        parts.append(f'<text class="tick" x="{x}" y="24" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _milestones(analysis: Analysis, scale: Scale, height: float) -> str:
    history = analysis.history
    marks = [(history.start_ns, "steady state")]
    if history.window_ended:
        marks.append((history.window_ended.event.t_ns, "faults over"))
    parts = []
    for at, name in marks:
        if at is None or not scale.start_ns <= at <= scale.end_ns:
            continue
        x = scale.x(at)
        anchor, shift = ("end", -4) if x > WIDTH - 120 else ("start", 4)
        parts.append(f'<path class="milestone" d="M{number(x)} 2V{number(height - 8)}"/>')
        parts.append(
            f'<text class="mile" x="{number(x + shift)}" y="10" '
            f'text-anchor="{anchor}">{name}</text>'
        )
    return "".join(parts)


def _lane(
    analysis: Analysis,
    scale: Scale,
    unit: str,
    per_lane: int,
    notes: list[str],
    hidden: list[tuple[int, int]],
) -> str:
    history = analysis.history
    right = WIDTH - RIGHT
    name = escape(unit if len(unit) <= 16 else unit[:15] + "…")
    parts = [
        f'<path class="rule" d="M0 {number(ROW)}H{number(right)}"/>',
        f'<text class="unit" x="4" y="{number(BAR_Y + 13)}">{name}</text>',
        _shades(analysis, scale, unit, notes),
    ]
    if unit in history.syncers:
        parts.append(_merges(analysis, scale, unit, notes))
    else:
        parts.append(
            f'<rect class="unmeasured" x="{number(LEFT)}" y="{number(BAR_Y)}" '
            f'width="{number(right - LEFT)}" height="{number(BAR_H)}"/>'
        )
        ledger = next((one for one in analysis.ledger.learners if one.unit == unit), None)
        segments = ledger.segments if ledger else []
        shown = thin(segments, scale, per_lane)
        if len(shown) < len(segments):
            hidden.append((len(shown), len(segments)))
        parts.append(_bars(shown, scale))
    parts.append(_marks(analysis, scale, unit, notes))
    return "".join(parts)


def _bars(segments: Sequence[Segment], scale: Scale) -> str:
    """One path per label: far smaller than one rectangle per bar."""
    paths: dict[str, list[str]] = {}
    for one in segments:
        x0, x1 = scale.x(one.start_ns), scale.x(one.end_ns)
        width = max(0.4, x1 - x0)
        d = f"M{number(x0)} {number(BAR_Y)}h{number(width)}v{number(BAR_H)}h-{number(width)}z"
        paths.setdefault(one.label, []).append(d)
    return "".join(
        f'<path fill="url(#p-{label})" d="{"".join(paths[label])}"/>'
        for label in LABELS
        if label in paths
    )


def thin(segments: Sequence[Segment], scale: Scale, most: int) -> list[Segment]:
    """At most ``most`` segments, none of them too narrow to see. Too many or too narrow ones are
    put into columns of equal time, each with the label that fills most of it (ties: the label that
    comes first in the ledger's order). A sliver drawn at its least width would look like more."""
    narrow = NARROW * scale.span_ns / (WIDTH - LEFT - RIGHT)
    if len(segments) <= most and all(s.end_ns - s.start_ns >= narrow for s in segments):
        return list(segments)
    columns = max(1, min(most, int(WIDTH - LEFT - RIGHT)))
    start, end = segments[0].start_ns, segments[-1].end_ns
    found: list[Segment] = []
    every = (*LABELS, ABSENT)  # which is drawn as nothing at all
    at = 0
    for column in range(columns):
        low = start + (end - start) * column // columns
        high = start + (end - start) * (column + 1) // columns
        share = dict.fromkeys(every, 0)
        while at < len(segments) and segments[at].start_ns < high:
            one = segments[at]
            share[one.label] += min(one.end_ns, high) - max(one.start_ns, low)
            if one.end_ns > high:
                break
            at += 1
        label = max(every, key=lambda name: (share[name], -every.index(name)))
        if found and found[-1].label == label:
            found[-1] = Segment(found[-1].start_ns, high, label)
        else:
            found.append(Segment(low, high, label))
    return found


def _merges(analysis: Analysis, scale: Scale, unit: str, notes: list[str]) -> str:
    history = analysis.history
    learners = max(1, len(history.learners))
    own = [m for m in history.merges if m.event.unit == unit]
    every = -(-len(own) // MARKS_MAX) if own else 1
    if every > 1:
        notes.append(f"showing {len(own[::every])} of {len(own)} merges")
    base = BAR_Y + BAR_H
    parts = [f'<path class="rule" d="M{number(LEFT)} {number(base)}H{number(WIDTH - RIGHT)}"/>']
    d = []
    for merge in own[::every]:
        share = len({p.unit for p in merge.event.contributions}) / learners
        tall = max(2.0, share * BAR_H)
        d.append(f"M{number(scale.x(merge.event.t_ns))} {number(base)}v-{number(tall)}")
    parts.append(f'<path class="merge" d="{"".join(d)}"/>')
    return "".join(parts)


def _shades(analysis: Analysis, scale: Scale, unit: str, notes: list[str]) -> str:
    parts: list[str] = []
    free = [0.0, 0.0]
    rows = {id(h.fact.window): h for h in analysis.healing}
    windows = [w for w in analysis.history.faults if w.unit == unit and w.executed_ns is not None]
    for window in windows[:MARKS_MAX]:
        begin, end = shade_of(window, rows.get(id(window)), scale)
        x0, x1 = scale.x(begin), scale.x(end)
        width = max(2.0, x1 - x0)
        fact = next((f for f in analysis.facts if f.window is window), None)
        effective = "effective" if fact and fact.effect else "no effect seen"
        said = f"{window.fault} {window.kind} on {unit} at {begin / 1e9:.2f} s, {effective}"
        kind = "shade" if fact and fact.effect else "shade ghost"
        parts.append(
            f'<g><title>{escape(said)}</title><rect class="{kind}" x="{number(x0)}" y="3" '
            f'width="{number(width)}" height="{number(ROW - 4)}"/>'
            f'<path class="edge" d="M{number(x0)} 3V{number(ROW - 1)}"/></g>'
        )
        label = f"{window.fault} {window.kind}"
        level = next((i for i, x in enumerate(free) if x <= x0), None)
        if level is not None:
            room = len(label) * 5.6 + 6
            anchor, at = ("start", x0 + 3)
            if x0 + room > WIDTH - RIGHT:
                anchor, at = ("end", WIDTH - RIGHT)
            free[level] = x0 + room
            y = 13.0 if level == 0 else ROW - 4
            parts.append(
                f'<text class="fault" x="{number(at)}" y="{number(y)}" '
                f'text-anchor="{anchor}">{escape(label)}</text>'
            )
    if len(windows) > MARKS_MAX:
        notes.append(f"showing {MARKS_MAX} of {len(windows)} faults on {unit}")
    return "".join(parts)


def shade_of(window: FaultWindow, row: Healing | None, scale: Scale) -> tuple[int, int]:
    """The span to shade: until the fault was lifted, or for a death until it was healed."""
    begin = window.executed_ns or 0
    if window.lasting:
        return begin, window.until_ns(scale.end_ns)
    if row is not None and row.origin_ns is not None and row.reintegrate_ns is not None:
        return begin, row.origin_ns + row.reintegrate_ns
    return begin, scale.end_ns if row is not None and row.counts else begin


def _marks(analysis: Analysis, scale: Scale, unit: str, notes: list[str]) -> str:
    history = analysis.history
    middle = BAR_Y + BAR_H / 2
    parts: list[str] = []
    lives = history.lives.get(unit, [])
    crosses = [
        scale.x(lf.exit.event.t_ns)
        for lf in lives
        if lf.exit is not None and lf.exit.event.t_ns < scale.end_ns
    ]
    d = "".join(f"M{number(x - 4)} {number(middle - 4)}l8 8m0-8l-8 8" for x in crosses[:MARKS_MAX])
    if d:
        parts.append(f'<path class="halo" d="{d}"/><path class="cross" d="{d}"/>')
    for count, life in enumerate(lives[1:MARKS_MAX], start=2):
        if life.begin_ns >= scale.end_ns:
            continue
        x = number(scale.x(life.begin_ns))
        shown = life.incarnation if life.incarnation is not None else count
        by = f", started by {life.by}" if life.by else ""
        said = escape(f"{unit}, incarnation {shown}{by}, at {life.begin_ns / 1e9:.2f} s")
        y = BAR_Y + BAR_H + 10
        parts.append(
            f'<g><title>{said}</title><path class="stem" d="M{x} {number(BAR_Y)}V{number(y - 6)}"/>'
            f'<circle class="birth" cx="{x}" cy="{number(y)}" r="6"/><text class="inc" x="{x}" '
            f'y="{number(y + 3.2)}" text-anchor="middle">{shown}</text></g>'
        )
    parts.append(_cut_off(analysis, scale, unit, notes))
    return "".join(parts)


def _cut_off(analysis: Analysis, scale: Scale, unit: str, notes: list[str]) -> str:
    """A strip below the bar from the moment the link was given up until it worked again."""
    spans: list[tuple[int, int]] = []
    since: int | None = None
    for seen in analysis.history.links:
        event = seen.event
        if unit not in analysis.history.learners or event.peer != unit:
            continue
        if isinstance(event, LinkDown):
            since = event.t_ns if since is None else since
        elif since is not None:
            spans.append((since, event.t_ns))
            since = None
    if since is not None and since < scale.end_ns:
        spans.append((since, scale.end_ns))
    if len(spans) > MARKS_MAX:
        notes.append(f"showing {MARKS_MAX} of {len(spans)} broken links of {unit}")
    d = ""
    for begin, end in spans[:MARKS_MAX]:
        if begin < scale.end_ns:
            x = scale.x(begin)
            width = number(max(2.0, scale.x(end) - x))
            d += f"M{number(x)} {number(BAR_Y + BAR_H + 1)}h{width}v4h-{width}z"
    return f'<path class="down" d="{d}"/>' if d else ""
