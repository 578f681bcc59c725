"""The syncer's protocol: Algorithm 2 of the paper as a state machine without I/O.

    COLLECT ──quorum──> GRACE ──window over, or everybody in──┐
       ^  ^                                                   │
       │  └──────────── no fragment due: step t+1 ────────────┤
       │                                                      v
       ├──── fewer than K usable: same step ──────────────── PULL
       │                                                      │ all answered, or pull_ms_max
       └──── committed: step t+1 <──────── MERGE <────────────┘

Rules of this file:

* A learner is *fresh* in step t when it reported since the collection of step t-1 closed. With
  ``blocking`` a learner that is already at or past t counts too, because it may be waiting.
* Whatever was waited for from a learner has a deadline: the grace window, the pull, and the
  silence bound of its link. COLLECT has none of its own: it waits for learners, each of which
  is watched for silence. Jobs of our own worker always end in WorkDone or WorkFailed.
* A version is saved before it is sent, sent before it is journalled.
* The learner's life (incarnation) fences off contributions of earlier lives;
  ``merged_through`` fences off steps that were merged but whose broadcast the learner missed.
* Learners are walked in name order; nothing iterates over a set.

Its parts: sessions with learners (``sessions``), a pull (``pulling``), what is committed and
durable (``committed``, ``lastline``), a disk that gave back less than was saved (``mending``),
checkpoints (``snapshots``) and an earlier run's (``takeover``).

The drivers write UnitStarted and UnitReady; everything else a syncer has to say is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from harness.events import (
    Contribution,
    Evaluated,
    LinkDown,
    Merged,
    UnitEnded,
    UnitNote,
)
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Input,
    Received,
    Save,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.diloco import lastline
from targets.diloco.admission import quorum, refusal
from targets.diloco.committed import Committed
from targets.diloco.evaluation import LANE, Evaluate, Evaluations, Judged
from targets.diloco.fragments import schedule
from targets.diloco.grace import Pace, window
from targets.diloco.liveness import NEVER
from targets.diloco.mending import Mending, bereft
from targets.diloco.messages import (
    Fragment,
    Heartbeat,
    Hello,
    KeepPart,
    Merge,
    MergeResult,
    NeedState,
    PartSaved,
    Push,
    ReadAll,
    Recommit,
    Report,
    Restore,
    SealSnapshot,
    SnapshotsKept,
)
from targets.diloco.params import DilocoParams
from targets.diloco.pulling import Pulling
from targets.diloco.roster import UNKNOWN, Peer, Roster
from targets.diloco.sessions import Sessions
from targets.diloco.snapshots import Seam, Snapshots
from targets.diloco.takeover import Takeover
from targets.diloco.vector import VectorClock
from targets.node import Desk

NO_SPACE = "[Errno 28]"
"""What a worker's reason holds when the disk is full (ENOSPC)."""


class Phase(Enum):
    """Where the open step stands."""

    COLLECT = "collect"
    GRACE = "grace"
    PULL = "pull"
    MERGE = "merge"


class Syncer:
    """Node of the syncer. ``learners`` are the names it works with, ``layout`` the digest that
    every Hello must carry; ``elements`` (parameters per fragment) lets it refuse pushes of the
    wrong size before a worker sees them."""

    def __init__(
        self,
        name: str,
        params: DilocoParams,
        learners: Sequence[str],
        layout: str,
        elements: Sequence[int] = (),
        seam: Seam | None = None,
    ) -> None:
        self.name = name
        self.params = params
        self.traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Set by the driver: bytes (received, sent) by this life so far."""
        self.roster = Roster(learners, params)
        self.step = 1
        """The open global step t."""
        self.phase = Phase.COLLECT
        self.pace = Pace(params.ema_alpha, params.tau)
        self._schedule = schedule(params.fragments, params.sync_every)
        shares = elements or [1] * params.fragments
        self._evaluations = Evaluations(params.evaluate_every, shares)
        self._clock = clock = VectorClock()
        self._desk = desk = Desk(name)
        roster = self.roster
        self.committed = committed = Committed(params.fragments, roster, self._evaluations)
        self._sessions = Sessions(desk, params, roster, clock, committed, layout)
        self._mending = Mending(desk, params, roster, clock, committed, self._sessions, self)
        self._takeover = Takeover(desk, roster, committed, seam)
        self._snapshots = Snapshots(name, params.checkpoint_every, desk.note)
        self._links_due = NEVER
        self._stopped = False
        # The open step: when it opened, when this attempt did, when the grace window is over.
        self._opened = self._attempt = self._not_before = 0
        self._quorum_at = self._grace_until = self._grace_limit = 0
        self._closed = 0
        self._why = ""
        self._pull = Pulling(desk, params, roster, clock, committed, self._sessions, elements)
        self._job: Merge | None = None
        self._on_input: dict[type[Any], Callable[[Any], None]] = {
            Started: self._started,
            Connected: self._connected,
            Disconnected: self._disconnected,
            Received: self._received,
            WorkDone: self._work_done,
            WorkFailed: self._work_failed,
            Tick: self._tick,
            StopAsked: self._stop_asked,
        }
        self._on_message: dict[type[Any], Callable[[Peer, Any], None]] = {
            Report: self._report,
            Push: self._push,
            NeedState: lambda peer, need: self._sessions.need_state(peer),
            Fragment: self._mending.came,
            PartSaved: lambda peer, saved: desk.out.extend(self._snapshots.saved(peer.name, saved)),
        }

    # --- the Node interface ---------------------------------------------------------------------

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to one input; see ``targets.base.Node``."""
        out = self._desk.begin(now_ns)
        if not self._stopped:
            self._on_input[type(event)](event)
        return out

    def arriving(self, peer: str, now_ns: int) -> None:
        """A part of a message of ``peer`` came: it is alive, however long the rest takes."""
        known = self.roster.by_name.get(peer)
        if known is not None:
            known.link.heard_ns = now_ns

    def deadline_ns(self) -> int | None:
        """The earliest of: a link's next look, the grace window's end, the pull's end."""
        if self._stopped:
            return None
        due = self._links_due
        if self.phase is Phase.PULL:
            other = self._pull.until
        elif self.phase is Phase.GRACE:
            other = self._grace_until
        elif self.phase is Phase.COLLECT and self._not_before > self._desk.now:
            other = self._not_before
        else:
            other = NEVER
        if other < due:
            due = other
        if self._mending.due < due:
            due = self._mending.due
        return None if due >= NEVER else due

    def pending(self) -> str:
        """What the open step is waiting for, as a sentence."""
        if self.phase is Phase.PULL:
            names = ", ".join(self._pull.pending)
            return f"step {self.step} waits for fragment {self._pull.fragment} from {names}"
        if self.phase is Phase.MERGE:
            return f"step {self.step} waits for the merge of fragment {self._pull.fragment}"
        if rescue := self._mending.pending():
            return rescue
        training = self.roster.training()
        reached, why = quorum(self.roster.fresh(), training, self.params.quorum, self.step)
        return f"{why}; the grace window is open" if reached else why

    # --- life -----------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        self._desk.incarnation = event.incarnation
        self._pull.begin(event.incarnation)
        first, earlier = self._takeover.begin(event)
        for fragment in range(self.params.fragments):
            key = f"fragment/{fragment}"
            saved = event.saved.get(key)
            if saved is None and earlier is not None:
                saved = earlier["fragments"][fragment]
            if saved is not None:
                self.committed.resume(fragment, saved)
            if key in event.damaged:
                self._mending.damaged(fragment, event.damaged[key])
        lastline.repeat(self._desk, event.saved, self.params.fragments)
        # Steps are not counted anew where nothing is left: the earlier run's are over all the same.
        told = self._takeover.seam if bereft(event) else first
        step = max(*self.committed.steps, self._snapshots.restarted(event.saved, told)) + 1
        if self._mending.lost:
            # Nor the step of a merge that is not known any more; where learners wait for merges,
            # beyond every step of theirs, so that they learn that theirs is over.
            step += self.params.sync_every * (2 if self.params.blocking else 1)
        self._open(step)
        self._attempt = self._opened
        if first is not None:
            self._takeover.tell(first, self.step - 1)
        if self._mending.begin(event, self._takeover.seam):
            self._not_before = NEVER

    def hold(self, step: int) -> None:
        """Open ``step`` and close it only after :meth:`release`; see ``mending.Steps``."""
        self._open(step)
        self._not_before = NEVER

    def release(self) -> None:
        """Nothing stands in the way of the open step any more; see ``mending.Steps``."""
        self._not_before = self._desk.now
        self._advance()

    def _stop_asked(self, event: StopAsked) -> None:
        # What was committed is saved and a merge under way was promised to nobody.
        self._stopped = True
        self._desk.note(UnitEnded, why="asked to stop")
        self._desk.out.append(Stop("asked to stop"))

    def _tick(self, event: Tick) -> None:
        if self._desk.now >= self._links_due:
            self._look_at_links()
        if self.phase is Phase.PULL and self._desk.now >= self._pull.until:
            self._pull.late()
            self._settle()
        if self._desk.now >= self._mending.due:
            self._mending.tick()
        self._advance()

    # --- links ----------------------------------------------------------------------------------

    def _connected(self, event: Connected) -> None:
        peer = self.roster.by_name.get(event.peer)
        if peer is None:
            return  # its Hello gets the refusal, with the reason
        if peer.link.up:
            self._lose(peer, "replaced by a new connection")
        peer.link.opened(self._desk.now)
        peer.away = "no hello yet"
        self._links_due = min(self._links_due, peer.link.due_ns())
        self._advance()

    def _disconnected(self, event: Disconnected) -> None:
        peer = self.roster.by_name.get(event.peer)
        if peer is not None and peer.link.up:
            self._lose(peer, event.why)
            self._advance()

    def _lose(self, peer: Peer, why: str) -> None:
        """Everything that was hoped for from this connection is off."""
        if peer.greeted:
            self._desk.note(LinkDown, peer=peer.name, why=why)
        peer.end_session(f"no link: {why}")
        self._mending.gone(peer)
        self._desk.out += self._snapshots.lost(peer.name, f"no link: {why}")
        if self._pull.lost(peer, why) and not self._pull.pending:
            self._settle()

    def _look_at_links(self) -> None:
        for peer in self.roster.peers:
            verdict, why = peer.link.check(self._desk.now)
            if verdict == "silent":
                self._desk.out.append(Disconnect(peer.name, why))
                self._lose(peer, why)
            elif verdict == "speak":
                self._sessions.probe(peer)
        self._links_due = self.roster.due_ns()

    # --- messages -------------------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        message = event.message
        kind = type(message)
        peer = self.roster.by_name.get(event.sender)
        if peer is None:
            if kind is Hello:
                self._sessions.turn_away(event.sender, message, "fenced: not a learner of this run")
            return
        peer.link.heard_ns = self._desk.now
        self._clock.merge(message.clock)
        if self._snapshots.listening and peer.greeted:
            self._desk.out += self._snapshots.heard(peer.name, message)
        if kind is Heartbeat:
            self._sessions.heartbeat(peer, message)
        elif kind is Hello:
            self._hello(peer, message)
        elif peer.greeted:
            handler = self._on_message.get(kind)
            if handler is not None:
                handler(peer, message)
        elif kind is Push:
            self._pull.refuse(peer.name, message, f"fenced: no session with it ({peer.away})")

    def _hello(self, peer: Peer, hello: Hello) -> None:
        if not self._sessions.hello(peer, hello):
            return
        self._mending.heard(peer, hello)
        if peer.wanted:
            self._sessions.read_for(peer)
        for message in self._takeover.in_flight(peer):
            self._on_message[type(message)](peer, message)

    def _report(self, peer: Peer, report: Report) -> None:
        if report.incarnation != peer.incarnation or peer.awaiting:
            return
        if not peer.training:
            peer.training = True
            if UNKNOWN in peer.holds:
                # Its parameters are a donor's, which are no version that anything is a change of.
                peer.holds = [UNKNOWN] * self.params.fragments
        if report.step > peer.position:  # one sent again after a reconnect is no news
            peer.position = report.step
            self.pace.saw_step(report.step_ns)
            peer.fresh = True
            self._advance()
        elif self.params.blocking and report.step >= self.step and not peer.fresh:
            peer.fresh = True
            self._advance()

    # --- collecting -----------------------------------------------------------------------------

    def _open(self, step: int) -> None:
        self.step = step
        self._clock.advance(self.name, step - 1)  # t itself is told once it is closed
        self._opened = self._desk.now
        self._collect()

    def _collect(self) -> None:
        self.phase = Phase.COLLECT
        self._attempt = self._desk.now
        if self.params.blocking:
            for peer in self.roster.peers:
                if peer.training and peer.position >= self.step:
                    peer.fresh = True

    def _advance(self) -> None:
        """Move on from COLLECT and GRACE as far as the reports allow."""
        while self.phase is Phase.COLLECT or self.phase is Phase.GRACE:
            fresh = self.roster.fresh()
            if fresh < self.params.quorum or self._desk.now < self._not_before:
                self.phase = Phase.COLLECT  # also out of a window whose learners went away
                return
            if self.phase is Phase.COLLECT:
                self._quorum_reached()
            training = self.roster.training()
            if self._grace_limit == 0:
                how = self._why
            elif fresh >= training:
                how = "grace ended early: everybody reported"
            elif self._desk.now >= self._grace_until:
                how = f"{self._why}, used up"
            else:
                return
            self._why = f"{quorum(fresh, training, self.params.quorum, self.step)[1]}; {how}"
            self._close()

    def _quorum_reached(self) -> None:
        self._quorum_at = self._desk.now
        self.pace.saw_quorum(self._desk.now - self._attempt)
        if self.params.grace:
            self._grace_limit, self._why = window(self.pace, self.params.grace_gamma)
        else:
            self._grace_limit, self._why = 0, "grace is off"
        self._grace_until = self._desk.now + self._grace_limit
        self.phase = Phase.GRACE

    def _close(self) -> None:
        """The collection of step t is over: from here on reports count for step t+1."""
        fragment = self._schedule[self.step % self.params.sync_every]
        self._closed = self._desk.now
        if fragment is None:
            for peer in self.roster.peers:
                peer.fresh = False
            self._open(self.step + 1)
            self._cut()
            return
        self.phase = Phase.PULL
        self._pull.ask(self.step, fragment)

    # --- pulling and merging --------------------------------------------------------------------

    def _push(self, peer: Peer, push: Push) -> None:
        if self._pull.came(peer, push, self.phase is Phase.PULL) and not self._pull.pending:
            self._settle()
            self._advance()

    def _settle(self) -> None:
        """Nobody is left to wait for: merge what came, or collect anew when it is too little."""
        if len(self._pull.admitted) < self.params.quorum:
            able = self.params.learners - self._pull.empty
            if self.params.blocking and able < self.params.quorum:
                self._nothing_new()
            else:
                self._retry("too few fragments came")
            return
        p = self._pull.fragment
        self._job = Merge(self.step, p, self.committed.versions[p] + 1, self._pull.inputs())
        self.phase = Phase.MERGE
        self._desk.out.append(Work(self._job))

    def _nothing_new(self) -> None:
        """Too few have trained since they adopted the fragment, and the others will not: they wait
        for this merge. It happens after a rollback. The step is closed without one, which lets
        them go on, and what was trained is merged with the next.
        """
        pull = self._pull
        detail = f"step {self.step}: {pull.empty} learners adopted fragment {pull.fragment} last"
        self._desk.note(UnitNote, what="nothing-to-merge", detail=detail)
        self._open(self.step + 1)
        self._cut()
        for peer in self.roster.peers:  # none waits for another message before it may go on
            if peer.greeted and not peer.awaiting:
                self._sessions.probe(peer)

    def _retry(self, why: str) -> None:
        """Collect for the same step again.

        Only those whose fragment was good stay fresh: the others must report anew first, or
        a refused learner would be asked again at once, for ever. Where learners wait for the
        merge no new report will come, so there everybody is asked again after a pause.
        """
        detail = "; ".join(f"{name}: {said}" for name, said in sorted(self._pull.excluded.items()))
        self._desk.note(
            UnitNote, what="collect-again", detail=f"step {self.step}: {why} ({detail})"
        )
        for name in self._pull.admitted:
            peer = self.roster.by_name[name]
            peer.fresh = peer.fresh or peer.training
        self._job = None
        if self.params.blocking:
            self._not_before = self._desk.now + self.params.pull_ms_max * 1_000_000
        self._collect()

    def _work_done(self, event: WorkDone) -> None:
        if isinstance(event.job, Merge):
            if event.job is self._job:
                self._merged(event.job, event.result)
                self._advance()
        elif isinstance(event.job, ReadAll):
            self._sessions.send_wanted(self.roster.by_name[event.job.peer], event.result)
        elif isinstance(event.job, Restore):
            self._mending.restored(event.result)
        elif isinstance(event.job, Recommit):
            self._mending.recommitted(event.job, event.result)
        elif isinstance(event.job, Evaluate):
            self._judged(event.job, event.result)
        elif isinstance(event.job, KeepPart):
            self._desk.out += self._snapshots.kept(event.job, event.result, self._desk.now)
        elif isinstance(event.job, SealSnapshot):
            self._sealed(event.job, event.result)

    def _judged(self, job: Evaluate, result: Judged) -> None:
        self._evaluations.answered()
        self._desk.note(
            Evaluated,
            clock=job.clock,
            tokens=job.tokens,
            steps=job.steps,
            loss=result.loss,
            accuracy=result.accuracy,
            floor=result.floor,
            records=result.records,
        )

    def _work_failed(self, event: WorkFailed) -> None:
        if isinstance(event.job, Evaluate):
            self._evaluations.answered()
            self._desk.note(UnitNote, what="evaluation-failed", detail=event.why)
            return
        if isinstance(event.job, KeepPart | SealSnapshot):
            self._desk.out += self._snapshots.failed(event.job.marker, event.why)
            return
        if isinstance(event.job, Merge):
            self._desk.note(UnitNote, what="merge-failed", detail=event.why)
            for name in self._pull.admitted:
                self._pull.excluded[name] = f"the merge failed: {event.why}"
            self._pull.admitted = {}
            self._retry("the merge failed")
            self._advance()
            return
        if isinstance(event.job, Recommit) and NO_SPACE in event.why:
            self._mending.no_space(event.job, event.why)
            return
        if isinstance(event.job, Restore | Recommit):
            # Going on would broadcast other parameters under versions that learners hold.
            self._stopped = True
            why = f"the state that was saved cannot be restored: {event.why}"
            self._desk.note(UnitEnded, why=why)
            self._desk.out.append(Stop(why, code=1))
            return
        peer = self.roster.by_name[event.job.peer]
        peer.reading = 0
        self._desk.note(UnitNote, what="read-failed", detail=f"for {peer.name}: {event.why}")
        if peer.awaiting:  # it would wait in vain; a new connection tries again
            why = f"its state could not be read: {event.why}"
            self._desk.out.append(Disconnect(peer.name, why))
            self._lose(peer, why)
            self._advance()

    def _merged(self, job: Merge, result: MergeResult) -> None:
        for name, why in sorted(result.poisoned.items()):
            push, _ = self._pull.admitted.pop(name)
            reason = refusal(why)
            self._pull.excluded[name] = f"refused: {reason}"
            self._pull.refuse(name, push, reason)
            if reason.startswith("stale"):
                self._sessions.send_whole(self.roster.by_name[name], job.fragment)
        if result.payload is None:
            self._retry("too few fragments were sound")
            return
        p = job.fragment
        contributions = self._commit(job)
        self._clock.advance(self.name, job.clock)
        saved = self.committed.durable(p, result.digest)
        saved["line"] = lastline.line(
            self._desk,
            self.params.quorum,
            contributions,
            self._pull.excluded,
            self._why,
            result.rule,
        )
        self._desk.out.append(Save(f"fragment/{p}", saved))
        message = Fragment(p, job.version, job.clock, result.payload, self._clock.read())
        for peer in self.roster.peers:
            if peer.greeted and not peer.awaiting:
                self._sessions.broadcast(peer, message)
        sync_ns = self._desk.now - self._closed
        self.pace.saw_sync(sync_ns)
        received, sent = self.traffic()
        self._desk.note(
            Merged,
            clock=job.clock,
            fragment=p,
            version=job.version,
            quorum=self.params.quorum,
            contributions=contributions,
            excluded=self._pull.excluded,
            reason=self._why,
            quorum_ns=self._quorum_at - self._opened,
            grace_ns=self._closed - self._quorum_at,
            grace_limit_ns=self._grace_limit,
            sync_ns=sync_ns,
            digest=result.digest,
            finite=result.finite,
            rule=result.rule,
            bytes_in=received,
            bytes_out=sent,
        )
        steps = max((peer.position for peer in self.roster.peers), default=0)
        if (evaluation := self._evaluations.due(job.clock, steps)) is not None:
            self._desk.out.append(Work(evaluation, LANE))
        self._job = None
        self._open(job.clock + 1)
        self._cut()

    # --- checkpoints ----------------------------------------------------------------------------

    def _cut(self) -> None:
        """Step t was closed and t+1 is open: where t is a multiple of T_c, a snapshot begins."""
        closed = self.step - 1
        if not self._snapshots.due(closed):
            return
        peers = self.roster.peers
        state = self.committed.snapshot(closed, self._takeover.lives_before)
        members = {peer.name: peer.incarnation for peer in peers if peer.training}
        omitted = {peer.name: peer.away for peer in peers if not peer.training}
        self._desk.out += self._snapshots.begin(
            closed, self._desk.incarnation, state, members, omitted, self._desk.now
        )

    def _sealed(self, job: SealSnapshot, kept: tuple[int, ...]) -> None:
        self._snapshots.sealed(job, self._desk.now)
        told = SnapshotsKept(kept, job.marker, self._clock.read())
        for peer in self.roster.peers:
            if peer.greeted:
                self._sessions.send(peer, told)

    def _commit(self, job: Merge) -> tuple[Contribution, ...]:
        p = job.fragment
        self.committed.versions[p] = job.version
        self.committed.steps[p] = job.clock
        weights = {given.unit: given.weight for given in job.inputs}
        self._evaluations.merged(p, sum(push.c_tokens for push, _ in self._pull.admitted.values()))
        contributions = []
        for name, (push, pull_ns) in sorted(self._pull.admitted.items()):
            peer = self.roster.by_name[name]
            if push.incarnation == peer.incarnation:  # else a newer life said hello meanwhile
                peer.merged_through[p] = push.step
                peer.contributed[p] = job.version
            contributions.append(
                Contribution(
                    unit=name,
                    incarnation=push.incarnation,
                    since_step=push.since_step,
                    step=push.step,
                    c_steps=push.c_steps,
                    c_tokens=push.c_tokens,
                    weight=weights[name],
                    base_version=push.base_version,
                    base_clock=push.base_clock,
                    pull_ns=pull_ns,
                )
            )
        return tuple(contributions)
