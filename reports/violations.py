"""What is wrong with a run whose only purpose was to find something wrong.

A verdict weighs; a fuzzer wants every broken promise by name. Beside the checks this knows one
more promise, *liveness*: once everything is healed, the run must converge within the quiet tail,
and if it does not there must be a reason that names who waits for what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from harness.events import AnyEvent, Event, Step
from harness.journal import JournalText
from reports.build import analyse
from reports.claims import CLAIMS
from reports.history import History, fold

_CONVERGED = 2 / 3
"""By this share of the quiet tail the run must have converged; the rest must show it."""


@dataclass(frozen=True)
class Violation:
    """A promise that the run broke: the check's name, why, and the journal lines that prove it."""

    check: str
    why: str
    lines: tuple[int, ...] = ()


class Finished(Protocol):
    """A run in memory (``harness.fuzz.act.Ran``)."""

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """Everything that was journalled, in order."""
        ...

    @property
    def pending(self) -> Mapping[str, str]:
        """What units said they waited for when the quiet tail ended."""
        ...


def judge(ran: Finished) -> list[Violation]:
    """Every promise that the run broke, safety first."""
    history = fold(JournalText(ran.events, ()))
    analysis = analyse(history)
    found = []
    for answer in analysis.answers:
        name, finding = answer.check.name, answer.finding
        if answer.crashed:
            found.append(Violation(name, finding.why))
        elif finding.valid is False and _owed(name, history):
            found.append(Violation(name, finding.why, finding.events))
    verdict = analysis.report.verdict
    if verdict.outcome == "harness-error":
        found.append(Violation("harness", "; ".join(verdict.reasons)))
    found += [Violation(name, *text) for name, claim in CLAIMS.items() for text in claim(history)]
    return found + _liveness(history, ran.pending)


def _owed(check: str, history: History) -> bool:
    """Whether the run's parameters promise what the check looks at."""
    params = history.run.params
    if check == "back-in-time":
        # A learner that is back cannot be heard while others keep the quorum from being met.
        return _everybody_heard(params) and params.get("quorum") == 1
    if check == "blast-radius":
        return not params.get("blocking")  # where learners wait for each other all feel a fault
    # In a pile of overlapping faults one may well hide another's effect.
    return check != "faults-real"


def _everybody_heard(params: Mapping[str, object]) -> bool:
    """Whether every training learner gets into merges. With a quorum below the number of learners
    those are left out, by design, who trail the rest where there is no grace window or a
    fragment is merged every other step."""
    patient = bool(params.get("grace")) and params.get("sync_every") not in (1, 2)
    return patient or params.get("quorum") == params.get("learners")


def _liveness(history: History, pending: Mapping[str, str]) -> list[Violation]:
    if history.baseline_unmet is not None:
        why = f"undisturbed, {history.baseline_unmet.event.why}"
        return [Violation("liveness", why, (history.baseline_unmet.line,))]
    if history.window_ended is None or history.tail_ended is None:
        return []
    healed, end = history.window_ended.event.t_ns, history.tail_ended.event.t_ns
    since = healed + round((end - healed) * _CONVERGED)
    step_ns = max((u.step_time_ns for u in history.units.values()), default=0)
    if end - since < 3 * step_ns:
        return []  # too short a tail to tell
    said = "; ".join(f"{unit}: {what}" for unit, what in sorted(pending.items()))
    reason = f" ({said})" if said else ""
    found = []
    for unit in history.learners:
        if not any(s.event.t_ns > since for s in history.steps(unit)):
            why = f"{unit} made no step in the last {(end - since) / 1e9:.1f} s after healing: "
            found.append(Violation("liveness", why + _state(history, unit, end) + reason))
    merges = [m for m in history.merges if m.event.t_ns > since]
    if history.run.fragments and not merges:
        why = f"nothing was merged in the last {(end - since) / 1e9:.1f} s after healing"
        found.append(Violation("liveness", why + reason))
    elif history.run.fragments and _everybody_heard(history.run.params):
        after = [m.event for m in history.merges if m.event.t_ns > healed]
        heard = {part.unit for merged in after for part in merged.contributions}
        for unit in history.learners:
            if unit not in heard:
                why = f"{unit} had no part in any merge after healing"
                found.append(Violation("liveness", why + reason))
    return found


def _state(history: History, unit: str, at_ns: int) -> str:
    """Where a learner is stuck, from what it journalled."""
    lives = history.lives.get(unit, [])
    life = lives[-1] if lives else None
    if life is None or life.ended_by(at_ns):
        return "no process"
    if life.ready_ns is None:
        return f"life {life.incarnation} never got ready"
    if life.joined is None:
        return f"life {life.incarnation} never joined"
    last: Event | None = life.steps[-1].event if life.steps else None
    if isinstance(last, Step):
        return f"its last step was {last.step}, {(at_ns - last.t_ns) / 1e9:.1f} s before the end"
    return f"life {life.incarnation} joined and never stepped"
