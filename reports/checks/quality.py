"""Claims about what was learned: the loss beside a control's, and the tokens behind it."""

from __future__ import annotations

from reports.checks.base import Evidence, Finding, broken, holds, not_asked, unknown
from reports.coverage import fragment_weights
from reports.history import History
from reports.quality import Gap, curve, gap, gap_bound

Violations = list[tuple[str, tuple[int, ...]]]


def as_control(e: Evidence) -> Finding:
    """Check 13: the loss is within 1 % of the control's at equal tokens."""
    history = e.history
    if history.control is None and not history.run.spec.get("control"):
        return not_asked("the experiment asked for no control run")
    found = gap(history)
    lines = [history.control.line] if history.control else []
    lines += [p.line for p in curve(history)[-2:]]
    if not isinstance(found, Gap):
        return unknown(found, *lines)
    bound = gap_bound(history)
    text = (
        f"at {found.run.tokens:,} tokens the loss is {found.run.loss:.4f}, the control's "
        f"{found.control.loss:.4f}: {found.ratio:+.2%} (at most {bound:+.2%})"
    )
    return holds(text, *lines) if found.ratio <= bound else broken(text, *lines)


def evaluations_true(history: History) -> Violations:
    """Evaluations that claim other tokens than the merges before them hold.

    Judged as long as the journal has every merge: a syncer may die between committing one and
    saying so, and a rollback takes some back.
    """
    weights = fragment_weights(history)
    if not weights or history.rolled_back:
        return []
    merged = [0] * len(weights)
    versions = [0] * len(weights)
    found: Violations = []
    merges = iter(history.merges)
    held = next(merges, None)
    for seen in history.evaluated:
        claim = seen.event
        while held is not None and held.event.clock <= claim.clock:
            event = held.event
            if event.fragment >= len(weights) or event.version != versions[event.fragment] + 1:
                return found
            versions[event.fragment] = event.version
            merged[event.fragment] += sum(c.c_tokens for c in event.contributions)
            held = next(merges, None)
        tokens = sum(n * part for n, part in zip(weights, merged, strict=True)) // sum(weights)
        if tokens != claim.tokens:
            text = (
                f"the evaluation after global step {claim.clock} claims {claim.tokens} merged "
                f"tokens, the merges up to then hold {tokens}"
            )
            found.append((text, (seen.line,)))
    return found
