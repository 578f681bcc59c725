"""report.json, schema 1, as typed values. Names are a contract; more may be added.

Ratios lie in [0, 1]. Every ``*_s`` is in seconds: instants since the run began, or durations. None
(null) means that the journal does not say or that the figure does not apply.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

SCHEMA = 1

Outcome: TypeAlias = Literal[
    "passed",
    "deviated",
    "baseline-not-met",
    "no-effect",
    "host-too-slow",
    "harness-error",
    "interrupted",
]
Validity: TypeAlias = bool | Literal["unknown"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Root of every value in a report."""


class Run(Part, frozen=True, kw_only=True):
    """What was run."""

    id: str
    experiment: str
    title: str
    """The spec's title."""
    seed: int
    runtime: str
    target: str
    commit: str
    started_at: str
    duration_s: float
    proxy: str
    host_fingerprint: str
    repeat: str
    learners: int
    complete: bool
    """Whether the journal has its last line."""
    window_start_s: float | None
    window_end_s: float | None
    events: int
    notes: list[str]
    """What was wrong with the journal itself."""


class Verdict(Part, frozen=True, kw_only=True):
    """One outcome. Only a conclusive ``passed`` is a success."""

    outcome: Outcome
    conclusive: bool
    reasons: list[str]
    cautions: list[str]
    """True things a reader should know that did not change the outcome."""
    exit_status: int


class FragmentTokens(Part, frozen=True, kw_only=True):
    """Tokens of one fragment in the window."""

    fragment: int
    elements: int
    trained: int
    merged: int
    lost: int
    in_flight: int


class TokenCounts(Part, frozen=True, kw_only=True):
    """trained = merged + lost + in_flight; the parts are None for a target without fragments."""

    trained: int
    merged: int | None
    lost: int | None
    in_flight: int | None
    by_fragment: list[FragmentTokens]
    died: int | None = None
    """Of ``lost``: died with their learner; the others were overwritten by merges."""
    taken_back: int | None = None
    """Of ``lost``: merged, and taken back by a syncer whose disk was damaged or lost."""


class Goodput(Part, frozen=True, kw_only=True):
    """How the learners' time was spent."""

    ratio: float | None
    merged_ratio: float | None
    uptime_ratio: float | None
    longest_stall_s: float | None
    ledger_s: dict[str, float]
    allocated_s: float
    tokens: TokenCounts
    overrun_ratio: float | None
    steps: int
    by_learner_s: dict[str, dict[str, float]]


class FaultRow(Part, frozen=True, kw_only=True):
    """One fault on one unit: planned, executed, effective, each on its own."""

    fault: str
    kind: str
    unit: str
    planned_s: float | None
    executed_s: float | None
    ended_s: float | None
    effective: bool
    effective_s: float | None
    evidence: str
    """How it showed in the victim, or why it did not."""
    events: list[int]


class Skipped(Part, frozen=True, kw_only=True):
    """A fault that was not carried out."""

    fault: str
    kind: str
    unit: str
    why: str


class KindRow(Part, frozen=True, kw_only=True):
    """Counts of one kind of fault."""

    kind: str
    planned: int
    executed: int
    effective: int
    skipped: int


class Faults(Part, frozen=True, kw_only=True):
    """Faults counted; each fault counts once per unit it was meant for."""

    planned: int
    executed: int
    effective: int
    skipped: list[Skipped]
    by_kind: list[KindRow]
    rows: list[FaultRow]


class HealingRow(Part, frozen=True, kw_only=True):
    """How one fault on one unit healed; see ``reports.healing`` for the phases."""

    fault: str
    kind: str
    unit: str
    planned_s: float | None
    executed_s: float | None
    effective_s: float | None
    ended_s: float | None
    detect_s: float | None
    restart_s: float | None
    ready_s: float | None
    reintegrate_s: float | None
    throughput_s: float | None
    restarted_by: str | None
    state_digest_match: bool | None
    counts: bool
    """Whether the unit was out of training, so that the row is in the summary."""
    waited_s: float | None
    """When it did not reintegrate: how long the journal shows it waiting."""


class HealingKind(Part, frozen=True, kw_only=True):
    """Healing of one kind of fault."""

    kind: str
    n: int
    unhealed: int
    p50_s: float | None
    max_s: float | None


class HealingSummary(Part, frozen=True, kw_only=True):
    """Percentiles (nearest rank) of ``reintegrate_s``; none is given for n under 5."""

    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    n: int
    unhealed: int
    by_kind: list[HealingKind]


class Invariant(Part, frozen=True, kw_only=True):
    """A check's answer. ``asked`` is false where the run gave it nothing to judge."""

    name: str
    valid: Validity
    why: str
    events: list[int]
    """Lines of journal.jsonl that prove it."""
    asked: bool
    claim: str


class GateRow(Part, frozen=True, kw_only=True):
    """A bound that the experiment asked for. An unknown value is never ok."""

    name: str
    value: float | None
    bound: float
    ok: bool
    unit: str
    better: str
    """at least or at most."""
    why: str


class QualityPoint(Part, frozen=True, kw_only=True):
    """One evaluation on held-out data; see ``harness.events.Evaluated``."""

    tokens: int
    tokens_trained: int
    """Of all steps that had ended by then."""
    loss: float
    accuracy: float | None


class Quality(Part, frozen=True, kw_only=True):
    """What was learned. Held-out figures where the run was evaluated, training losses else."""

    final_loss: float | None
    loss_floor: float | None
    tokens_merged: int | None
    control_final_loss: float | None
    """The control's at the number of tokens at which the two are compared."""
    gap_ratio: float | None
    """How much larger this run's loss is there, as a share of the control's."""
    first_loss: float | None
    held_out: bool = False
    """Whether first and final loss are those of evaluations."""
    final_accuracy: float | None = None
    training_loss: float | None = None
    """Mean of the learners' last few steps."""
    tokens: int | None = None
    """Tokens in the parameters that were evaluated last."""
    compared_at_tokens: int | None = None
    control: str = ""
    """Name of the experiment that is the control."""
    ended_finite: bool = True
    """False when the last evaluation's loss was no number; it is no point of the curve."""
    curve: list[QualityPoint] = []
    control_curve: list[QualityPoint] = []


class Network(Part, frozen=True, kw_only=True):
    """Bytes in the window at the syncer's end of all links."""

    bytes_up: int | None
    bytes_down: int | None
    bytes_per_step: float | None
    """Both directions, per learner step."""
    reduction_vs_lockstep: float | None
    """Against 8 bytes per parameter and step: f32 up and down at every step."""


class Residue(Part, frozen=True, kw_only=True):
    """What was left behind; ``scanned`` is false when the journal holds no scan."""

    containers: list[str]
    networks: list[str]
    volumes: list[str]
    processes: list[str]
    toxics: list[str]
    scanned: bool


class Checkpoints(Part, frozen=True, kw_only=True):
    """Checkpoints of the whole cluster, and what the run went on from."""

    begun: int
    complete: int
    bytes: int | None
    """All parts of the newest complete one."""
    part_p50_s: float | None
    """From a unit's cut until its part was durable, in the background."""
    complete_p50_s: float | None
    """From the syncer's cut until all of it was."""
    in_flight_max: int
    """Most messages of one learner that crossed a cut."""
    resumed_run: str
    """The earlier run; empty for one that began anew."""
    resumed_step: int | None
    resumed_parts: int
    """Learners that went on from parts of their own."""


class Report(Part, frozen=True, kw_only=True):
    """All of report.json."""

    schema: int
    run: Run
    verdict: Verdict
    goodput: Goodput
    faults: Faults
    healing: list[HealingRow]
    healing_summary: HealingSummary
    invariants: list[Invariant]
    gates: list[GateRow]
    quality: Quality
    network: Network
    residue: Residue
    checkpoints: Checkpoints | None = None


def to_json(report: Report) -> bytes:
    """The report as indented JSON, newline at the end. Equal reports give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def from_json(data: bytes) -> Report:
    """The report in ``data``; raises ``ValueError`` when it is none of schema 1."""
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a report of schema {SCHEMA}: {error}") from error


def plain(report: Report) -> dict[str, Any]:
    """The report as plain dicts and lists."""
    value: dict[str, Any] = msgspec.to_builtins(report)
    return value
