"""The Report value: everything that is known about a run, ready to be written down.

:func:`analyse` does all the work once and keeps the intermediate values for pages that draw them;
:func:`build` returns the report alone. Both are pure functions of the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.events import Merged
from reports import schema
from reports.checkpoints import checkpoints
from reports.checks import Answer, run_checks
from reports.checks.base import Evidence
from reports.effects import FaultFact, judge_faults
from reports.gate import Figures, judge_gates
from reports.healing import Healing, Summary, heal, summarize
from reports.history import History, read_history
from reports.ledger import LABELS, Ledger, build_ledger
from reports.quality import Gap, Point, control_curve, curve, ended_finite, gap
from reports.tokens import Tokens, account, merged_useful
from reports.verdict import judge

_LOSSES = 20
"""Last steps per learner whose mean loss is the final loss (first steps: the first loss)."""


@dataclass(eq=False)
class Analysis:
    """A report with the values it came from."""

    history: History
    ledger: Ledger
    facts: Sequence[FaultFact]
    healing: Sequence[Healing]
    answers: Sequence[Answer]
    report: schema.Report


def build(run_dir: Path) -> schema.Report:
    """The report on the run in ``run_dir`` (a run directory or a journal file).

    Raises ``harness.errors.JournalError`` when there is no journal or it holds no event.
    """
    return analyse(read_history(run_dir)).report


def analyse(history: History) -> Analysis:
    """Compute everything that reports say about a history."""
    ledger = build_ledger(history)
    facts = judge_faults(history)
    healing = heal(history, facts)
    summary = summarize(healing)
    tokens = account(history, ledger.start_ns, ledger.end_ns)
    whole = account(history, -(2**62), history.end_ns)
    answers = run_checks(Evidence(history, facts, healing, whole))
    goodput = _goodput(history, ledger, tokens)
    faults = _faults(facts)
    quality = _quality(history, ledger, tokens)
    network = _network(history, ledger, goodput.steps)
    residue = _residue(history)
    detects = [h.detect_ns for h in healing if h.counts and h.detect_ns is not None]
    figures = Figures(
        goodput, summary, faults, quality, network, max(detects) / 1e9 if detects else None
    )
    asked = history.run.spec.get("gate") or {}
    gates = judge_gates(asked if isinstance(asked, dict) else {}, figures)
    verdict = judge(history, ledger, answers, gates, residue, goodput.overrun_ratio)
    report = schema.Report(
        schema=schema.SCHEMA,
        run=_run(history),
        verdict=verdict,
        goodput=goodput,
        faults=faults,
        healing=[_healing_row(h) for h in healing],
        healing_summary=_summary(summary, healing),
        invariants=[_invariant(a) for a in answers],
        gates=gates,
        quality=quality,
        network=network,
        residue=residue,
        checkpoints=checkpoints(history),
    )
    return Analysis(history, ledger, facts, healing, answers, report)


def seconds(ns: int | None) -> float | None:
    """Nanoseconds as seconds."""
    return None if ns is None else ns / 1e9


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _run(history: History) -> schema.Run:
    run = history.run
    return schema.Run(
        id=run.run,
        experiment=run.experiment,
        title=str(run.spec.get("title", "")),
        seed=run.seed,
        runtime=run.runtime,
        target=run.target,
        commit=run.commit,
        started_at=run.started_at,
        duration_s=max(history.end_ns, history.last_ns) / 1e9,
        proxy=run.proxy,
        host_fingerprint=run.host_fingerprint,
        repeat=run.repeat,
        learners=len(history.learners),
        complete=not history.cut,
        window_start_s=seconds(history.start_ns),
        window_end_s=history.end_ns / 1e9 if history.start_ns is not None else None,
        events=history.events,
        notes=list(history.problems),
    )


def _goodput(history: History, ledger: Ledger, tokens: Tokens) -> schema.Goodput:
    totals = ledger.totals()
    allocated = ledger.allocated_ns
    window = ledger.end_ns - ledger.start_ns
    up, stall = ledger.uptime() if ledger.learners else (0, 0)
    weighed = merged_useful(history, ledger)
    steps = sum(
        ledger.start_ns < s.event.t_ns <= ledger.end_ns
        for unit in history.learners
        for s in history.steps(unit)
    )
    return schema.Goodput(
        ratio=_share(totals["useful"], allocated),
        merged_ratio=None if weighed is None else _share(weighed[0], allocated * weighed[1]),
        uptime_ratio=_share(up, window) if ledger.learners else None,
        longest_stall_s=stall / 1e9 if window > 0 and ledger.learners else None,
        ledger_s={label: totals[label] / 1e9 for label in LABELS},
        allocated_s=allocated / 1e9,
        tokens=schema.TokenCounts(
            trained=tokens.trained,
            merged=tokens.merged,
            lost=tokens.lost,
            in_flight=tokens.in_flight,
            by_fragment=[
                schema.FragmentTokens(
                    fragment=f.fragment,
                    elements=f.elements,
                    trained=f.trained,
                    merged=f.merged,
                    lost=f.lost,
                    in_flight=f.in_flight,
                )
                for f in tokens.fragments
            ],
            died=tokens.died,
            taken_back=tokens.taken_back,
        ),
        overrun_ratio=_share(ledger.overruns, ledger.paced_steps),
        steps=steps,
        by_learner_s={
            one.unit: {label: ns / 1e9 for label, ns in one.totals().items()}
            for one in ledger.learners
        },
    )


def _faults(facts: Sequence[FaultFact]) -> schema.Faults:
    kinds = list(dict.fromkeys(f.window.kind for f in facts))
    by_kind = []
    for kind in kinds:
        some = [f for f in facts if f.window.kind == kind]
        by_kind.append(
            schema.KindRow(
                kind=kind,
                planned=len(some),
                executed=sum(f.executed for f in some),
                effective=sum(f.effect is not None for f in some),
                skipped=sum(not f.executed for f in some),
            )
        )
    return schema.Faults(
        planned=len(facts),
        executed=sum(f.executed for f in facts),
        effective=sum(f.effect is not None for f in facts),
        skipped=[
            schema.Skipped(
                fault=f.window.fault, kind=f.window.kind, unit=f.window.unit, why=f.why_not
            )
            for f in facts
            if not f.executed
        ],
        by_kind=by_kind,
        rows=[_fault_row(f) for f in facts],
    )


def _fault_row(fact: FaultFact) -> schema.FaultRow:
    window, effect = fact.window, fact.effect
    no_trace = fact.why_not or "no trace in the unit's behaviour"
    return schema.FaultRow(
        fault=window.fault,
        kind=window.kind,
        unit=window.unit,
        planned_s=seconds(window.planned_ns),
        executed_s=seconds(window.executed_ns),
        ended_s=seconds(window.ended_ns),
        effective=effect is not None,
        effective_s=seconds(effect.at_ns) if effect else None,
        evidence=effect.how if effect else no_trace,
        events=[*window.lines, *(effect.lines if effect else ())],
    )


def _healing_row(row: Healing) -> schema.HealingRow:
    window, effect = row.fact.window, row.fact.effect
    return schema.HealingRow(
        fault=window.fault,
        kind=window.kind,
        unit=window.unit,
        planned_s=seconds(window.planned_ns),
        executed_s=seconds(window.executed_ns),
        effective_s=seconds(effect.at_ns) if effect else None,
        ended_s=seconds(window.ended_ns),
        detect_s=seconds(row.detect_ns),
        restart_s=seconds(row.restart_ns),
        ready_s=seconds(row.ready_ns),
        reintegrate_s=seconds(row.reintegrate_ns),
        throughput_s=seconds(row.throughput_ns),
        restarted_by=row.restarted_by,
        state_digest_match=row.state_digest_match,
        counts=row.counts,
        waited_s=seconds(row.waited_ns),
    )


def _summary(summary: Summary, rows: Sequence[Healing]) -> schema.HealingSummary:
    by_kind = []
    for kind in dict.fromkeys(r.fact.window.kind for r in rows if r.counts):
        part = summarize([r for r in rows if r.fact.window.kind == kind])
        by_kind.append(
            schema.HealingKind(
                kind=kind,
                n=part.n,
                unhealed=part.unhealed,
                p50_s=seconds(part.p50_ns),
                max_s=seconds(part.max_ns),
            )
        )
    return schema.HealingSummary(
        p50_s=seconds(summary.p50_ns),
        p95_s=seconds(summary.p95_ns),
        max_s=seconds(summary.max_ns),
        n=summary.n,
        unhealed=summary.unhealed,
        by_kind=by_kind,
    )


def _invariant(answer: Answer) -> schema.Invariant:
    return schema.Invariant(
        name=answer.check.name,
        valid=answer.finding.valid,
        why=answer.finding.why,
        events=list(answer.finding.events),
        asked=answer.finding.asked,
        claim=answer.check.claim,
    )


def _quality(history: History, ledger: Ledger, tokens: Tokens) -> schema.Quality:
    """Training losses are means over learners of the mean of their first and last few steps."""
    first: list[float] = []
    last: list[float] = []
    for unit in history.learners:
        losses = [
            s.event.loss
            for s in history.steps(unit)
            if s.event.loss is not None and s.event.t_ns <= ledger.end_ns
        ]
        if losses:
            first.append(sum(losses[:_LOSSES]) / len(losses[:_LOSSES]))
            last.append(sum(losses[-_LOSSES:]) / len(losses[-_LOSSES:]))
    points, others = curve(history), control_curve(history)
    found = gap(history)
    equal = found if isinstance(found, Gap) else None
    training = sum(last) / len(last) if last else None
    return schema.Quality(
        final_loss=points[-1].loss if points else training,
        loss_floor=history.evaluated[-1].event.floor if history.evaluated else None,
        tokens_merged=tokens.merged,
        control_final_loss=equal.control.loss if equal else None,
        gap_ratio=equal.ratio if equal else None,
        first_loss=points[0].loss if points else sum(first) / len(first) if first else None,
        held_out=bool(points),
        final_accuracy=points[-1].accuracy if points else None,
        training_loss=training,
        tokens=points[-1].tokens if points else None,
        compared_at_tokens=equal.run.tokens if equal else None,
        control=history.control.event.name if history.control else "",
        ended_finite=ended_finite(history),
        curve=[_quality_point(p) for p in points],
        control_curve=[_quality_point(p) for p in others],
    )


def _quality_point(point: Point) -> schema.QualityPoint:
    return schema.QualityPoint(
        tokens=point.tokens,
        tokens_trained=point.trained,
        loss=point.loss,
        accuracy=point.accuracy,
    )


def _network(history: History, ledger: Ledger, steps: int) -> schema.Network:
    up = _counted(history, ledger, "bytes_in")
    down = _counted(history, ledger, "bytes_out")
    if not up and not down:
        return schema.Network(
            bytes_up=None, bytes_down=None, bytes_per_step=None, reduction_vs_lockstep=None
        )
    per_step = (up + down) / steps if steps else None
    lockstep = 8 * sum(history.run.fragments)
    return schema.Network(
        bytes_up=up,
        bytes_down=down,
        bytes_per_step=per_step,
        reduction_vs_lockstep=lockstep / per_step if per_step and lockstep else None,
    )


def _counted(history: History, ledger: Ledger, name: str) -> int:
    """Growth of a counter of the syncers in the window; it starts anew with every life."""
    total = 0
    at: dict[tuple[str, int], int] = {}
    for seen in history.merges:
        event: Merged = seen.event
        key, value = (event.unit, event.incarnation), getattr(event, name)
        if ledger.start_ns < event.t_ns <= ledger.end_ns:
            total += max(0, value - at.get(key, 0))
        at[key] = max(value, at.get(key, 0))
    return total


def _residue(history: History) -> schema.Residue:
    if history.residue is None:
        return schema.Residue(
            containers=[], networks=[], volumes=[], processes=[], toxics=[], scanned=False
        )
    found = history.residue.event
    return schema.Residue(
        containers=list(found.containers),
        networks=list(found.networks),
        volumes=list(found.volumes),
        processes=list(found.processes),
        toxics=list(found.toxics),
        scanned=True,
    )
