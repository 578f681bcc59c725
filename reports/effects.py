"""Three facts about each fault, never mixed: planned, executed, effective.

*Effective* means that the fault shows in the victim's own behaviour: it exited, its steps stopped
or changed, its link broke or fell silent, pulls from it took longer, its updates were refused. That
we asked for a fault and that the call returned proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from harness.events import Heard, LinkDown, ProxyChanged, Step, UnitNote
from reports.history import History
from reports.lives import FaultWindow, Seen
from reports.shadows import LATE_NS, STATE_KINDS, Shadow, lit_ns, shadows, within

EXIT_SLACK_NS = 5_000_000_000
"""An exit this long after its kill returned is still put down to it (engines tell late)."""

_BEFORE_NS = 10_000_000_000
"""Behaviour before a fault is taken from up to this long before it."""

_SAMPLES_MIN = 3

_DELAY_NS_MIN = 5_000_000
"""Answers vary by less than this on a host that is left alone."""

_LATENCY_NS_MIN = 1_000_000
"""A delay that was asked for shows when half of it does, if that is this much."""

_SILENCE_MS = 1500
"""The silence after which a link is given up, where the parameters do not say."""


@dataclass(frozen=True)
class Effect:
    """When a fault first showed, a sentence that says how, and the lines that prove it."""

    at_ns: int
    how: str
    what: str
    """exit, stopped, slowed, link, unheard, pulls, refused, state, space or proxy."""
    lines: tuple[int, ...]


@dataclass(frozen=True)
class FaultFact:
    """One fault on one unit with its three facts. ``why_not`` explains a missing effect."""

    window: FaultWindow
    effect: Effect | None
    why_not: str = ""

    @property
    def executed(self) -> bool:
        """Whether the action was carried out."""
        return self.window.executed_ns is not None

    @property
    def control(self) -> bool:
        """Whether this is the do-nothing fault, which must not have an effect."""
        return self.window.kind == "noop"


Casts = Callable[[History, FaultWindow, str], list[Shadow]]
"""Gives the shadows in which evidence of a class does not count (``reports.shadows``)."""

Detector = Callable[[History, FaultWindow, Casts], Effect | None]


def judge_faults(history: History) -> list[FaultFact]:
    """The three facts of every fault in the journal, in its order."""
    facts: list[FaultFact] = []
    claimed: set[int] = set()
    for window in history.faults:
        fact = _judge(history, window, claimed)
        if fact.effect is not None and fact.effect.what == "exit":
            claimed.update(fact.effect.lines)
        facts.append(fact)
    return facts


def _judge(history: History, window: FaultWindow, claimed: set[int]) -> FaultFact:
    if window.executed_ns is None:
        why = window.skipped or "neither executed nor skipped: the journal does not say why"
        return FaultFact(window, None, why)
    if window.kind == "noop":
        return FaultFact(window, None, "does nothing, on purpose")
    detectors = EVIDENCE.get(window.kind, _ANY)
    for detector in detectors:
        effect = detector(history, window, shadows)
        if effect is not None and effect.what == "exit" and claimed.issuperset(effect.lines):
            # One death proves one kill: two orders at once did not kill twice.
            effect = exited(history, window, shadows, frozenset(claimed))
        if effect is not None:
            return FaultFact(window, effect)
    return FaultFact(window, None, _why_not(history, window, detectors))


def _why_not(history: History, window: FaultWindow, detectors: Sequence[Detector]) -> str:
    until = window.until_ns(history.end_ns)
    begin = window.asked_ns or window.executed_ns or 0
    alive = any(
        lf.begin_ns < until and (lf.ended_ns is None or lf.ended_ns > begin)
        for lf in history.lives.get(window.unit, ())
    )
    if not alive and window.kind != "kill_proxy":
        return "the unit was down for as long as the fault lasted"
    hiding: list[str] = []

    def noted(history: History, window: FaultWindow, what: str) -> list[Shadow]:
        cast = shadows(history, window, what)
        over = [s for s in cast if s.begin_ns <= until + LATE_NS and s.end_ns >= begin]
        hiding.extend(s.fault for s in over)
        return []

    for detector in detectors:
        hiding.clear()
        # Without the shadows: what is found only so, others explain.
        if detector is not exited and detector(history, window, noted) is not None and hiding:
            return f"hidden by {', '.join(dict.fromkeys(hiding))}"
    if window.kind in STATE_KINDS and exited(history, window, shadows) is not None:
        again = _damaged_again(history, window)
        return again or "its next life had no need of what was damaged"
    if window.kind in _SPOILT and history.run.params.get("trainer") == "scripted":
        return "a scripted trainer's updates hold no numbers that could be spoilt"
    return ""


# --- detectors ----------------------------------------------------------------------------------


def exited(
    history: History, window: FaultWindow, casts: Casts, claimed: frozenset[int] = frozenset()
) -> Effect | None:
    """The unit's process ended between the order and a little after it."""
    begin = window.asked_ns or window.executed_ns or 0
    grace_ns = round(float(window.params.get("grace_s", 0)) * 1e9)
    last = max(window.last_executed_ns or 0, window.ended_ns or 0)
    for seen in history.exits:
        event = seen.event
        if seen.line in claimed:
            continue
        if event.unit == window.unit and begin <= event.t_ns <= last + grace_ns + EXIT_SLACK_NS:
            cause = f"signal {event.signal}" if event.signal else f"code {event.code}"
            return Effect(event.t_ns, f"its process ended with {cause}", "exit", (seen.line,))
    return None


def stopped(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """No step of the unit ended for much of the fault, and longer than its steps take."""
    begin, until = _span(history, window)
    cast = casts(history, window, "stopped")
    ends = [s for s in history.steps(window.unit) if s.event.t_ns <= until + EXIT_SLACK_NS]
    usual = _usual(s for s in ends if begin - _BEFORE_NS <= s.event.t_ns <= begin)
    if usual is None:
        return _silent_unit(history, window, begin, until, cast)
    enough = max(3 * usual, lit_ns(begin, until, cast) // 2)
    previous = begin
    for seen in [s for s in ends if s.event.t_ns > begin]:
        quiet = lit_ns(max(previous, begin), min(seen.event.t_ns, until), cast)
        if quiet >= enough:
            says = f"no step ended for {quiet / 1e9:.2f} s (a step takes {usual / 1e9:.3f} s)"
            return Effect(max(previous, begin), says, "stopped", (seen.line,))
        previous = seen.event.t_ns
    quiet = lit_ns(max(previous, begin), until, cast)
    if quiet >= enough:
        says = f"no step ended for the last {quiet / 1e9:.2f} s of the fault"
        return Effect(max(previous, begin), says, "stopped", tuple(window.lines[-1:]))
    return None


def prolonged(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """A paced step lasted longer than it should by most of the fault: it stood still in it.

    Shows what :func:`stopped` cannot tell from a slow step: standstills of not even three steps.
    """
    begin, until = _span(history, window)
    lit = lit_ns(begin, until, casts(history, window, "stopped"))
    for seen in history.steps(window.unit):
        step = seen.event
        if not step.nominal_ns or not step.began_at_ns < until <= step.t_ns:
            continue
        beyond = _length(seen) - step.nominal_ns
        if 4 * lit >= step.nominal_ns and 4 * beyond >= 3 * lit:
            says = f"a step took {beyond / 1e9:.2f} s more than {step.nominal_ns / 1e9:.2f} s"
            return Effect(max(begin, step.began_at_ns), says, "stopped", (seen.line,))
    return None


def _silent_unit(
    history: History, window: FaultWindow, begin: int, until: int, cast: Sequence[Shadow]
) -> Effect | None:
    """A unit that does not train (the syncer) stops merging while others go on."""
    own = [m for m in history.merges if m.event.unit == window.unit]
    before = [m for m in own if begin - _BEFORE_NS <= m.event.t_ns < begin]
    if len(before) < _SAMPLES_MIN:
        return None
    usual = (before[-1].event.t_ns - before[0].event.t_ns) // (len(before) - 1)
    marks = [begin, *(m.event.t_ns for m in own if begin < m.event.t_ns < until), until]
    quiet, at = max((lit_ns(a, b, cast), a) for a, b in pairwise(marks))
    if quiet < max(3 * usual, lit_ns(begin, until, cast) // 2):
        return None
    return Effect(at, f"no merge for {quiet / 1e9:.2f} s", "stopped", (before[-1].line,))


def slowed(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """Steps under the fault took at least 10 % longer by the clock."""
    return _longer(history, window, "a step", _length, casts(history, window, "slowed"))


def computes_slower(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """The compute inside steps took at least 10 % longer: pacing hides it from the clock."""
    return _longer(history, window, "a step's compute", _compute, casts(history, window, "compute"))


def _longer(
    history: History,
    window: FaultWindow,
    name: str,
    length: Callable[[Seen[Step]], int],
    cast: Sequence[Shadow],
) -> Effect | None:
    begin, until = _span(history, window)
    nearby = history.steps_between(window.unit, begin - _BEFORE_NS, until)
    before, during = _around(nearby, begin, until)
    during = [s for s in during if lit_ns(s.event.began_at_ns, s.event.t_ns, cast) == _length(s)]
    if len(before) < _SAMPLES_MIN or not during:
        return None
    was, now = median_low(map(length, before)), median_low(map(length, during))
    if was <= 0 or 10 * now < 11 * was:
        return None
    first = next(s for s in during if 10 * length(s) >= 11 * was)
    says = f"{name} took {now / 1e9:.3f} s instead of {was / 1e9:.3f} s"
    return Effect(max(begin, first.event.began_at_ns), says, "slowed", (first.line,))


def link_broken(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """Either end of the unit's link noticed that it was broken or silent."""
    begin, until = _span(history, window)
    cast = casts(history, window, "link")
    for seen in history.links:
        event = seen.event
        if not isinstance(event, LinkDown) or window.unit not in (event.unit, event.peer):
            continue
        if begin <= event.t_ns <= until + LATE_NS and not within(event.t_ns, cast):
            says = f"{event.unit} lost its link to {event.peer}: {event.why}"
            return Effect(event.t_ns, says, "link", (seen.line,))
    return None


def unheard(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """Others were merged while the fault lasted, and the unit, merged before, was not."""
    begin, until = _span(history, window)
    cast = casts(history, window, "unheard")
    life = history.life_at(window.unit, begin)
    if life is None or life.ended_by(until):
        # The dead are not heard either: that is no trace of this fault.
        return None
    before = [m for m in history.merges if begin - _BEFORE_NS <= m.event.t_ns < begin]
    during = [
        m
        for m in history.merges
        if begin < m.event.t_ns <= until and not within(m.event.t_ns, cast)
    ]
    was_in = [m for m in before if _takes_part(m.event.contributions, window.unit)]
    lately = [m for m in before[-6:] if _takes_part(m.event.contributions, window.unit)]
    if len(during) < _SAMPLES_MIN or 2 * len(was_in) < len(before) or len(lately) < _SAMPLES_MIN:
        return None
    without = [m for m in during if not _takes_part(m.event.contributions, window.unit)]
    # One merge may have been under way when the fault began.
    if len(without) < len(during) - 1 or len(without) < _SAMPLES_MIN:
        return None
    says = f"left out of {len(without)} of {len(during)} merges, in {len(was_in)} before"
    return Effect(without[0].event.t_ns, says, "unheard", tuple(m.line for m in without[:3]))


def slower_pulls(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """Pulling a fragment from the unit, or a round trip to it, took markedly longer: by a quarter,
    by more than a host's own unrest, and by half of what the fault asked for."""
    begin, until = _span(history, window)
    least = _delay_ns(history, window)
    if least is None:
        return None
    cast = casts(history, window, "pulls")
    pulls = [
        (m.event.t_ns, m.line, part.pull_ns)
        for m in history.merges
        for part in m.event.contributions
        if part.unit == window.unit and part.pull_ns > 0
    ]
    trips = [
        (s.event.t_ns, s.line, s.event.rtt_ns)
        for s in history.heard
        if window.unit in (s.event.unit, s.event.peer) and isinstance(s.event, Heard)
    ]
    for name, found in (("a pull", pulls), ("a round trip", trips)):
        before = [ns for t, _, ns in found if begin - _BEFORE_NS <= t < begin]
        during = [
            r for r in found if begin < r[0] <= until + LATE_NS // 3 and not within(r[0], cast)
        ]
        if min(len(before), len(during)) < _SAMPLES_MIN:
            continue
        was, now = median_low(before), median_low(ns for _, _, ns in during)
        bar = max(was + least, 5 * was // 4)
        if now >= bar:
            first = next(row for row in during if row[2] >= bar)
            says = f"{name} took {now / 1e6:.1f} ms instead of {was / 1e6:.1f} ms"
            return Effect(first[0], says, "pulls", (first[1],))
    return None


def _delay_ns(history: History, window: FaultWindow) -> int | None:
    """By how much a round trip must be longer to show this fault; None where it cannot show so."""
    latency_ms = window.params.get("latency_ms")
    if isinstance(latency_ms, int | float):
        return max(_LATENCY_NS_MIN, round(latency_ms * 1e6))  # half of what both ways add
    rate = window.params.get("kb_s")
    if isinstance(rate, int | float) and rate > 0 and history.run.fragments:
        # The largest fragment, uncompressed, is the longest that anything may take.
        longest = 4 * max(history.run.fragments) / (rate * 1e3) * 1e9
        return _DELAY_NS_MIN if longest >= _DELAY_NS_MIN else None
    return _DELAY_NS_MIN


def loses_link(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """A link so slow that it was given up or not waited for; a little delay breaks none."""
    latency_ms = window.params.get("latency_ms")
    silence_ms = history.run.params.get("silence_ms_max", _SILENCE_MS)
    if isinstance(latency_ms, int | float) and isinstance(silence_ms, int | float):
        if 8 * latency_ms < silence_ms:
            return None
    elif _delay_ns(history, window) is None:
        return None
    return link_broken(history, window, casts) or unheard(history, window, casts)


def _refusals(*kinds: str) -> Detector:
    """A detector of refusals of those kinds; of any where none is named."""

    def detector(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
        begin, until = _span(history, window)
        cast = casts(history, window, "old") if "stale" in kinds else []
        asked = _REFUSED_HOW.get(str(window.params.get("how", "")), kinds)
        for seen in history.refused:
            event = seen.event
            if event.sender != window.unit or not begin <= event.t_ns <= until + LATE_NS:
                continue
            if within(event.t_ns, cast) and not event.why.startswith(_SENT_TWICE):
                continue
            if not asked or event.why.split(":", 1)[0].strip() in asked:
                says = f"its update of fragment {event.fragment} was refused: {event.why}"
                return Effect(event.t_ns, says, "refused", (seen.line,))
        return None

    return detector


def out_of_memory(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """The unit was ended by the kernel's OOM killer, as whoever keeps it alive found out."""
    others = frozenset(s.line for s in history.exits if not s.event.oom)
    return exited(history, window, casts, others)


def state_lost(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """The unit died, and a later life of it shows that it did not find what it had written."""
    death = exited(history, window, casts)
    begin = window.asked_ns or window.executed_ns or 0
    since = death.at_ns if death is not None else begin
    emptied = window.kind == "lose_checkpoint"
    until = min(
        (
            other.asked_ns
            for other in history.faults
            if other.unit == window.unit
            # Damage to an empty disk is none: it stays the trace of what emptied it.
            and (other.kind == "lose_checkpoint" if emptied else other.kind in STATE_KINDS)
            and other.asked_ns is not None
            and other.asked_ns > begin
        ),
        default=history.end_ns,
    )
    found = min(_traces(history, window.unit, since, until, emptied), default=None)
    if found is None:
        return None
    at_ns, line, says = found
    if death is None:  # nobody lived there
        return Effect(at_ns, says, "state", (line,))
    return Effect(death.at_ns, f"{death.how}; then {says}", "exit", (*death.lines, line))


def _damaged_again(history: History, window: FaultWindow) -> str:
    """Which state fault came before any life of the unit could read what this one had left."""
    begin = window.executed_ns or 0
    ready = [
        lf.ready_ns
        for lf in history.lives.get(window.unit, ())
        if lf.ready_ns is not None and lf.ready_ns > begin
    ]
    if window.unit in history.syncers:  # one that rescues is ready long before it has a state
        own = [m.event.t_ns for m in history.merges if m.event.unit == window.unit]
        own += [b.event.t_ns for b in history.rolled_back if b.event.unit == window.unit]
        ready = [t for t in own if t > begin]
    for other in history.faults:
        if other.unit != window.unit or other.kind not in STATE_KINDS or other is window:
            continue
        if begin < (other.executed_ns or 0) <= min(ready, default=history.end_ns):
            return f"{other.fault} came before what was damaged could be read"
    return ""


def _traces(
    history: History, unit: str, since: int, until: int, emptied: bool
) -> Iterator[tuple[int, int, str]]:
    """(instant, line, words) of what a unit shows whose durable state is gone (``emptied``) or
    damaged; a damaged disk still gives something back."""
    backs = [
        b
        for b in history.rolled_back
        if b.event.unit == unit and since <= b.event.t_ns <= until and emptied >= b.event.emptied
    ]
    for back in backs:
        e = back.event
        says = f"fragment {e.fragment} went from version {e.before} to {e.version}: {e.why}"
        yield e.t_ns, back.line, says
    if any(b.event.emptied for b in backs):
        return  # beside an empty disk, what is only damaged is another fault's trace
    for note in history.notes:
        n = note.event
        told = isinstance(n, UnitNote) and n.unit == unit and n.what == "state-damaged"
        if isinstance(n, UnitNote) and told and since <= n.t_ns <= until:
            yield n.t_ns, note.line, n.detail
    for before, after in pairwise(history.lives.get(unit, ())):
        joined = after.joined
        if joined is None or not before.steps or not since <= joined.event.t_ns <= until:
            continue
        last = before.numbers[-1]
        if joined.event.source == "initial" and joined.event.step < last:
            says = f"it began at step {joined.event.step}, and had been at step {last}"
            yield joined.event.t_ns, joined.line, says


def proxy_ended(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """The proxy's own process ended, and links with it."""
    begin, until = window.asked_ns or 0, (window.last_executed_ns or 0) + EXIT_SLACK_NS
    for seen in history.notes:
        note = seen.event
        if isinstance(note, ProxyChanged) and "ended" in note.what and begin <= note.t_ns <= until:
            return Effect(note.t_ns, note.what, "proxy", (seen.line,))
    return None


def no_space(history: History, window: FaultWindow, casts: Casts) -> Effect | None:
    """The unit said that it could not write."""
    begin, until = _span(history, window)
    for seen in history.notes:
        note = seen.event
        if not isinstance(note, UnitNote) or note.unit != window.unit:
            continue
        told = note.what == "disk-full" or "[Errno 28]" in note.detail
        if told and begin <= note.t_ns <= until:
            return Effect(note.t_ns, f"{note.what}: {note.detail}", "space", (seen.line,))
    return None


_REFUSED_HOW: dict[str, tuple[str, ...]] = {
    "nan": ("non-finite",),
    "inf": ("non-finite",),
    "scale": ("outlier", "non-finite"),
    "bitflip": ("checksum",),
}
"""What the syncer says of each kind of corruption (the parameter ``how``)."""

_SENT_TWICE = "duplicate: request"
"""Only a push that was sent twice is refused so; whoever was out for long may well be stale."""

_SPOILT = frozenset({"corrupt_update", "truncated_update"})

refused = _refusals()
_BROKEN: tuple[Detector, ...] = (link_broken, unheard)
_LINK: tuple[Detector, ...] = (link_broken, unheard, slower_pulls)
_SLOW: tuple[Detector, ...] = (slower_pulls, loses_link)
_OLD: tuple[Detector, ...] = (_refusals("stale", "duplicate"),)
_ANY: tuple[Detector, ...] = (exited, stopped, link_broken, refused, slowed, slower_pulls, unheard)

EVIDENCE: dict[str, tuple[Detector, ...]] = {
    "kill": (exited,),
    "kill_group": (exited,),
    "terminate": (exited,),
    "absent": (exited, stopped),
    "crash_loop": (exited,),
    "oom": (out_of_memory,),
    **dict.fromkeys(sorted(STATE_KINDS), (state_lost,)),
    "disk_full": (no_space,),
    "kill_proxy": (proxy_ended,),
    "pause": (stopped, link_broken, prolonged),
    "hang": (stopped,),
    "throttle": (slowed, stopped, computes_slower),
    "straggle": (slowed, stopped),
    "partition": _LINK,
    "partition_oneway": _LINK,
    "refuse": _BROKEN,
    "stall": _LINK,
    "reset": _BROKEN,
    "cut": (link_broken,),
    "flap": _LINK,
    "disconnect": _BROKEN,
    "blackhole": _BROKEN,
    "latency": _SLOW,
    "bandwidth": _SLOW,
    "corrupt_update": (_refusals("non-finite", "outlier", "checksum"),),
    "stale_update": _OLD,
    "duplicate_update": _OLD,
    "truncated_update": (_refusals("truncated"),),
}
"""Fault kind to the evidence that counts for it, best first; other kinds accept any evidence."""


def _span(history: History, window: FaultWindow) -> tuple[int, int]:
    begin = window.asked_ns if window.asked_ns is not None else window.executed_ns or 0
    return begin, max(begin, window.until_ns(history.end_ns))


def _takes_part(contributions: Iterable[object], unit: str) -> bool:
    return any(getattr(part, "unit", None) == unit for part in contributions)


def _length(seen: Seen[Step]) -> int:
    return seen.event.t_ns - seen.event.began_at_ns


def _compute(seen: Seen[Step]) -> int:
    return seen.event.compute_ns


def _usual(steps: Iterator[Seen[Step]]) -> int | None:
    lengths = [_length(s) for s in steps]
    return median_low(lengths) if len(lengths) >= _SAMPLES_MIN else None


def _around(
    steps: Iterable[Seen[Step]], begin: int, until: int
) -> tuple[list[Seen[Step]], list[Seen[Step]]]:
    before, during = [], []
    earliest = begin - _BEFORE_NS
    for seen in steps:
        step = seen.event
        if step.t_ns < earliest:
            continue
        if step.t_ns <= begin:
            before.append(seen)
        # A slow step may end after the fault does; what counts is that it ran under it.
        elif begin - _length(seen) // 2 <= step.began_at_ns < until:
            during.append(seen)
    return before, during
