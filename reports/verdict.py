"""One outcome from everything that was found, its reasons, and the exit status.

The rules, the first that applies decides the outcome:

1. Our machinery failed, residue was left, the ledger does not add up, or the journal is damaged
   (``reports.integrity``): ``harness-error`` (4).
2. Somebody stopped the run: ``interrupted`` (130, 143 for SIGTERM).
3. The journal is cut: ``harness-error`` (4).
4. Steady state was never reached: ``baseline-not-met`` (3); no fault was executed.
5. A safety claim is broken: ``deviated`` (1). It is broken on a slow host, too.
6. More than 5 % overruns: ``host-too-slow`` (3).
7. A fault asked for did not show, and nothing says why: ``no-effect`` (3).
8. No learner stepped at the end of the window: ``deviated``, conclusive (1) once that lasted longer
   than a learner may take to be heard again, else not (3).
9. Another claim is broken or a gate is missed: ``deviated`` (1).
10. A claim or gate cannot be judged: ``deviated``, not conclusive (3): what was asked for was not
   shown to hold, so it is not called passed.
11. Else ``passed`` (0).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from reports.checks import Answer
from reports.checks.units import contribute_bound_ns
from reports.history import History
from reports.ledger import OTHER_MAX, Ledger
from reports.schema import GateRow, Outcome, Residue, Verdict
from reports.text import bound, figure

OVERRUNS_MAX = 0.05
"""Share of overruns above which the host is too slow for the run to mean anything."""

LEDGER_SLACK = 0.001
"""The ledger must sum to the allocated time within this share."""

SILENT_NS = 2_000_000_000
"""A cluster in which no learner steps for this long, or three of its steps, is dead."""

_STATUS: dict[Outcome, int] = {
    "passed": 0,
    "deviated": 1,
    "baseline-not-met": 3,
    "no-effect": 3,
    "host-too-slow": 3,
    "harness-error": 4,
    "interrupted": 130,
}


def judge(
    history: History,
    ledger: Ledger,
    answers: Sequence[Answer],
    gates: Sequence[GateRow],
    residue: Residue,
    overrun_ratio: float | None,
) -> Verdict:
    """The verdict on a run."""
    outcome, conclusive, reasons = _outcome(history, ledger, answers, gates, residue, overrun_ratio)
    cautions = [c for c in _cautions(history, ledger, answers) if c not in reasons]
    status = 3 if outcome == "deviated" and not conclusive else _STATUS[outcome]
    if outcome == "interrupted":
        why = history.ended.event.why if history.ended else ""
        status = 143 if "15" in why or "TERM" in why.upper() else 130
    return Verdict(
        outcome=outcome,
        conclusive=conclusive,
        reasons=reasons,
        cautions=cautions,
        exit_status=status,
    )


def _outcome(
    history: History,
    ledger: Ledger,
    answers: Sequence[Answer],
    gates: Sequence[GateRow],
    residue: Residue,
    overrun_ratio: float | None,
) -> tuple[Outcome, bool, list[str]]:
    harness = _harness_problems(history, ledger, residue)
    if harness:
        return "harness-error", False, harness
    status = history.ended.event.status if history.ended else ""
    if status == "interrupted":
        why = history.ended.event.why if history.ended else ""
        return "interrupted", False, [f"the run was interrupted{': ' + why if why else ''}"]
    if history.cut:
        return "harness-error", False, list(history.problems)
    if history.baseline_unmet is not None:
        return "baseline-not-met", False, [history.baseline_unmet.event.why]
    if history.steady is None:
        return "baseline-not-met", False, ["the journal holds no steady state"]
    unsafe = [a for a in answers if a.finding.valid is False and a.check.safety]
    slips = [a for a in answers if a.finding.valid is False and not a.check.safety]
    missed = [g for g in gates if not g.ok and g.value is not None]
    if unsafe:
        return "deviated", True, [*map(_says, unsafe), *map(_says, slips), *map(_gate, missed)]
    if overrun_ratio is not None and overrun_ratio > OVERRUNS_MAX:
        text = f"{overrun_ratio:.1%} of the steps took longer to compute than their emulated time"
        return "host-too-slow", False, [f"{text} (at most {OVERRUNS_MAX:.0%} is allowed)"]
    ghosts = [a for a in slips if a.check.name == "faults-real"]
    if ghosts:
        return "no-effect", False, [*map(_says, ghosts), *map(_gate, missed)]
    silent_ns = _silent_ns(history)
    if silent_ns:
        certain = bool(slips or missed) or silent_ns > contribute_bound_ns(history)
        text = f"no learner stepped in the last {silent_ns / 1e9:.1f} s of the window"
        return "deviated", certain, [text, *map(_says, slips), *map(_gate, missed)]
    if slips or missed:
        return "deviated", True, [*map(_says, slips), *map(_gate, missed)]
    unknown = [a for a in answers if a.finding.valid == "unknown" and a.finding.asked]
    blind = [g for g in gates if not g.ok]
    if unknown or blind:
        return "deviated", False, [*map(_says, unknown), *map(_gate, blind)]
    held = sum(a.finding.valid is True for a in answers)
    idle = sum(not a.finding.asked for a in answers)
    met = f"{len(gates)} of {len(gates)} gates met" if gates else "no gate was asked for"
    reasons = [f"{held} checks hold ({idle} had nothing to judge), {met}"]
    return "passed", True, reasons


def _silent_ns(history: History) -> int:
    """How long before the window's end the last learner's last step ended, where that is too long
    for one that still lives; else 0."""
    if not history.learners:
        return 0
    start = history.start_ns or 0
    inside = [
        s.event
        for unit in history.learners
        for s in history.steps(unit)
        if start < s.event.t_ns and s.event.began_at_ns < history.end_ns
    ]
    silent = history.end_ns - max((s.t_ns for s in inside), default=start)
    lengths = [s.t_ns - s.began_at_ns for s in inside]
    nominal = max((u.step_time_ns for u in history.units.values()), default=0)
    usual = max(nominal, median_low(lengths) if lengths else 0)
    return silent if silent > max(SILENT_NS, 3 * usual) else 0


def _harness_problems(history: History, ledger: Ledger, residue: Residue) -> list[str]:
    found = [f"{f.event.where}: {f.event.why}" for f in history.failed]
    if history.ended is not None and history.ended.event.status == "error":
        why = history.ended.event.why or "the run ended with an error"
        # Whoever ends a run because of a failure repeats it there in the same or more words.
        if not any(f.event.why and f.event.why in why for f in history.failed):
            found.append(why)
    left = [
        f"{len(names)} {kind} left behind: {', '.join(names[:5])}"
        for kind, names in (
            ("containers", residue.containers),
            ("networks", residue.networks),
            ("volumes", residue.volumes),
            ("processes", residue.processes),
            ("toxics", residue.toxics),
        )
        if names
    ]
    total, allocated = sum(ledger.totals().values()), ledger.allocated_ns
    if abs(total - allocated) > LEDGER_SLACK * allocated:
        left.append(f"the ledger sums to {total} ns of {allocated} ns allocated")
    if not history.cut:
        left += history.damage
    return [*dict.fromkeys(found), *left]


def _cautions(history: History, ledger: Ledger, answers: Sequence[Answer]) -> list[str]:
    said = [*history.problems, *history.run.notes]
    for kind, count in sorted(history.unknown.items()):
        said.append(f"{count} lines of the unknown kind {kind!r} were left out")
    other = ledger.totals()["other"]
    if ledger.allocated_ns and other > OTHER_MAX * ledger.allocated_ns:
        share = other / ledger.allocated_ns
        said.append(f"{share:.1%} of the learners' time has no explanation (2 % is expected)")
    skipped = [w for w in history.faults if w.skipped]
    said += [f"{w.fault} {w.kind} on {w.unit} was skipped: {w.skipped}" for w in skipped[:5]]
    if len(skipped) > 5:
        said.append(f"{len(skipped) - 5} more faults were skipped")
    said += [_says(a) for a in answers if a.crashed]
    status = history.ended.event.status if history.ended else ""
    if status not in ("", "completed") and history.residue is None:
        said.append("nobody looked for residue")
    return said


def _says(answer: Answer) -> str:
    return f"{answer.check.name}: {answer.finding.why}"


def _gate(row: GateRow) -> str:
    if row.value is None:
        return f"gate {row.name}: {row.why}"
    return f"gate {row.name}: {figure(row.value, row.unit)}, must be {bound(row)}"
