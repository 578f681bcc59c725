"""Self-healing latency: how long a fault on a unit took to heal, in phases.

Every phase is counted from the same origin and says *until*: a later phase includes the earlier
ones. For a fault that was survived (the process died) the origin is the instant at which it took
effect; for one that was lifted (a frozen unit, a cut link) it is the lift. ``detect`` is the
exception: it is always counted from the effect, because noticing comes before the lift.

* ``detect``: until another unit acted on the victim's absence. A broken link shows only when
  somebody notices it, so there it is counted from the fault's execution.
  (a planned absence, too, is lifted: healing is then how long joining took.)
* ``restart``: until the unit's process ran again (only when it died).
* ``ready``: until its first inner step was done (only when it died or stood still).
* ``reintegrate``: until its first contribution was merged. This is the self-healing latency. Where
  units train in lockstep, every step is everybody's: then it is the same as ``ready``.
* ``throughput``: until the 2 s token rate of the unit was within 5 % of the rate before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

from harness.events import Joined, Merged, Step
from reports.effects import FaultFact
from reports.history import History
from reports.lives import Life, Seen

RATE_NS = 2_000_000_000
"""Length of the window behind the token rate."""

PERCENTILE_N_MIN = 5
"""No percentile is published for fewer faults."""

NOTICE_SLACK_NS = 3_000_000_000
"""How long after a lasting fault its notice may still come in."""

OUT = frozenset({"exit", "stopped", "link", "unheard"})
"""Effects that take a unit out of training. Only these count as healing in summaries: a slow unit
never left, so there is nothing to heal."""


@dataclass(frozen=True)
class Healing:
    """One executed fault on one unit. Instants and durations in ns; None where nothing is known
    or the phase does not apply."""

    fact: FaultFact
    origin_ns: int | None
    detect_ns: int | None
    restart_ns: int | None
    ready_ns: int | None
    reintegrate_ns: int | None
    throughput_ns: int | None
    restarted_by: str | None
    state_digest_match: bool | None
    waited_ns: int | None
    """When not reintegrated: how long the journal shows it waiting; a lower bound."""

    @property
    def counts(self) -> bool:
        """Whether the unit was out, so that there was something to heal."""
        return self.fact.effect is not None and self.fact.effect.what in OUT


@dataclass(frozen=True)
class Summary:
    """Of the reintegrate latencies of faults that took a unit out, in ns.

    A unit that never came back counts as slower than every other: a percentile that falls on it is
    None, and so is ``max_ns``.
    """

    n: int
    unhealed: int
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None
    at_least_ns: int
    """The longest that any fault is known to have taken or to have been waited for."""


def heal(history: History, facts: Sequence[FaultFact]) -> list[Healing]:
    """The healing of each executed fault."""
    return [_heal(history, f) for f in facts if f.executed and not f.control]


def summarize(rows: Sequence[Healing]) -> Summary:
    """Summary over the rows that count. Percentiles are nearest-rank."""
    counted = [r for r in rows if r.counts]
    healed = sorted(r.reintegrate_ns for r in counted if r.reintegrate_ns is not None)
    n = len(counted)
    known = [*healed, *(r.waited_ns for r in counted if r.waited_ns is not None)]

    def percentile(share: float) -> int | None:
        rank = ceil(share * n) - 1
        return healed[rank] if n >= PERCENTILE_N_MIN and rank < len(healed) else None

    return Summary(
        n=n,
        unhealed=n - len(healed),
        p50_ns=percentile(0.50),
        p95_ns=percentile(0.95),
        max_ns=healed[-1] if healed and len(healed) == n else None,
        at_least_ns=max(known, default=0),
    )


def _heal(history: History, fact: FaultFact) -> Healing:
    window, effect = fact.window, fact.effect
    begin = effect.at_ns if effect is not None else window.executed_ns or 0
    died = effect is not None and effect.what == "exit"
    origin = window.ended_ns if window.lasting and (window.absence or not died) else begin
    later = _next_life(history, window.unit, begin) if died else None
    merged = _first_merge(history, window.unit, begin, origin, died)
    limit = history.end_ns
    stood = effect is not None and effect.what in ("exit", "stopped")
    ready = _first_step(history, window.unit, origin, later, died, stood)

    def since(t_ns: int | None) -> int | None:
        return None if t_ns is None or origin is None or t_ns > limit else max(0, t_ns - origin)

    back = _in_lockstep_again(history, window.unit, origin, ready)
    reintegrate = since(merged.event.t_ns if merged else back)
    return Healing(
        fact=fact,
        origin_ns=origin,
        detect_ns=_detect(history, fact, merged, back, later),
        restart_ns=since(later.begin_ns if later else None),
        ready_ns=since(ready),
        reintegrate_ns=reintegrate,
        throughput_ns=since(_rate_back(history, window.unit, begin, origin)),
        restarted_by=(later.by or "unknown") if later else None,
        state_digest_match=_digests_match(later.joined) if later else None,
        waited_ns=None if reintegrate is not None or origin is None else max(0, limit - origin),
    )


def _in_lockstep_again(
    history: History, unit: str, origin: int | None, ready: int | None
) -> int | None:
    """Where units train in lockstep: a worker's next step, or the next world of who forms them."""
    if not history.worlds or origin is None:
        return None
    formed = [
        w.event.t_ns for w in history.worlds if w.event.unit == unit and w.event.t_ns > origin
    ]
    return ready if ready is not None or not formed else formed[0]


def _detect(
    history: History,
    fact: FaultFact,
    merged: Seen[Merged] | None,
    again_ns: int | None,
    later: Life | None,
) -> int | None:
    window, effect = fact.window, fact.effect
    if effect is None or effect.what not in OUT:
        return None
    begin = effect.at_ns
    over = again_ns or history.end_ns if merged is None else merged.event.t_ns
    if later is not None:
        # Once its next process is ready, or dead as well, a notice is not of this death.
        over = min(over, later.ready_ns or later.ended_ns or over)
    if effect.what != "exit":
        begin = min(begin, window.executed_ns or begin)
        over = min(history.end_ns, window.until_ns(history.end_ns) + NOTICE_SLACK_NS)
    notice = history.noticed(window.unit, begin)
    # A later notice belongs to a later fault.
    return notice.event.t_ns - begin if notice and notice.event.t_ns <= over else None


def _next_life(history: History, unit: str, died_ns: int) -> Life | None:
    for life in history.lives.get(unit, ()):
        if life.begin_ns > died_ns:
            return life
    return None


def _first_step(
    history: History, unit: str, origin: int | None, later: Life | None, died: bool, stood: bool
) -> int | None:
    if origin is None or (died and later is None) or not stood:
        return None
    for seen in history.steps_between(unit, origin, 1 << 62):
        if seen.event.t_ns > origin:
            return seen.event.t_ns
    return None


def _first_merge(
    history: History, unit: str, begin: int, origin: int | None, died: bool
) -> Seen[Merged] | None:
    """The first merge after the origin with a part of this unit; after a death, with a part of a
    life that began after it. A syncer is back with its own first merge."""
    if origin is None:
        return None
    own = history.mergers
    old = {lf.incarnation for lf in history.lives.get(unit, ()) if lf.begin_ns <= begin}
    first = bisect_right(history.merges, origin, key=lambda s: s.event.t_ns)
    for seen in islice(history.merges, first, None):
        if unit in own:
            if seen.event.unit == unit and not (died and seen.event.incarnation in old):
                return seen
            continue
        for part in seen.event.contributions:
            if part.unit == unit and not (died and part.incarnation in old):
                return seen
    return None


def _digests_match(joined: Seen[Joined] | None) -> bool | None:
    if joined is None or not joined.event.donor_digests:
        return None
    return joined.event.digests == joined.event.donor_digests


def _rate_back(history: History, unit: str, begin: int, origin: int | None) -> int | None:
    """When the unit's token rate over the last 2 s was back at 95 % of that before the fault."""
    if origin is None:
        return None
    rate: _Rate | None = history.memo.get(("rate", unit))
    if rate is None:
        rate = history.memo["rate", unit] = _Rate([s.event for s in history.steps(unit)])
    before = rate.tokens_scaled(begin)
    if before <= 0:
        return None
    for end in islice(rate.ends, bisect_right(rate.ends, origin), None):
        if 100 * rate.tokens_scaled(end) >= 95 * before:
            return end
    return None


class _Rate:
    """Tokens in the 2 s before an instant. A step's tokens are spread evenly over its time, in
    parts of a million, so that a steady rate reads as steady."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = sorted(steps, key=lambda s: s.t_ns)
        self.ends = [s.t_ns for s in self.steps]

    def tokens_scaled(self, t_ns: int) -> int:
        """Millionths of tokens in (t_ns - 2 s, t_ns]."""
        start = t_ns - RATE_NS
        total = 0
        for step in islice(self.steps, bisect_right(self.ends, start), None):
            length = step.t_ns - step.began_at_ns
            inside = min(step.t_ns, t_ns) - max(step.began_at_ns, start)
            if inside > 0 and length > 0:
                total += 1_000_000 * step.tokens * inside // length
            if step.began_at_ns >= t_ns:
                break
        return total
