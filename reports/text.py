"""A report as plain text for terminals and as Markdown for pull requests and job summaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.ledger import LABELS
from reports.schema import Checkpoints, GateRow, Quality, Report, TokenCounts

SUMMARY_BYTES_MAX = 1024 * 1024 - 1
"""Hosted job summaries refuse, rather than cut, anything of 1 MiB or more."""

WITHOUT_MAX = 8
"""Faults without healing that the terminal names."""

LABEL_WORDS = {
    "useful": "in a step that counts",
    "lost": "in steps that died with their learner, or were taken back",
    "waiting": "blocked on others",
    "slowed": "beyond a step's nominal time",
    "down_detect": "dead, nobody noticed yet",
    "down_restart": "dead, being restarted",
    "down_init": "importing and compiling",
    "down_recover": "fetching state",
    "other": "not explained",
}
"""What each label of the ledger means, in a few words."""

TOKENS_NOTE = (
    "overwritten are steps that a learner took between the pull of a fragment and the adoption of "
    "its merge, which replaces them: a run without faults has them, too, and their time is no lost "
    "time"
)
"""What the tokens that no merge heard are, other than those that died."""

LOST_MEANING = {
    "overwritten by merges": "replaced before any merge heard them",
    "died with their learner": "trained and never heard",
    "overwritten by merges or died with their learner": "trained and never heard",
    "merged and taken back": "in versions that were lost with the syncer's disk",
}
"""What each cause of :func:`lost_parts` means."""

TOKENS_SHORT = (
    "(overwritten: steps taken between a fragment's pull and its merge; without faults, too)"
)
"""The same for the width of a terminal."""

TITLES = {
    "passed": "PASSED",
    "deviated": "DEVIATED",
    "baseline-not-met": "BASELINE NOT MET",
    "no-effect": "NO EFFECT",
    "host-too-slow": "HOST TOO SLOW",
    "harness-error": "HARNESS ERROR",
    "interrupted": "INTERRUPTED",
}


def title(report: Report) -> str:
    """The outcome in capitals, with a word for a verdict that proves nothing."""
    words = TITLES[report.verdict.outcome]
    if report.verdict.outcome == "deviated" and not report.verdict.conclusive:
        return "NOT SHOWN TO HOLD (inconclusive)"
    return words if report.verdict.conclusive else f"{words} (inconclusive)"


def percent(ratio: float | None) -> str:
    """A ratio for people; a dash when it is not known."""
    return "–" if ratio is None else f"{ratio:.1%}"


def duration(value: float | None) -> str:
    """Seconds for people; a dash when not known."""
    if value is None:
        return "–"
    if 0 < value < 0.0005:
        return "< 1 ms"
    return f"{value * 1000:.0f} ms" if 0 < value < 0.1 else f"{value:.2f} s"


def figure(value: float | None, unit: str) -> str:
    """A gate's number with its unit."""
    if value is None:
        return "unknown"
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "s":
        return f"{value:.2f} s"
    return f"{value:,.0f} {unit}".strip() if value >= 1000 else f"{value:.4g} {unit}".strip()


def bound(gate: GateRow) -> str:
    """A gate's bound in words."""
    return f"{gate.better} {figure(gate.bound, gate.unit)}".strip()


def count(value: int | None) -> str:
    """A whole number with separators; a dash when not known."""
    return "–" if value is None else f"{value:,}"


def terminal(report: Report, page: str = "") -> str:
    """What a terminal shows at the end of a run: about 40 lines, no colour codes.

    ``page`` is the path of the HTML report, shown last.
    """
    run, good = report.run, report.goodput
    lines = [
        f"{run.experiment}: {title(report)}",
        *([f"  {run.title}"] if run.title else []),
        *(f"  {reason}" for reason in report.verdict.reasons),
        *(f"  note: {caution}" for caution in report.verdict.cautions),
        "",
        f"  goodput        {percent(good.ratio):>8}   of {good.allocated_s:.1f} learner-seconds",
        f"  merged goodput {percent(good.merged_ratio):>8}",
        f"  uptime         {percent(good.uptime_ratio):>8}   "
        f"longest stall {duration(good.longest_stall_s)}",
        f"  faults         {report.faults.planned} planned, {report.faults.executed} executed, "
        f"{report.faults.effective} effective",
        f"  residue        {residue_line(report)}",
    ]
    if told := tokens_line(good.tokens):
        lines += [f"  tokens         {told}", f"                 {TOKENS_SHORT}"]
    if report.quality.final_loss is not None:
        lines.append(_loss_text(report.quality))
    if report.checkpoints is not None:
        lines.append(f"  checkpoints    {checkpoints_line(report.checkpoints)}")
    lines += _replay_text(report)
    lines += _healing_text(report)
    bad = [i for i in report.invariants if i.valid is not True and i.asked]
    held = sum(i.valid is True for i in report.invariants)
    lines += ["", f"  checks: {held} hold, {len(bad)} do not or are unknown"]
    lines += [f"    {_mark(i.valid)} {i.name}: {i.why}" for i in bad]
    for gate in report.gates:
        sign = "ok  " if gate.ok else "MISS" if gate.value is not None else "?   "
        said = f"{figure(gate.value, gate.unit)}, {bound(gate)}"
        lines.append(f"  gate {sign} {gate.name}: {said}" + ("" if gate.ok else f" ({gate.why})"))
    if run.repeat:
        lines += ["", f"  repeat: {run.repeat}"]
    if page:
        lines.append(f"  report: {page}")
    return "\n".join(lines) + "\n"


def tokens_line(found: TokenCounts) -> str:
    """Where the trained tokens went, in one line; empty for a target without fragments."""
    if found.merged is None or found.lost is None or not found.trained:
        return ""
    parts = [(found.merged, "merged"), *lost_parts(found), (found.in_flight or 0, "in flight")]
    said = ", ".join(f"{percent(n / found.trained)} {words}" for n, words in parts)
    return f"{found.trained:,} trained: {said}"


def lost_parts(found: TokenCounts) -> list[tuple[int, str]]:
    """The lost tokens by cause; in one where an older report does not say."""
    if found.lost is None:
        return []
    if found.died is None:
        return [(found.lost, "overwritten by merges or died with their learner")]
    back = found.taken_back or 0
    parts = [
        (found.lost - found.died - back, "overwritten by merges"),
        (found.died, "died with their learner"),
    ]
    # Only said where it happened: a syncer's disk is rarely lost.
    return [*parts, (back, "merged and taken back")] if back else parts


def checkpoints_line(found: Checkpoints) -> str:
    """Checkpoints in one line."""
    said = []
    if found.resumed_step is not None:
        said.append(
            f"went on from step {found.resumed_step} with {found.resumed_parts} learners' parts"
        )
    if found.begun:
        said.append(f"{found.complete} of {found.begun} complete")
    if found.bytes is not None:
        said.append(
            f"{found.bytes / 1e6:.1f} MB, each part durable in {duration(found.part_p50_s)}, all "
            f"in {duration(found.complete_p50_s)} (medians)"
        )
    return "; ".join(said)


def checkpoints_tile(found: Checkpoints) -> str:
    """What stands under "7 of 7": short, for a tile."""
    if found.begun == 0:
        return f"went on from step {found.resumed_step}"
    size = "" if found.bytes is None else f"; {found.bytes / 1e6:.1f} MB"
    return f"complete{size}"


def _replay_text(report: Report) -> list[str]:
    """What a replay of the run found; nothing when there was none."""
    found = next((i for i in report.invariants if i.name == "replay"), None)
    if found is None or not found.asked:
        return []
    said = ""
    if found.valid is not True:
        said = "DIFFERS: " if found.valid is False else "inconclusive: "
    return [f"  replay         {said}{found.why}"]


def _loss_text(quality: Quality) -> str:
    said = f"  loss           {quality.first_loss:.3f} to {quality.final_loss:.3f}"
    if quality.held_out:
        said += f", held-out, after {quality.tokens:,} tokens"
    if quality.gap_ratio is not None:
        said += (
            f"; {quality.gap_ratio:+.2%} against {quality.control} at "
            f"{quality.compared_at_tokens:,} tokens"
        )
    return said


def residue_line(report: Report) -> str:
    """What was left behind, in one line."""
    left = report.residue
    if not left.scanned:
        return "nobody looked"
    counts = {
        "containers": len(left.containers),
        "networks": len(left.networks),
        "volumes": len(left.volumes),
        "processes": len(left.processes),
        "toxics": len(left.toxics),
    }
    return ", ".join(f"{n} {kind}" for kind, n in counts.items()) + " left behind"


def _healing_text(report: Report) -> list[str]:
    rows = [h for h in report.healing if h.counts]
    without = without_healing(report)
    told = ["", f"  effective without healing: {without}"] if without else []
    if not rows:
        return told
    head = ["fault", "unit", "detect", "restart", "ready", "healed", "throughput", "by"]
    table = [
        [
            f"{h.fault} {h.kind}",
            h.unit,
            duration(h.detect_s),
            duration(h.restart_s),
            duration(h.ready_s),
            duration(h.reintegrate_s) if h.reintegrate_s is not None else "not healed",
            duration(h.throughput_s),
            h.restarted_by or "–",
        ]
        for h in rows[:20]
    ]
    lines = ["", *("  " + line for line in columns([head, *table]))]
    if len(rows) > 20:
        lines.append(f"  showing 20 of {len(rows)}")
    lines.append(f"  healing: {healing_line(report)}")
    return lines + told[1:]


def without_healing(report: Report) -> str:
    """The effective faults that healing does not count, and why; empty when there are none."""
    counted = {(h.fault, h.unit, h.executed_s) for h in report.healing if h.counts}
    names = [
        f"{f.fault} {f.kind} on {f.unit}"
        for f in report.faults.rows
        if f.effective and (f.fault, f.unit, f.executed_s) not in counted
    ]
    if not names:
        return ""
    more = f" and {len(names) - WITHOUT_MAX} more" if len(names) > WITHOUT_MAX else ""
    return f"{', '.join(names[:WITHOUT_MAX])}{more} (no unit was out, so there is nothing to heal)"


def healing_line(report: Report) -> str:
    """The summary of healing in one line."""
    some = report.healing_summary
    if some.n == 0:
        return "no fault took a unit out"
    p50 = duration(some.p50_s) if some.p50_s is not None else "needs n ≥ 5"
    tail = f", {some.unhealed} not healed" if some.unhealed else ""
    return f"n = {some.n}, median {p50}, longest {duration(some.max_s)}{tail}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as left-aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _mark(valid: object) -> str:
    return {True: "ok", False: "BROKEN", "unknown": "unknown"}[valid]


# --- Markdown -----------------------------------------------------------------------------------


def summary(report: Report, budget: int = SUMMARY_BYTES_MAX) -> bytes:
    """Markdown below ``budget`` bytes; sections that do not fit are left out and counted."""
    sections = list(_sections(report))
    notice = "\n*Cut: {} of {} sections did not fit; see report.html.*\n"
    reserve = len(notice.format(len(sections), len(sections)).encode())
    out = b""
    for number, section in enumerate(sections):
        data = section.encode()
        if len(out) + len(data) + reserve > budget:
            left = len(sections) - number
            return out + notice.format(left, len(sections)).encode()
        out += data
    return out


def _sections(report: Report) -> Iterable[str]:
    run, good, sign = report.run, report.goodput, {True: "✅", False: "❌"}
    icon = "✅" if report.verdict.exit_status == 0 else "❌" if report.verdict.conclusive else "⚠️"
    reasons = "".join(f"- {md(reason)}\n" for reason in report.verdict.reasons)
    yield (
        f"## {icon} {md(run.experiment)}: {title(report)}\n\n{reasons}\n"
        + _table(
            ["goodput", "merged goodput", "uptime", "longest stall", "faults", "healing", "seed"],
            [
                [
                    percent(good.ratio),
                    percent(good.merged_ratio),
                    percent(good.uptime_ratio),
                    duration(good.longest_stall_s),
                    f"{report.faults.effective} of {report.faults.planned} effective",
                    healing_line(report),
                    str(run.seed),
                ]
            ],
        )
        + (f"\nRepeat: `{run.repeat.replace('`', ' ')}`\n" if run.repeat else "")
    )
    if report.gates:
        rows = [
            [sign[g.ok], md(g.name), figure(g.value, g.unit), bound(g), md(g.why)]
            for g in report.gates
        ]
        yield "\n### Gates\n\n" + _table(["", "gate", "value", "bound", "why"], rows)
    icons = {True: "✅", False: "❌", "unknown": "❔"}
    asked = [i for i in report.invariants if i.asked]
    rows = [[icons[i.valid], i.name, md(i.why), ", ".join(map(str, i.events[:5]))] for i in asked]
    yield "\n### Checks\n\n" + _table(["", "check", "why", "journal lines"], rows)
    if report.verdict.cautions:
        yield "\n### Notes\n\n" + "".join(f"- {md(c)}\n" for c in report.verdict.cautions)
    shares = [
        [label, LABEL_WORDS[label], f"{good.ledger_s[label]:.2f}", percent(_share(report, label))]
        for label in LABELS
    ]
    yield _details(
        "Where the learners' time went", _table(["label", "meaning", "s", "share"], shares)
    )
    if told := tokens_line(good.tokens):
        yield f"\nTokens: {told} ({TOKENS_NOTE}).\n"
    if report.healing:
        yield _details("Self-healing", _healing_table(report))
    if report.faults.rows:
        yield _details("Faults: planned, executed, effective", _fault_table(report))
    yield f"\nResidue: {residue_line(report)}.\n"


def _share(report: Report, label: str) -> float | None:
    total = report.goodput.allocated_s
    return report.goodput.ledger_s[label] / total if total else None


def _healing_table(report: Report) -> str:
    head = [
        "fault",
        "kind",
        "unit",
        "detect",
        "restart",
        "ready",
        "reintegrate",
        "throughput",
        "by",
    ]
    rows = [
        [
            md(h.fault),
            md(h.kind),
            md(h.unit),
            duration(h.detect_s),
            duration(h.restart_s),
            duration(h.ready_s),
            duration(h.reintegrate_s),
            duration(h.throughput_s),
            md(h.restarted_by or "–"),
        ]
        for h in report.healing[:500]
    ]
    return _table(head, rows) + _of(len(rows), len(report.healing))


def _fault_table(report: Report) -> str:
    rows = [
        [
            md(f.fault),
            md(f.kind),
            md(f.unit),
            duration(f.planned_s),
            duration(f.executed_s),
            "yes" if f.effective else "no",
            md(f.evidence),
        ]
        for f in report.faults.rows[:500]
    ]
    head = ["fault", "kind", "unit", "planned", "executed", "effective", "evidence"]
    return _table(head, rows) + _of(len(rows), len(report.faults.rows))


def _of(shown: int, total: int) -> str:
    return f"\nShowing {shown} of {total}.\n" if shown < total else ""


def _details(name: str, body: str) -> str:
    return f"\n<details><summary>{name}</summary>\n\n{body}\n</details>\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def md(text: str) -> str:
    """Text that came from a log or a file, safe inside a Markdown table cell."""
    flat = " ".join(text.split())[:400]
    for character in "\\`*_{}[]|~#":
        flat = flat.replace(character, "\\" + character)
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
