"""A report as Prometheus text: base units, ratios in [0, 1], no server needed.

Every badput label is written even when it is zero, so that a dashboard never misses one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reports.schema import Report

PREFIX = "decoupled_diloco_"

_HEALING_BOUNDS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_OUTCOMES = (
    "passed",
    "deviated",
    "baseline-not-met",
    "no-effect",
    "host-too-slow",
    "harness-error",
    "interrupted",
)
Sample = tuple[str, Mapping[str, str], float]


def metrics(report: Report) -> bytes:
    """The exposition; unknown numbers are left out."""
    lines: list[str] = []
    for name, kind, help_text, samples in _families(report):
        rows = list(samples)
        if rows:
            lines.append(f"# HELP {PREFIX}{name} {help_text}")
            lines.append(f"# TYPE {PREFIX}{name} {kind}")
            lines += [_line(f"{PREFIX}{name}{suffix}", labels, v) for suffix, labels, v in rows]
    return "\n".join([*lines, ""]).encode()


def _families(report: Report) -> Iterable[tuple[str, str, str, Iterable[Sample]]]:
    run, good, faults = report.run, report.goodput, report.faults
    info = {
        "run": run.id,
        "experiment": run.experiment,
        "seed": str(run.seed),
        "runtime": run.runtime,
        "target": run.target,
        "commit": run.commit,
        "proxy": run.proxy,
    }
    yield "run_info", "gauge", "What was run.", [("", info, 1.0)]
    yield (
        "run_outcome",
        "gauge",
        "1 for the run's outcome, 0 for the others.",
        [("", {"outcome": o}, float(o == report.verdict.outcome)) for o in _OUTCOMES],
    )
    yield (
        "run_conclusive",
        "gauge",
        "Whether the verdict proves anything.",
        [("", {}, float(report.verdict.conclusive))],
    )
    yield "goodput_ratio", "gauge", "Useful share of learner time.", _one(good.ratio)
    yield (
        "merged_goodput_ratio",
        "gauge",
        "Goodput weighed by the parameters a step was merged into.",
        _one(good.merged_ratio),
    )
    yield "uptime_ratio", "gauge", "Share with a learner stepping.", _one(good.uptime_ratio)
    yield "longest_stall_seconds", "gauge", "No learner stepping.", _one(good.longest_stall_s)
    yield (
        "badput_seconds_total",
        "counter",
        "Learner time that was not useful, by type.",
        [("", {"type": k}, v) for k, v in good.ledger_s.items() if k != "useful"],
    )
    yield "goodput_seconds_total", "counter", "Useful time.", _one(good.ledger_s["useful"])
    yield "allocated_seconds_total", "counter", "Learner time.", _one(good.allocated_s)
    yield "overrun_ratio", "gauge", "Steps too slow for the host.", _one(good.overrun_ratio)
    tokens = good.tokens
    fates = {"merged": tokens.merged, "lost": tokens.lost, "in_flight": tokens.in_flight}
    yield (
        "tokens_total",
        "counter",
        "Tokens trained in the window, by what became of them.",
        [("", {"fate": k}, float(v)) for k, v in fates.items() if v is not None],
    )
    yield "learners", "gauge", "Learners allocated.", _one(float(run.learners))
    yield (
        "faults_total",
        "counter",
        "Faults by kind and how far they got.",
        [
            ("", {"fault": row.kind, "outcome": stage}, float(getattr(row, stage)))
            for row in faults.by_kind
            for stage in ("planned", "executed", "effective", "skipped")
        ],
    )
    yield "self_healing_seconds", "histogram", "Effect or lift to merged again.", _healing(report)
    yield (
        "state_digest_mismatch_total",
        "counter",
        "Recoveries whose state differs from the donor's.",
        _one(float(sum(h.state_digest_match is False for h in report.healing))),
    )
    yield (
        "invariant_valid",
        "gauge",
        "1 valid, 0 invalid; unknown ones are left out.",
        [
            ("", {"check": i.name}, float(i.valid))
            for i in report.invariants
            if i.valid != "unknown"
        ],
    )
    yield (
        "gate_ok",
        "gauge",
        "1 when the gate was met.",
        [("", {"gate": g.name}, float(g.ok)) for g in report.gates],
    )
    learned = report.quality
    yield "final_loss", "gauge", "Loss at the end, held-out if evaluated.", _one(learned.final_loss)
    yield (
        "loss_gap_ratio",
        "gauge",
        "Against the control, at equal tokens.",
        _one(learned.gap_ratio),
    )
    ways = {"up": report.network.bytes_up, "down": report.network.bytes_down}
    yield (
        "network_bytes_total",
        "counter",
        "Bytes at the syncer in the window.",
        [("", {"direction": k}, float(v)) for k, v in ways.items() if v is not None],
    )
    left = report.residue
    yield (
        "residue",
        "gauge",
        "Things left behind.",
        [
            ("", {"kind": kind}, float(len(getattr(left, kind))))
            for kind in ("containers", "networks", "volumes", "processes", "toxics")
        ]
        if left.scanned
        else [],
    )


def _healing(report: Report) -> list[Sample]:
    samples: list[Sample] = []
    kinds = dict.fromkeys(h.kind for h in report.healing if h.counts)
    for kind in kinds:
        healed = [
            h.reintegrate_s
            for h in report.healing
            if h.counts and h.kind == kind and h.reintegrate_s is not None
        ]
        labels = {"fault": kind, "phase": "reintegrate"}
        for bound in _HEALING_BOUNDS:
            below = float(sum(v <= bound for v in healed))
            samples.append(("_bucket", {**labels, "le": f"{bound:g}"}, below))
        samples.append(("_bucket", {**labels, "le": "+Inf"}, float(len(healed))))
        samples.append(("_sum", labels, sum(healed)))
        samples.append(("_count", labels, float(len(healed))))
    return samples


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [("", {}, value)]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{k}="{_escaped(v)}"' for k, v in labels.items())
    shown = str(int(value)) if value == int(value) else repr(value)
    return f"{name}{{{inside}}} {shown}" if inside else f"{name} {shown}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
