"""The held-out loss against the tokens that the parameters learned from, beside the control's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from reports.lanes import LEFT, RIGHT, WIDTH, number
from reports.schema import Quality, QualityPoint

_HEIGHT = 206.0
_TOP, _BOTTOM = 12.0, 160.0
POINTS_MAX = 400
"""Points per curve; of more, every n-th is drawn, and the last."""


def token_chart(quality: Quality) -> tuple[Markup, str]:
    """The drawing, empty without evaluations, and a note on what was left out."""
    curves = [("this run", quality.curve), (f"control: {quality.control}", quality.control_curve)]
    drawn = [(name, _thin(points)) for name, points in curves if points]
    if not quality.curve:
        return Markup(""), ""
    shown = sum(len(points) for _, points in drawn)
    total = len(quality.curve) + len(quality.control_curve)
    losses = [p.loss for _, points in drawn for p in points]
    floor = quality.loss_floor
    low = min(losses) if floor is None else min(*losses, floor)
    room = (max(losses) - low or abs(low) or 1.0) * 0.05
    bottom = max(0.0, low - room) if low >= 0 else low - room
    tokens = max(p.tokens for _, points in drawn for p in points)
    frame = _Frame(max(1, tokens), bottom, max(losses) + room)
    parts = [
        f'<svg class="chart" viewBox="0 0 {number(WIDTH)} {number(_HEIGHT)}" role="img" '
        'aria-label="Held-out loss over tokens">',
        *frame.grid(),
    ]
    if floor is not None:
        y = number(frame.y(floor))
        parts.append(
            f'<path class="loss c3" d="M{number(LEFT)} {y}H{number(WIDTH - RIGHT)}">'
            f"<title>least possible loss: {floor:.4f}</title></path>"
            f'<path class="loss c3" d="M{number(LEFT + 644)} 192h22"/>'
            f'<text class="tick" x="{number(LEFT + 670)}" y="195">least possible loss</text>'
        )
    for index, (name, points) in enumerate(drawn):
        parts += _curve(frame, index, name, points)
    if quality.compared_at_tokens is not None:
        parts.append(_mark(frame, quality))
    note = f"showing {shown} of {total} evaluations" if shown < total else ""
    return Markup("".join([*parts, "</svg>"])), note


class _Frame:
    """Tokens and losses to pixels."""

    def __init__(self, tokens: int, low: float, high: float) -> None:
        self.tokens, self.low, self.high = tokens, low, high

    def x(self, tokens: int) -> float:
        return LEFT + tokens / self.tokens * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        return _BOTTOM - (loss - self.low) / (self.high - self.low or 1.0) * (_BOTTOM - _TOP)

    def grid(self) -> list[str]:
        parts = []
        for step in range(5):
            value = self.low + (self.high - self.low) * step / 4
            y = number(self.y(value))
            parts.append(
                f'<path class="grid" d="M{number(LEFT)} {y}H{number(WIDTH - RIGHT)}"/>'
                f'<text class="tick" x="{number(LEFT - 6)}" y="{y}" dy="3" text-anchor="end">'
                f"{value:.3f}</text>"
            )
        for step in range(6):
            tokens = self.tokens * step // 5
            anchor = "end" if step == 5 else "middle"
            parts.append(
                f'<text class="tick" x="{number(self.x(tokens))}" y="173" text-anchor="{anchor}">'
                f"{short(tokens)}</text>"
            )
        return parts


def short(tokens: int) -> str:
    """A number of tokens with a unit: 950, 12.5 k, 2.40 M."""
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1e3:.1f} k" if tokens < 1_000_000 else f"{tokens / 1e6:.2f} M"


def _curve(frame: _Frame, index: int, name: str, points: Sequence[QualityPoint]) -> list[str]:
    style = f"c{index}"
    where = "L".join(f"{number(frame.x(p.tokens))} {number(frame.y(p.loss))}" for p in points)
    said = escape(name)
    x = LEFT + 4 + index * 320
    return [
        f'<path class="loss {style}" d="M{where}"><title>{said}</title></path>',
        f'<path class="loss {style}" d="M{number(x)} 192h22"/>',
        f'<text class="tick" x="{number(x + 26)}" y="195">{escape(name[:44])}</text>',
    ]


def _mark(frame: _Frame, quality: Quality) -> str:
    tokens = quality.compared_at_tokens or 0
    x = number(frame.x(tokens))
    said = f"compared at {tokens:,} tokens"
    return (
        f'<path class="grid" d="M{x} {number(_TOP)}V{number(_BOTTOM)}"><title>{said}</title></path>'
        f'<text class="tick" x="{number(frame.x(tokens) - 4)}" y="{number(_TOP + 8)}" '
        f'text-anchor="end">{said}</text>'
    )


def _thin(points: Sequence[QualityPoint]) -> list[QualityPoint]:
    size = -(-len(points) // POINTS_MAX) or 1
    kept = list(points[::size])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]
