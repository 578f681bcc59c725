"""What must never happen, as named checks. The table is in the order of the design's list.

A check is a function from :class:`Evidence` to a :class:`Finding`: valid, invalid or unknown, why,
and the journal lines that prove it. A check that crashes is unknown, and says with what.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.checks.base import Check, Evidence, Finding, broken, holds, not_asked, unknown
from reports.checks.checkpoints import cuts_consistent
from reports.checks.merging import finite, quorum_kept, tokens_once
from reports.checks.quality import as_control
from reports.checks.units import (
    back_in_time,
    bystanders_undisturbed,
    donors_copied,
    exits_explained,
    faults_real,
)
from reports.checks.versions import one_author, rise_by_one, survives_syncer


def _replayed(e: Evidence) -> Finding:
    """Check 12: replaying the tape gives bit-equal fragments."""
    found = e.history.replayed
    if found is None:
        return not_asked("the run was not replayed (diloco-chaos replay DIR)")
    never = e.history.resumed or e.history.run.params.get("error_feedback")
    if never and not found.merges and found.unfollowed:
        return not_asked(f"such a run cannot be replayed: {found.unfollowed[0]}")
    if e.history.replayed_other:
        return unknown("what was replayed is another journal than this one; replay it again")
    if found.difference:
        return broken(f"the first difference is in {found.difference}", found.difference_line)
    compared = f"{found.merges} merges and {found.steps} steps"
    if found.unfollowed and not found.cut:
        return unknown(f"{compared} are equal; not followed: {found.unfollowed[0]}")
    if not found.merges:
        return unknown("nothing could be compared")
    return holds(f"{compared} came out bit-equal" + (" up to the cut" if found.cut else ""))


CHECKS: tuple[Check, ...] = (
    Check(
        "tokens-once",
        "Each step's tokens enter each fragment at most once; trained = merged + lost + in flight.",
        tokens_once,
    ),
    Check(
        "quorum",
        "Every merge had K distinct live contributors, none too old, weighed c_tokens²/c_steps.",
        quorum_kept,
    ),
    Check(
        "versions",
        "Fragment versions rise by one at the syncer and never fall at any learner.",
        rise_by_one,
    ),
    Check(
        "nothing-lost",
        "Nothing that was broadcast is lost when the syncer dies.",
        survives_syncer,
    ),
    Check(
        "finite",
        "Merged parameters are finite; a damaged update is refused and its sender named.",
        finite,
    ),
    Check(
        "recovered-state",
        "A recovered learner's parameters, inner state, step and learning rate equal its donor's.",
        donors_copied,
    ),
    Check(
        "blast-radius",
        "Learners that were not hit keep their step rate within 10 %.",
        bystanders_undisturbed,
        safety=False,
    ),
    Check(
        "one-author",
        "No two syncers commit the same version.",
        one_author,
    ),
    Check(
        "faults-real",
        "Every fault asked for was executed and effective, or the run says why not.",
        faults_real,
        safety=False,
    ),
    Check(
        "exits-explained",
        "Every unit exit is explained by a fault.",
        exits_explained,
    ),
    Check(
        "back-in-time",
        "Every learner that came back contributes again within the bound.",
        back_in_time,
        safety=False,
    ),
    Check(
        "checkpoints",
        "Every complete checkpoint is a consistent cut, and a resumed run goes on from just that.",
        cuts_consistent,
    ),
    Check("replay", "Replaying the tape gives bit-equal fragments.", _replayed),
    Check(
        "control",
        "Loss at the end is within 1 % of a fault-free control at equal merged tokens.",
        as_control,
        safety=False,
    ),
)
"""Every check; the one visible table."""


@dataclass(frozen=True)
class Answer:
    """A check and what it found."""

    check: Check
    finding: Finding
    crashed: bool = False


def run_checks(evidence: Evidence, checks: tuple[Check, ...] = CHECKS) -> list[Answer]:
    """Judge every claim. A crash in one check neither stops nor colours the others."""
    return [_run(check, evidence) for check in checks]


def _run(check: Check, evidence: Evidence) -> Answer:
    try:
        return Answer(check, check.judge(evidence))
    except Exception as error:
        # Not swallowed: the verdict reads ``crashed`` and the reason is in the report.
        why = f"the check itself failed: {type(error).__name__}: {error}"
        return Answer(check, Finding("unknown", why), crashed=True)
