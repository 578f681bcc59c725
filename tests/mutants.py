"""Planted bugs: each one a small change to protocol, arithmetic or harness, and who must catch it.

A mutant is planted with pytest's ``monkeypatch`` and is gone after the test; nothing in the product
knows about them. ``checks`` are the names (of checks, claims, or the audits of this folder) any of
which may catch it: the first to speak depends on the drawn faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import harness.runner
import harness.sim.cluster
import reports.ledger
import reports.tokens
import targets.diloco.grace
import targets.diloco.pulling
import targets.diloco.syncer
import targets.diloco.work
from faults.holds import NEUTRAL, Holds
from harness.errors import FaultSkipped
from harness.events import FaultAsked, FaultExecuted
from harness.sim.cluster import Cluster
from harness.sim.network import Link
from targets.base import Save, Send, Started, Work
from targets.diloco.admission import Expected
from targets.diloco.arrays import Merged, Outer
from targets.diloco.checkpointing import Checkpointing
from targets.diloco.committed import Committed
from targets.diloco.evaluation import Evaluations
from targets.diloco.holding import Holding
from targets.diloco.learner import Learner
from targets.diloco.messages import Adopt, Fragment, Push
from targets.diloco.params import DilocoParams
from targets.diloco.rescue import Rescue
from targets.diloco.sessions import Sessions
from targets.diloco.syncer import Syncer
from targets.diloco.work import SyncerWorker
from targets.diloco.work_scripted import ScriptedSyncer

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A bug and how to plant it."""

    name: str
    bug: str
    checks: frozenset[str]
    plant: Callable[[Patch], None]
    trainer: str = "scripted"
    """``quadratic`` for bugs in the arithmetic, which is audited merge by merge."""
    seeds: int = 60
    """Drawn experiments after which it must have been caught."""
    must: tuple[str, ...] = ()
    """Kinds of faults that are added to every experiment, for bugs that need just those."""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str, bug: str, *checks: str, **own: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Enter the decorated function into the table."""

    def enter(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS[name] = Mutant(name, bug, frozenset(checks), plant, **own)
        return plant

    return enter


def _effects(patch: Patch, kind: type, change: Callable[[Any, Any, list[Any]], list[Any]]) -> None:
    """Let ``change(node, event, effects)`` alter what nodes of ``kind`` ask for."""
    sound = kind.handle  # type: ignore[attr-defined]

    def handle(self: Any, event: Any, now_ns: int) -> list[Any]:
        return change(self, event, sound(self, event, now_ns))

    patch.setattr(kind, "handle", handle)


def _expecting(patch: Patch, **changed: Any) -> None:
    """Admission decides with some of its facts replaced."""
    sound = targets.diloco.pulling.admit  # type: ignore[attr-defined]

    def admit(push: Push, want: Expected) -> tuple[bool, str]:
        return sound(push, structs.replace(want, **changed))

    patch.setattr(targets.diloco.pulling, "admit", admit)


# --- the syncer's protocol ----------------------------------------------------------------------


@mutant("quorum-off-by-one", "the syncer merges with one learner less than K", "quorum")
def _(patch: Patch) -> None:
    sound = Syncer.__init__

    def init(self: Any, name: str, params: DilocoParams, *rest: Any) -> None:
        sound(self, name, replace(params, quorum=max(1, params.quorum - 1)), *rest)

    patch.setattr(Syncer, "__init__", init)
    patch.setattr(ScriptedSyncer, "_quorum", property(lambda self: 1, lambda self, v: None), False)


@mutant("merges-what-came", "after the pull the quorum is not looked at again", "quorum")
def _(patch: Patch) -> None:
    sound = Syncer._settle

    def settle(self: Any) -> None:
        params = self.params
        if self._pull.admitted:
            self.params = replace(params, quorum=1)
        try:
            sound(self)
        finally:
            self.params = params

    patch.setattr(Syncer, "_settle", settle)
    patch.setattr(ScriptedSyncer, "_quorum", property(lambda self: 1, lambda self, v: None), False)


@mutant(
    "grace-ignores-stalls",
    "one frozen learner's step stretches everybody's windows",
    "grace-short",
    must=("pause",),
    seeds=100,
)
def _(patch: Patch) -> None:
    patch.setattr(targets.diloco.grace, "OUTLIER_FACTOR", 1e9)


@mutant("grace-without-cap", "the window is the whole slack and not at most a step", "grace-short")
def _(patch: Patch) -> None:
    def window(pace: Any, gamma: float) -> tuple[int, str]:
        return int(40 * pace.tau * (pace.step_ns or 0)), "grace without end"

    patch.setattr(targets.diloco.syncer, "window", window)


@mutant(
    "stale-accepted",
    "a contribution older than the staleness bound is merged",
    "quorum",
    seeds=150,
    must=("partition",),
)
def _(patch: Patch) -> None:
    _expecting(patch, stale_limit=1 << 30)


@mutant(
    "double-merge",
    "steps that were merged before a reconnect are merged again",
    "tokens-once",
    must=("partition", "slow-disk"),
    seeds=100,
)
def _(patch: Patch) -> None:
    _expecting(patch, merged_through=-1)
    patch.setattr(Sessions, "_missed", lambda self, peer, hello: set())


@mutant("weight-not-squared", "a contribution weighs c_tokens / c_steps", "quorum")
def _(patch: Patch) -> None:
    patch.setattr(targets.diloco.pulling, "weight", lambda tokens, steps: tokens / steps)


@mutant("weight-not-divided", "a contribution weighs c_tokens^2", "quorum")
def _(patch: Patch) -> None:
    patch.setattr(targets.diloco.pulling, "weight", lambda tokens, steps: float(tokens**2))


@mutant(
    "version-reused",
    "a restarted syncer goes on one version back",
    "one-author",
    "versions",
    "nothing-lost",
    "liveness",
    must=("syncer-kill",),
)
def _(patch: Patch) -> None:
    sound = Committed.resume

    def resume(self: Any, fragment: int, saved: dict[str, Any]) -> None:
        sound(self, fragment, {**saved, "version": max(0, saved["version"] - 1)})

    patch.setattr(Committed, "resume", resume)


@mutant(
    "syncer-forgets",
    "a restarted syncer begins at version 0",
    "one-author",
    "versions",
    "nothing-lost",
    "liveness",
    must=("syncer-kill",),
)
def _(patch: Patch) -> None:
    sound = Syncer._started

    def started(self: Any, event: Started) -> None:
        sound(self, Started(event.incarnation, {}))

    patch.setattr(Syncer, "_started", started)


@mutant(
    "sent-before-saved",
    "a version is broadcast first and made durable afterwards",
    "one-author",
    "versions",
    "nothing-lost",
    "liveness",
    must=("syncer-crash", "slow-disk"),
    seeds=200,
)
def _(patch: Patch) -> None:
    def late(node: Any, event: Any, effects: list[Any]) -> list[Any]:
        saves = [e for e in effects if isinstance(e, Save)]
        return [e for e in effects if not isinstance(e, Save)] + saves

    _effects(patch, Syncer, late)


@mutant(
    "never-saved",
    "versions are not made durable at all",
    "one-author",
    "versions",
    "nothing-lost",
    "liveness",
    must=("syncer-kill",),
)
def _(patch: Patch) -> None:
    _effects(patch, Syncer, lambda _n, _e, out: [e for e in out if not isinstance(e, Save)])


@mutant(
    "new-life-old-marks",
    "a restarted learner is held to what its last life had merged",
    "liveness",
    "back-in-time",
    must=("kill",),
)
def _(patch: Patch) -> None:
    from targets.diloco.roster import Peer

    def begin_life(self: Any, incarnation: int) -> None:
        self.incarnation = incarnation

    patch.setattr(Peer, "begin_life", begin_life)


@mutant(
    "pull-never-ends",
    "a learner that hangs in a pull is waited for without end",
    "liveness",
    "blast-radius",
    "back-in-time",
    seeds=150,
)
def _(patch: Patch) -> None:
    sound = Syncer._lose

    def lose(self: Any, peer: Any, why: str) -> None:
        was = self._pull.pending.get(peer.name)
        sound_pending = dict(self._pull.pending)
        sound_pending.pop(peer.name, None)
        self._pull.pending, kept = sound_pending, self._pull.pending
        sound(self, peer, why)
        if was is not None:
            self._pull.pending = kept

    patch.setattr(Syncer, "_lose", lose)
    sound_tick = Syncer._tick

    def tick(self: Any, event: Any) -> None:
        self._pull.until = 1 << 62
        sound_tick(self, event)

    patch.setattr(Syncer, "_tick", tick)


@mutant(
    "no-retry", "a merge that got too few fragments is never tried again", "liveness", seeds=150
)
def _(patch: Patch) -> None:
    from targets.diloco.syncer import Phase

    def retry(self: Any, why: str) -> None:
        self.phase = Phase.MERGE

    patch.setattr(Syncer, "_retry", retry)


@mutant(
    "refusal-unnamed",
    "a poisoned update is merged, and the result is not finite",
    "finite",
    "merge-audit",
    trainer="quadratic",
    must=("corrupt_update",),
)
def _(patch: Patch) -> None:
    sound_attempt = SyncerWorker._attempt

    def attempt(self: Any, fragment: int, usable: Any) -> Merged:
        out = sound_attempt(self, fragment, usable)
        return replace(out, norms=np.zeros_like(out.norms), finite=True)

    patch.setattr(SyncerWorker, "_attempt", attempt)


# --- the learner's protocol ---------------------------------------------------------------------


@mutant("tokens-not-reset", "adopting a fragment does not restart its token counter", "tokens-once")
def _(patch: Patch) -> None:
    sound = Holding.restart

    def restart(self: Any, fragment: Fragment) -> None:
        kept = self.tokens_at[fragment.fragment]
        sound(self, fragment)
        self.tokens_at[fragment.fragment] = kept

    patch.setattr(Holding, "restart", restart)


@mutant(
    "steps-not-reset",
    "adopting a fragment does not restart its step counter",
    "tokens-once",
    "liveness",
    "back-in-time",
)
def _(patch: Patch) -> None:
    sound = Holding.restart

    def restart(self: Any, fragment: Fragment) -> None:
        kept = self.since[fragment.fragment]
        sound(self, fragment)
        self.since[fragment.fragment] = kept

    patch.setattr(Holding, "restart", restart)


@mutant(
    "counters-off-by-one",
    "counters restart one step before the adoption",
    "tokens-once",
    "liveness",
)
def _(patch: Patch) -> None:
    sound = Holding.restart

    def restart(self: Any, fragment: Fragment) -> None:
        sound(self, fragment)
        self.since[fragment.fragment] = max(0, self.step - 1)

    patch.setattr(Holding, "restart", restart)


@mutant("never-adopts", "received fragments are thrown away", "liveness", "back-in-time")
def _(patch: Patch) -> None:
    def keep(node: Any, event: Any, out: list[Any]) -> list[Any]:
        node._arrivals.adopting.clear()
        return [e for e in out if not (isinstance(e, Work) and isinstance(e.job, Adopt))]

    _effects(patch, Learner, keep)


@mutant(
    "adopts-anything",
    "a learner takes a fragment older than the one it holds",
    "versions",
    seeds=150,
)
def _(patch: Patch) -> None:
    sound = Learner._fragment
    last: dict[tuple[str, int], Fragment] = {}

    def fragment(self: Any, message: Fragment) -> None:
        older = last.get((self.name, message.fragment))
        if self.holding.joined and older is not None and older.version < message.version - 2:
            sound(self, message)
            self._arrivals.known[message.fragment] = older.version - 1
            message = older
        last.setdefault((self.name, message.fragment), message)
        sound(self, message)

    patch.setattr(Learner, "_fragment", fragment)


@mutant(
    "fresh-weights-promoted",
    "a restarted learner trains on parameters of its own making",
    "newborns-loaded",
    must=("kill",),
    seeds=100,
)
def _(patch: Patch) -> None:
    def own(node: Any, event: Any, out: list[Any]) -> list[Any]:
        if isinstance(event, Started) and event.incarnation > 1:
            node.holding.joined = True
            node.go_on()
        return out

    _effects(patch, Learner, own)


@mutant(
    "heartbeats-lost",
    "a learner does not answer while it has nothing else to say",
    "links-explained",
    "liveness",
)
def _(patch: Patch) -> None:
    from targets.diloco.messages import Heartbeat, Report

    def quiet(node: Any, event: Any, out: list[Any]) -> list[Any]:
        mute = (Heartbeat, Report) if node.holding.step % 50 > 25 else ()
        return [e for e in out if not (isinstance(e, Send) and isinstance(e.message, mute))]

    _effects(patch, Learner, quiet)


@mutant(
    "deaf-to-disconnects",
    "a learner that gives its silent link up does not dial again",
    "liveness",
    must=("partition",),
)
def _(patch: Patch) -> None:
    sound = Link.give_up

    def give_up(self: Any, side: int, why: str) -> None:
        sound(self, side, why)
        self._dialling = None

    patch.setattr(Link, "give_up", give_up)


# --- arithmetic ---------------------------------------------------------------------------------


@mutant(
    "rda-on-embedding",
    "the embedding is merged like every other tensor",
    "embedding-averaged",
    "merge-audit",
    trainer="quadratic",
)
def _(patch: Patch) -> None:
    def rules(layout: Any, fragment: int, merge: str) -> list[str]:
        return [merge for _ in layout.fragments[fragment]]

    patch.setattr(targets.diloco.work, "rules", rules)


def _outer(patch: Patch, change: Callable[[dict[str, Any]], Merged]) -> None:
    """Replace the merge arithmetic of new syncer workers; ``change`` gets its arguments."""
    sound = targets.diloco.work.arrays.merger  # type: ignore[attr-defined]

    def merger(*asked: Any) -> Any:
        whole = sound(*asked)
        names = ("prev", "buf", "thetas", "weights", "sizes", "rules", "outer", "out")

        def merge(*given: Any) -> Merged:
            return change({"merge": whole, **dict(zip(names, given, strict=True))})

        return merge

    patch.setattr(targets.diloco.work.arrays, "merger", merger)  # type: ignore[attr-defined]


def _call(g: dict[str, Any], **changed: Any) -> Merged:
    g = {**g, **changed}
    result: Merged = g["merge"](
        g["prev"], g["buf"], g["thetas"], g["weights"], g["sizes"], g["rules"], g["outer"], g["out"]
    )
    return result


@mutant("weights-ignored", "all contributions count the same", "merge-audit", trainer="quadratic")
def _(patch: Patch) -> None:
    _outer(patch, lambda g: _call(g, weights=[1.0] * len(g["weights"])))


@mutant("no-momentum", "the outer optimizer is plain SGD", "merge-audit", trainer="quadratic")
def _(patch: Patch) -> None:
    _outer(patch, lambda g: _call(g, outer=Outer(g["outer"].lr, 0.0)))


@mutant("one-left-out", "the last contributor is not merged", "merge-audit", trainer="quadratic")
def _(patch: Patch) -> None:
    def change(g: dict[str, Any]) -> Merged:
        if len(g["thetas"]) < 2:
            return _call(g)
        out = _call(g, thetas=g["thetas"][:-1], weights=g["weights"][:-1])
        return replace(out, norms=np.vstack([out.norms, out.norms[:1]]))

    _outer(patch, change)


@mutant("sign-flipped", "the outer step goes up the hill", "merge-audit", trainer="quadratic")
def _(patch: Patch) -> None:
    _outer(patch, lambda g: _call(g, outer=Outer(-g["outer"].lr, g["outer"].momentum)))


@mutant(
    "avg-for-rda", "deltas are averaged where RDA was asked for", "merge-audit", trainer="quadratic"
)
def _(patch: Patch) -> None:
    _outer(patch, lambda g: _call(g, rules=["avg"] * len(g["rules"])))


@mutant(
    "momentum-lost-at-restart",
    "a restarted syncer begins with no momentum",
    "merge-audit",
    trainer="quadratic",
    must=("syncer-kill",),
)
def _(patch: Patch) -> None:
    sound = SyncerWorker._stored

    def stored(self: Any, fragment: int, version: int) -> Any:
        theta, buf = sound(self, fragment, version)
        return theta, buf * 0

    patch.setattr(SyncerWorker, "_stored", stored)


# --- the harness --------------------------------------------------------------------------------


@mutant(
    "lost-undo",
    "a hold that ends is forgotten and not undone",
    "liveness",
    "holds-held",
    "links-explained",
    "back-in-time",
    must=("partition",),
)
def _(patch: Patch) -> None:
    def drop(self: Any, fault: str, unit: str, resource: Any) -> tuple[str, tuple[str, ...]]:
        self._held.get((unit, resource), {}).pop(fault, None)
        return "", ()

    patch.setattr(Holds, "drop", drop)


@mutant(
    "first-end-heals-all",
    "the first of two overlapping faults to end heals the other",
    "holds-held",
    must=("overlap",),
)
def _(patch: Patch) -> None:
    def drop(self: Any, fault: str, unit: str, resource: Any) -> tuple[str, tuple[str, ...]]:
        held = self._held.get((unit, resource), {})
        if held.pop(fault, None) is None:
            return "", ()
        return self._control.apply(unit, resource, NEUTRAL[resource]), ()

    patch.setattr(Holds, "drop", drop)


@mutant(
    "skipped-logged-as-done",
    "a kill that found nobody is journalled as executed",
    "deaths-real",
    must=("double-kill",),
)
def _(patch: Patch) -> None:
    sound = harness.runner.Acts._act

    def act(self: Any, item: Any) -> str:
        try:
            return sound(self, item)
        except FaultSkipped:
            return ""

    patch.setattr(harness.runner.Acts, "_act", act)


@mutant(
    "intent-after-deed", "a fault is executed before the journal holds the intent", "intent-first"
)
def _(patch: Patch) -> None:
    sound = harness.runner.Acts.log

    def log(self: Any, event: Any) -> None:
        if not isinstance(event, FaultAsked):
            sound(self, event)
        if isinstance(event, FaultExecuted):
            sound(
                self,
                FaultAsked(
                    t_ns=event.t_ns + 1, fault=event.fault, kind=event.kind, unit=event.unit
                ),
            )

    patch.setattr(harness.runner.Acts, "log", log)


@mutant(
    "no-restart",
    "the supervisor starts a unit again only once",
    "liveness",
    must=("kill",),
    seeds=40,
)
def _(patch: Patch) -> None:
    sound = Cluster._spawn

    def spawn(self: Any, now: int, order: Any) -> None:
        if order[0].disk.incarnation < 2:
            sound(self, now, order)

    patch.setattr(Cluster, "_spawn", spawn)


@mutant(
    "incarnation-stuck",
    "every life of a unit has the same incarnation",
    "tokens-once",
    "versions",
    "liveness",
    "quorum",
    "back-in-time",
    "newborns-loaded",
    must=("kill",),
)
def _(patch: Patch) -> None:
    from harness.sim.storage import Disk

    patch.setattr(Disk, "incarnation", property(lambda self: 1, lambda self, value: None))


@mutant(
    "begins-anew",
    "a syncer whose disk gave nothing back starts at version 1 without asking the learners",
    "versions",
    "one-author",
    "nothing-lost",
    must=("lose_checkpoint",),
)
def _(patch: Patch) -> None:
    patch.setattr(Rescue, "begin", lambda self, *told: None)


@mutant("unexplained-exit", "a unit now and then ends by itself", "exits-explained")
def _(patch: Patch) -> None:
    def die(node: Any, event: Any, out: list[Any]) -> list[Any]:
        if node.holding.step == 77:
            raise RuntimeError("planted")
        return out

    _effects(patch, Learner, die)


@mutant(
    "late-reads",
    "a push holds the state at the end of its reading, its counters that of the beginning",
    "replay",
)
def _(patch: Patch) -> None:
    patch.setattr(harness.sim.cluster, "_bound", lambda bind, job: lambda: bind(job)())


@mutant("links-by-chance", "message delays come from an unseeded generator", "determinism")
def _(patch: Patch) -> None:
    sound = Link.__init__

    def init(self: Any, *given: Any) -> None:
        sound(self, *given)
        self._random = random.SystemRandom().random

    patch.setattr(Link, "__init__", init)


# --- the reports --------------------------------------------------------------------------------


@mutant("ledger-double-counts", "useful time is counted twice", "harness")
def _(patch: Patch) -> None:
    sound = reports.ledger.LearnerLedger.totals

    def totals(self: Any) -> dict[str, int]:
        sums = sound(self)
        return {**sums, "useful": 2 * sums["useful"]}

    patch.setattr(reports.ledger.LearnerLedger, "totals", totals)


@mutant(
    "evaluates-other-tokens",
    "an evaluation claims the tokens of parameters one merge older, so that losses are compared "
    "at unequal tokens",
    "tokens-once",
    trainer="quadratic",
    must=("evaluate",),
)
def _(patch: Patch) -> None:
    sound = Evaluations.merged
    owed: dict[int, tuple[int, int]] = {}

    def merged(self: Any, fragment: int, tokens: int) -> None:
        sound(self, *owed.get(id(self), (fragment, 0)))
        owed[id(self)] = fragment, tokens

    patch.setattr(Evaluations, "merged", merged)


@mutant(
    "evaluates-from-zero",
    "a restarted syncer has forgotten what its parameters learned from",
    "tokens-once",
    trainer="quadratic",
    must=("evaluate", "syncer-kill"),
)
def _(patch: Patch) -> None:
    sound = Evaluations.resume

    def resume(self: Any, fragment: int, saved: Any) -> None:
        sound(self, fragment, {**saved, "tokens": 0})

    patch.setattr(Evaluations, "resume", resume)


@mutant("tokens-double-count", "merged tokens are counted twice", "tokens-once")
def _(patch: Patch) -> None:
    sound = reports.tokens._fragment

    def fragment(*given: Any) -> Any:
        row = sound(*given)
        return replace(row, merged=2 * row.merged, in_flight=row.in_flight - row.merged)

    patch.setattr(reports.tokens, "_fragment", fragment)


# --- checkpoints --------------------------------------------------------------------------------


@mutant("marker-ignored", "learners do not cut when they hear of the marker", "checkpoints")
def _(patch: Patch) -> None:
    patch.setattr(Checkpointing, "passed", lambda self, clock: 0)


@mutant("cut-late", "a learner cuts only some steps after the marker", "checkpoints")
def _(patch: Patch) -> None:
    sound = Checkpointing.passed

    def passed(self: Any, clock: dict[str, int]) -> int:
        return sound(self, {n: max(0, c - 6) if n == "syncer" else c for n, c in clock.items()})

    patch.setattr(Checkpointing, "passed", passed)
