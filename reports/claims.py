"""Claims that only a simulated run can be held to, beside the checks every run gets.

On a real host a link may break by itself, a step may be late for no reason and a kill may find its
victim gone; in virtual time nothing happens without a cause, so the harness and the protocol can be
judged more strictly. Each claim answers with (what is wrong, the lines that prove it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from harness.events import LinkDown, LinkUp
from reports.history import History
from reports.lives import FaultWindow, Life

Wrong = tuple[str, tuple[int, ...]]

_S = 1_000_000_000
_NEVER = 1 << 62

_ISOLATING = ("partition", "refuse", "disconnect")
"""Kinds under which no session with the victim can begin."""

_FREEZING = ("pause",)

_LINK_SLACK_NS = 12 * _S
"""A link may go down so long after a fault: what it held back arrives, and somebody gives up."""

_GRACE_STEPS = 5.0
"""A grace window is at most one step by its own average, which outliers move a little."""

_GRACE_LEARNS = 2
"""Merges in which a syncer that has just started still learns how long a step takes."""


def deaths_real(history: History) -> Iterator[Wrong]:
    """A kill that was executed ended a process of its victim, and a skipped one is not done."""
    for window in history.faults:
        if window.kind not in ("kill", "kill_group", "terminate", "crash_loop", "oom"):
            continue
        if window.executed_ns is None:
            continue
        grace = round(float(window.params.get("grace_s", 0)) * 1e9)
        until = (window.last_executed_ns or window.executed_ns) + grace + _S
        if not any(
            s.event.unit == window.unit and window.executed_ns <= s.event.t_ns <= until
            for s in history.exits
        ):
            text = f"{_named(window)} was executed, but {window.unit} did not end"
            yield text, tuple(window.lines)


def intent_first(history: History) -> Iterator[Wrong]:
    """What was executed had been asked for before."""
    for window in history.faults:
        done = window.executed_ns
        if done is not None and (window.asked_ns is None or window.asked_ns > done):
            yield f"{_named(window)} was executed before it was asked for", tuple(window.lines)


def holds_held(history: History) -> Iterator[Wrong]:
    """A hold lasts until its own fault ends, whatever other faults do meanwhile."""
    for window in history.faults:
        if window.executed_ns is None:
            continue
        end = window.until_ns(history.end_ns)
        if window.kind in _ISOLATING:
            for link in history.links:
                inside = window.executed_ns + _S // 2 < link.event.t_ns < end
                if inside and isinstance(link.event, LinkUp) and link.event.unit == window.unit:
                    text = f"{window.unit} got a link during {_named(window)}"
                    yield text, (*window.lines, link.line)
        elif window.kind in _FREEZING:
            for step in history.steps(window.unit):
                if window.executed_ns < step.event.t_ns < end:
                    text = f"{window.unit} took a step during {_named(window)}"
                    yield text, (*window.lines, step.line)


def links_explained(history: History) -> Iterator[Wrong]:
    """A link goes down only because of a fault on one of its two ends."""
    causes: dict[str, list[tuple[int, int]]] = {}
    for window in history.faults:
        if window.executed_ns is not None:
            end = max(window.until_ns(history.end_ns), window.last_executed_ns or 0)
            causes.setdefault(window.unit, []).append((window.executed_ns, end + _LINK_SLACK_NS))
    until = history.teardown_ns or _NEVER
    for link in history.links:
        event = link.event
        if not isinstance(event, LinkDown) or event.t_ns >= until:
            continue
        hit = [*causes.get(event.unit, ()), *causes.get(event.peer, ())]
        if not any(begin <= event.t_ns <= end for begin, end in hit):
            text = f"{event.unit} lost its link to {event.peer} by no fault: {event.why}"
            yield text, (link.line,)


def newborns_loaded(history: History) -> Iterator[Wrong]:
    """A new life builds on what was committed before it was born (or on what its donor held by
    then, which may lag a little), never on parameters of its own making: fresh random weights are
    never promoted. Whose updates are made stale by a fault says nothing of what it builds on."""
    spoilt = [w for w in history.faults if w.kind == "stale_update" and w.executed_ns is not None]
    least: dict[tuple[str, int], dict[int, int]] = {}
    for merge in history.merges:
        for part in merge.event.contributions:
            key = (part.unit, part.incarnation)
            if key not in least:
                life = history.life(*key)
                least[key] = {} if life is None else _known_at_birth(history, life)
            known = least[key].get(merge.event.fragment, 0)
            at_ns = merge.event.t_ns
            if any(
                w.unit == part.unit
                and (w.executed_ns or 0) <= at_ns <= w.until_ns(history.end_ns) + _LINK_SLACK_NS
                for w in spoilt
            ):
                continue
            if part.base_version < known:
                text = (
                    f"life {part.incarnation} of {part.unit} built on version {part.base_version} "
                    f"of fragment {merge.event.fragment}, though version {known} was committed "
                    "before it was born"
                )
                yield text, (merge.line,)


def _known_at_birth(history: History, life: Life) -> dict[int, int]:
    """Fragment to the version that a life has no excuse not to build on."""
    joined = life.joined.event if life.joined is not None else None
    if joined is not None and joined.source in history.lives:
        donor = history.life_at(joined.source, life.begin_ns)
        held = donor.adopted if donor is not None else []
        return {a.event.fragment: a.event.version for a in held if a.event.t_ns < life.begin_ns}
    return {
        m.event.fragment: m.event.version for m in history.merges if m.event.t_ns < life.begin_ns
    }


def embedding_averaged(history: History) -> Iterator[Wrong]:
    """Some fragment holds the embedding, and that one is averaged whatever the rule of the rest."""
    rules = {m.event.fragment: (m.event.rule, m.line) for m in history.merges}
    if len(rules) < len(history.run.fragments) or not rules:
        return
    if all(rule == "rda" for rule, _ in rules.values()):
        lines = tuple(line for _, line in rules.values())
        yield "every fragment was merged by RDA, the embedding's too", lines


def grace_short(history: History) -> Iterator[Wrong]:
    """A grace window lasts about one step at the most, however long somebody stood still."""
    steps = sorted(
        (s.event.t_ns, s.event.t_ns - s.event.began_at_ns, unit)
        for unit in history.learners
        for s in history.steps(unit)
    )
    recent: list[int] = []
    own: dict[str, list[int]] = {}
    lives: dict[int, list[int]] = {}
    at = 0
    for merge in history.merges:
        while at < len(steps) and steps[at][0] <= merge.event.t_ns:
            recent.append(steps[at][1])
            own.setdefault(steps[at][2], []).append(steps[at][1])
            at += 1
        merged = lives.setdefault(merge.event.incarnation, [0])
        merged[0] += 1
        if len(recent) < 20 or merged[0] <= _GRACE_LEARNS:
            continue
        if merge.event.grace_limit_ns <= _GRACE_STEPS * min(recent[-20:]):
            continue  # whatever the medians are
        # How long it really lasted would not do: a syncer may be frozen in the middle of it.
        # The newest five: a straggler's average follows it within a few steps, and so may this.
        usual = max(median(recent[-count:]) for count in (5, 20, 80))
        # A straggler may be the only one that is heard, while others train on behind their links.
        usual = max(usual, *(median(newest[-5:]) for newest in own.values()))
        if merge.event.grace_limit_ns > _GRACE_STEPS * usual:
            text = (
                f"the grace window of step {merge.event.clock} may last "
                f"{merge.event.grace_limit_ns / 1e9:.2f} s, a step takes {usual / 1e9:.2f} s"
            )
            yield text, (merge.line,)


CLAIMS: dict[str, Callable[[History], Iterator[Wrong]]] = {
    "deaths-real": deaths_real,
    "intent-first": intent_first,
    "holds-held": holds_held,
    "links-explained": links_explained,
    "newborns-loaded": newborns_loaded,
    "embedding-averaged": embedding_averaged,
    "grace-short": grace_short,
}
"""Every claim; the one visible table."""


def _named(window: FaultWindow) -> str:
    return f"{window.fault} ({window.kind} on {window.unit})"
