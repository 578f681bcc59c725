"""``diloco-chaos simulate --sweep NAME``: the real protocol in virtual time, over many settings.

Prints ours beside what the paper says, and what had to be assumed. ``--seed`` fixes everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.progress import Progress

from harness.events import Merged
from harness.fuzz.act import Ran, perform
from harness.journal import JournalText
from harness.scale import sweeps
from harness.scale.sweeps import Burst, Mixed
from reports.build import Analysis, analyse
from reports.history import fold

SLOW_MAX = 0.90
"""Share of time in steps below which a quorum of all counts as slow."""
UNHEARD_MAX = 0.35
"""Share of work merged below which hardly anybody is heard."""
HEARD_MIN = 0.85
FULL_MIN = 0.99
SCAVENGED_WITHIN = 0.02
"""How far a training time may lie above its bound, as a share of the base time."""


@dataclass(frozen=True)
class Speeds:
    """What a cluster of mixed speeds did under one setting."""

    row: Mixed
    stepping: float
    """Share of time in steps, the paper's goodput: a step of a chip whose speed varies is useful
    as a whole."""
    waiting: float
    heard: float
    """Share of all trained tokens that entered a merge."""
    participants: float
    """Learners in a merge, in the mean."""
    steps_per_s: float
    """Global steps per second."""


def speeds(row: Mixed, seed: int, seconds: float = sweeps.MIXED_SECONDS) -> Speeds:
    """Run one row."""
    _, analysis = _run(sweeps.mixed_table(row, seconds), seed)
    good = analysis.report.goodput
    merged = good.tokens.merged or 0
    sizes = [len(m.event.contributions) for m in analysis.history.merges]
    clocks = [(m.event.t_ns, m.event.clock) for m in analysis.history.merges]
    passed = clocks[-1][1] - clocks[0][1], (clocks[-1][0] - clocks[0][0]) / 1e9
    return Speeds(
        row,
        stepping=(good.ledger_s["useful"] + good.ledger_s["slowed"]) / good.allocated_s,
        waiting=good.ledger_s["waiting"] / good.allocated_s,
        heard=merged / good.tokens.trained,
        participants=sum(sizes) / len(sizes),
        steps_per_s=passed[0] / passed[1],
    )


@dataclass(frozen=True)
class Scavenged:
    """How long the same work took with a burst of more learners."""

    burst: Burst
    seconds: float
    share: float
    """Of the time that the 4 learners alone took."""


def scavenged(
    seed: int, tick: Callable[[], None], seconds: float = sweeps.SCAVENGING_SECONDS
) -> list[Scavenged]:
    """Run every column; the work is what the 4 learners merge in ``seconds``."""
    out: list[Scavenged] = []
    work = base_s = 0.0
    for burst in sweeps.TABLE_4:
        ran, analysis = _run(sweeps.burst_table(burst, seconds), seed)
        start_ns = analysis.history.start_ns or 0
        if not out:
            work = _merged_by(ran, start_ns, seconds)
            base_s = _time_for(ran, start_ns, work)
        took_s = _time_for(ran, start_ns, work)
        out.append(Scavenged(burst, took_s, took_s / base_s))
        tick()
    return out


def _merges(ran: Ran, start_ns: int) -> list[tuple[float, int]]:
    """(seconds since steady state, tokens) of every merge; all fragments count alike, so the same
    work means the same sum."""
    return [
        ((e.t_ns - start_ns) / 1e9, sum(c.c_tokens for c in e.contributions))
        for e in ran.events
        if isinstance(e, Merged) and e.t_ns > start_ns
    ]


def _merged_by(ran: Ran, start_ns: int, seconds: float) -> float:
    return sum(tokens for at_s, tokens in _merges(ran, start_ns) if at_s <= seconds)


def _time_for(ran: Ran, start_ns: int, work: float) -> float:
    """Seconds until that many tokens were merged; infinite when they never were."""
    done = 0.0
    for at_s, tokens in _merges(ran, start_ns):
        done += tokens
        if done >= work:
            return at_s
    return float("inf")


def _run(table: sweeps.Table, seed: int) -> tuple[Ran, Analysis]:
    ran = perform(table, seed, "sweep")
    analysis = analyse(fold(JournalText(ran.events, ())))
    if analysis.history.steady is None or analysis.history.failed:
        raise RuntimeError(f"a sweep's run proves nothing: {analysis.report.verdict.reasons}")
    return ran, analysis


# --- what is printed ----------------------------------------------------------------------------


def execute(name: str, seed: int, *, as_json: bool) -> int:
    """Run the sweep called ``name``; 1 when the paper's pattern does not come out."""
    return SWEEPS[name](seed, as_json)


def _mixed(seed: int, as_json: bool) -> int:
    found = _over(sweeps.TABLE_5, seed, as_json)
    ok = table_5_holds(found)
    _say(as_json, {"rows": [asdict(f) for f in found], "ok": ok}, [*_speed_lines(found), _mark(ok)])
    return 0 if ok else 1


def table_5_holds(found: Sequence[Speeds]) -> bool:
    """All of them: slow but sound; full goodput and hardly anybody heard; both high."""
    everyone, racing, graceful = found
    return (
        everyone.stepping <= SLOW_MAX
        and everyone.heard >= HEARD_MIN
        and racing.stepping >= FULL_MIN
        and racing.heard <= UNHEARD_MAX
        and graceful.stepping >= FULL_MIN
        and graceful.heard >= HEARD_MIN
    )


def _quorums(seed: int, as_json: bool) -> int:
    found = _over(sweeps.QUORUMS, seed, as_json)
    _say(as_json, {"rows": [asdict(f) for f in found]}, _speed_lines(found))
    return 0


def _over(rows: Sequence[Mixed], seed: int, as_json: bool) -> list[Speeds]:
    found = []
    with Progress(transient=True, disable=as_json) as progress:
        bar = progress.add_task("simulating", total=len(rows))
        for row in rows:
            found.append(speeds(row, seed))
            progress.advance(bar)
    return found


def _speed_lines(found: Sequence[Speeds]) -> list[str]:
    lines = [
        f"8 learners, 4 of them {sweeps.SLOWER:.0%} slower, {sweeps.VARIANCE:.0%} speed variance; "
        f"simulated protocol, {sweeps.MIXED_SECONDS:g} s of 1 s steps",
        "",
        f"{'K / grace':<22}{'goodput':>9}{'paper':>7}{'merged':>9}{'heard':>8}{'global steps':>14}"
        f"{'paper text':>12}{'vision':>8}",
    ]
    for one in found:
        row = one.row
        name = f"{row.quorum} / {'on' if row.grace else 'off'}"
        name += ", blocking" if row.blocking else ""
        paper = "-" if row.paper_goodput is None else f"{row.paper_goodput} %"
        lines.append(
            f"{name:<22}{one.stepping:>9.1%}{paper:>7}{one.heard:>9.1%}{one.participants:>8.2f}"
            f"{one.steps_per_s:>12.2f}/s{row.paper_text or '-':>12}{row.paper_vision or '-':>8}"
        )
    return [
        *lines,
        "",
        "goodput: share of time in steps (the paper's definition). merged: share of the trained "
        "tokens that",
        "entered a merge (ours). heard: learners in a merge. The paper's scores stand beside "
        "them because what",
        "is not merged is not learned: they drop where goodput does not.",
        "assumed: variance is per step and normal; a quorum of all without grace waits in every "
        "step, as the",
        "streaming variant does; H = P = 24, tau = 2.",
    ]


def _scavenging(seed: int, as_json: bool) -> int:
    with Progress(transient=True, disable=as_json) as progress:
        bar = progress.add_task("simulating", total=len(sweeps.TABLE_4))
        found = scavenged(seed, lambda: progress.advance(bar))
    ok = all(f.share - f.burst.bound <= SCAVENGED_WITHIN for f in found)
    lines = [
        f"{sweeps.BASE_LEARNERS} learners, joined by more for half of the work: training time as "
        "a share of theirs alone",
        "",
        f"{'more learners':<16}{'lower bound':>12}{'ours':>8}{'paper':>8}"
        f"{'paper, data-parallel':>22}",
    ]
    for one in found:
        burst = one.burst
        name = f"+{burst.more} (+{burst.more / sweeps.BASE_LEARNERS:.0%})"
        lines.append(
            f"{name:<16}{burst.bound:>12.3f}{one.share:>8.3f}{burst.paper_decoupled:>8.2f}"
            f"{burst.paper_data_parallel:>22.2f}"
        )
    lines += [
        "",
        f"assumed: {sweeps.SCAVENGING_SECONDS:g} s of 1 s steps, first without and then with the "
        "others; whoever is away is",
        "frozen and comes back stale, so that up to one cycle of fragments (24 steps) is lost. "
        "The paper's runs",
        "take days, so that this cost vanishes there. Work is counted in merged tokens.",
        _mark(ok),
    ]
    value = {"rows": [{**asdict(f), "bound": f.burst.bound} for f in found], "ok": ok}
    _say(as_json, value, lines)
    return 0 if ok else 1


def _mark(ok: bool) -> str:
    return "the paper's pattern holds" if ok else "THE PAPER'S PATTERN DOES NOT HOLD"


def _say(as_json: bool, value: object, lines: Sequence[str]) -> None:
    sys.stdout.write((json.dumps(value) if as_json else "\n".join(lines)) + "\n")


SWEEPS: dict[str, Callable[[int, bool], int]] = {
    "mixed-speeds": _mixed,
    "quorum": _quorums,
    "scavenging": _scavenging,
}
"""Name to what runs it; the one visible table."""
