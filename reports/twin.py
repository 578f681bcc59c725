"""Whether two runs of one experiment and seed, one live and one simulated, tell the same story.

Three things must agree: goodput within :data:`WITHIN_POINTS`, the victims (which fault was carried
out on which unit), and the verdict. Everything else may differ; it is shown beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.schema import Report

WITHIN_POINTS = 3.0


@dataclass(frozen=True)
class Twin:
    """What agrees and what does not."""

    points: float | None
    """Goodput of the simulated run less the live one's, in points; None when one has none."""
    victims: tuple[str, ...]
    """Every fault on a unit in which the two differ, in words; empty when they agree."""
    outcomes: tuple[str, str]
    """Live, simulated."""

    @property
    def goodput_ok(self) -> bool:
        """Whether goodput agrees."""
        return self.points is not None and abs(self.points) <= WITHIN_POINTS

    @property
    def ok(self) -> bool:
        """Whether all three agree."""
        return self.goodput_ok and not self.victims and self.outcomes[0] == self.outcomes[1]


def are_twins(a: Report, b: Report) -> bool:
    """Whether the two are the same experiment and seed, one of them simulated."""
    same = (a.run.experiment, a.run.seed) == (b.run.experiment, b.run.seed)
    return same and (a.run.runtime == "simulated") != (b.run.runtime == "simulated")


def judge(a: Report, b: Report) -> Twin:
    """Compare the two, in either order."""
    live, simulated = (b, a) if a.run.runtime == "simulated" else (a, b)
    points = None
    if live.goodput.ratio is not None and simulated.goodput.ratio is not None:
        points = 100 * (simulated.goodput.ratio - live.goodput.ratio)
    outcomes = (live.verdict.outcome, simulated.verdict.outcome)
    return Twin(points, tuple(_differences(live, simulated)), outcomes)


def _facts(report: Report) -> dict[tuple[str, str, str], str]:
    return {
        (row.fault, row.kind, row.unit): "skipped" if row.executed_s is None else "carried out"
        for row in report.faults.rows
    }


def _differences(live: Report, simulated: Report) -> list[str]:
    here, there = _facts(live), _facts(simulated)
    return [
        f"{' '.join(key[:2])} on {key[2]}: {here.get(key, 'not planned')} live, "
        f"{there.get(key, 'not planned')} simulated"
        for key in sorted({*here, *there})
        if here.get(key) != there.get(key)
    ]


def lines(twin: Twin) -> list[str]:
    """The judgement in words, one line for each of the three."""
    said = "unknown" if twin.points is None else f"{twin.points:+.2f} points"
    return [
        f"{_mark(twin.goodput_ok)} goodput: simulated less live {said} "
        f"(within {WITHIN_POINTS:g} points)",
        f"{_mark(not twin.victims)} victims: "
        + ("the same faults on the same units" if not twin.victims else "; ".join(twin.victims)),
        f"{_mark(twin.outcomes[0] == twin.outcomes[1])} verdict: {twin.outcomes[0]} live, "
        f"{twin.outcomes[1]} simulated",
    ]


def _mark(ok: bool) -> str:
    return "ok  " if ok else "NOT "
