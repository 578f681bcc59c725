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
* A version is saved before it is sent, sent before it is journalled. When the disk gives back
  less than was saved, the last good state is committed anew under a version that nobody has seen
  (``RolledBack``), and what builds on older ones is refused.
* The learner's life (incarnation) fences off contributions of earlier lives;
  ``merged_through`` fences off steps that were merged but whose broadcast the learner missed.
  A learner whose push is refused as duplicate or stale gets the committed fragment, so that it
  cannot be refused for ever; so does one that comes back without the outcome of its own part.
* Learners are walked in name order; nothing iterates over a set.

The drivers write UnitStarted and UnitReady; everything else a syncer has to say is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import convert, to_builtins

from harness.events import (
    Contribution,
    Evaluated,
    Heard,
    LastMerged,
    LinkDown,
    LinkUp,
    Merged,
    Resumed,
    RolledBack,
    UnitEnded,
    UnitNote,
    UpdateRefused,
)
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Input,
    Note,
    Received,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.diloco.admission import Expected, admit, quorum, refusal
from targets.diloco.evaluation import LANE, Evaluate, Evaluations, Judged
from targets.diloco.fragments import schedule
from targets.diloco.grace import Pace, window
from targets.diloco.liveness import NEVER
from targets.diloco.messages import (
    AllFragments,
    Fragment,
    Heartbeat,
    Hello,
    KeepPart,
    Merge,
    MergeInput,
    MergeResult,
    NeedState,
    PartSaved,
    Pull,
    Push,
    ReadAll,
    Recommit,
    Recommitted,
    Refused,
    Report,
    Restore,
    Restored,
    SealSnapshot,
    SnapshotsKept,
    Welcome,
)
from targets.diloco.params import DilocoParams
from targets.diloco.rescue import WHY, Found, Rescue
from targets.diloco.roster import UNKNOWN, Peer, Roster
from targets.diloco.snapshots import SEAM, Seam, Snapshots
from targets.diloco.vector import VectorClock
from targets.diloco.weighting import weight

NO_SPACE = "[Errno 28]"
"""What a worker's reason holds when the disk is full (ENOSPC)."""

NO_FRAGMENT = -1
"""The ``fragment`` of a refusal that concerns a learner as a whole."""


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
        self.layout = layout
        self.traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Set by the driver: bytes (received, sent) by this life so far."""
        self.roster = Roster(learners, params)
        self.step = 1
        """The open global step t."""
        self.phase = Phase.COLLECT
        self.versions = [0] * params.fragments
        self.committed = [0] * params.fragments
        """The step at which each version was committed."""
        self.floor = [0] * params.fragments
        """Per fragment, the version that a damaged disk made necessary; older bases are refused."""
        self._given_by: dict[int, str] = {}
        """Fragment to the learner that handed it over."""
        self._lost: dict[int, tuple[int, str]] = {}
        """Fragment to its next version, and why the disk's newest is not good."""
        self._rescue = Rescue(params)
        self._again: list[Recommit] = []
        """What there was no space for, and when to try once more."""
        self._again_due = NEVER
        self._bereft = False
        """What the worker holds is nothing that anybody should be given."""
        self._rescue_due = NEVER
        self.pace = Pace(params.ema_alpha, params.tau)
        self._elements = tuple(elements)
        self._schedule = schedule(params.fragments, params.sync_every)
        shares = elements or [1] * params.fragments
        self._evaluations = Evaluations(params.evaluate_every, shares)
        self._seam = seam
        self._lives_before: dict[str, int] = {}
        self._in_flight: dict[str, tuple[Report | Push, ...]] = {}
        """Recorded at an earlier run's cut, of learners that have not come back yet."""
        self._snapshots = Snapshots(name, params.checkpoint_every, self._note)
        self._clock = VectorClock()
        self._incarnation = 0
        self._now = 0
        self._out: list[Effect] = []
        self._links_due = NEVER
        self._stopped = False
        # The open step: when it opened, when this attempt did, when the grace window is over.
        self._opened = self._attempt = self._not_before = 0
        self._quorum_at = self._grace_until = self._grace_limit = 0
        self._closed = 0
        self._why = ""
        # The attempt's pull: who was asked and has not answered, whose push was admitted.
        self._request = 0
        self._fragment = 0
        self._pull_until = NEVER
        self._pending: dict[str, Peer] = {}
        self._admitted: dict[str, tuple[Push, int]] = {}
        self._answered: dict[str, Peer] = {}
        self._empty = 0
        self._excluded: dict[str, str] = {}
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
            NeedState: self._need_state,
            Fragment: self._rescued,
            PartSaved: lambda peer, saved: self._out.extend(
                self._snapshots.saved(peer.name, saved)
            ),
        }

    # --- the Node interface ---------------------------------------------------------------------

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """React to one input; see ``targets.base.Node``."""
        self._now = now_ns
        out: list[Effect] = []
        self._out = out
        if not self._stopped:
            self._on_input[type(event)](event)
        return out

    def deadline_ns(self) -> int | None:
        """The earliest of: a link's next look, the grace window's end, the pull's end."""
        if self._stopped:
            return None
        due = self._links_due
        if self.phase is Phase.PULL:
            other = self._pull_until
        elif self.phase is Phase.GRACE:
            other = self._grace_until
        elif self.phase is Phase.COLLECT and self._not_before > self._now:
            other = self._not_before
        else:
            other = NEVER
        if other < due:
            due = other
        if self._rescue_due < due:
            due = self._rescue_due
        if self._again_due < due:
            due = self._again_due
        return None if due >= NEVER else due

    def pending(self) -> str:
        """What the open step is waiting for, as a sentence."""
        if self.phase is Phase.PULL:
            names = ", ".join(self._pending)
            return f"step {self.step} waits for fragment {self._fragment} from {names}"
        if self.phase is Phase.MERGE:
            return f"step {self.step} waits for the merge of fragment {self._fragment}"
        if self._rescue.active:
            owed = ", ".join(sorted({found.donor for found in self._rescue.owed.values()}))
            return f"{WHY}: {f'{owed} must send it' if owed else 'learners must be heard first'}"
        training = self.roster.training()
        reached, why = quorum(self.roster.fresh(), training, self.params.quorum, self.step)
        return f"{why}; the grace window is open" if reached else why

    # --- life -----------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        self._incarnation = event.incarnation
        self._request = event.incarnation << 32  # never an id of an earlier life
        first = self._seam if event.incarnation == 1 else None
        earlier = _taken_over(first) if first is not None else event.saved.get(SEAM)
        if earlier is not None:
            self._lives_before = earlier["lives"]
        for fragment in range(self.params.fragments):
            key = f"fragment/{fragment}"
            saved = event.saved.get(key)
            if saved is None and earlier is not None:
                saved = earlier["fragments"][fragment]
            if saved is not None:
                self._resume(fragment, saved)
            if key in event.damaged:
                # The version after this one may have been sent to everybody: never again.
                self._lost[fragment] = (self.versions[fragment] + 2, event.damaged[key])
        self._repeat_last(event.saved)
        step = max(*self.committed, self._snapshots.restarted(event.saved, first)) + 1
        if self._lost:
            # Nor the step of a merge that is not known any more; where learners wait for merges,
            # beyond every step of theirs, so that they learn that theirs is over.
            step += self.params.sync_every * (2 if self.params.blocking else 1)
        self._open(step)
        self._attempt = self._opened
        if first is not None:
            self._resumed(first)
        if event.incarnation > 1 and not event.saved and not event.damaged:
            self._rescue.begin(self.versions, event.incarnation)
            self._bereft = True
        if any(self.versions) or self._lost or self._bereft:
            # First in the lane: the worker may have stored one merge that was never saved here.
            self._out.append(Work(Restore(tuple(self.versions))))
            self._not_before = NEVER

    def _resumed(self, seam: Seam) -> None:
        self._in_flight = dict(seam.in_flight)
        for name, position in seam.positions.items():
            if name in self.roster.by_name:
                self.roster.by_name[name].position = position
        self._out.append(Save(SEAM, _taken_over(seam)))
        self._note(
            Resumed,
            run=seam.run,
            marker=seam.marker,
            step=self.step - 1,
            digests=seam.digests,
            versions=tuple(self.versions),
            merged_through=seam.merged_through,
            in_flight={name: len(messages) for name, messages in seam.in_flight.items()},
        )

    def _restored(self, job: Restore, result: Restored | None) -> None:
        """The worker holds what was saved, or the version before where the disk was damaged."""
        # What learners were asked for meanwhile is committed when it is here, and not before.
        again = [] if self._bereft else list(self._lost)
        if result is not None:
            for fragment, why in result.damaged.items():
                if fragment not in self._lost:
                    self._lost[fragment] = (self.versions[fragment] + 1, why)
                    again.append(fragment)
        for fragment in again:
            self._out.append(Work(Recommit(fragment, self._lost[fragment][0])))
        self._open_for_business()

    def _open_for_business(self) -> None:
        if self._lost or self._rescue.active:
            return
        if self._bereft:
            self._bereft = False
            for peer in self.roster.peers:  # who came while there was nothing to give
                if peer.greeted and peer.wanted:
                    self._read_for(peer)
        self._not_before = self._now
        self._advance()

    # --- a disk that gave nothing back (targets.diloco.rescue) ----------------------------------

    def _look_for_state(self) -> None:
        """Somebody was heard, or did not answer in time."""
        if self._rescue.ready(self._now):
            found = self._rescue.decide(self._now)
            self._lost = {p: (f.version, _why_lost(f)) for p, f in found.items()}
            if found:
                # Beyond any step that somebody knows of, as after other losses.
                known = max(self._clock.of(self.name), *(p.position for p in self.roster.peers))
                self._open(known + 1 + self.params.sync_every)
                self._not_before = NEVER
            self._take_up(found)
            self._open_for_business()
        elif self._rescue.owed and self._now >= self._rescue.due_ns():
            self._take_up(self._rescue.anew(self._now))
        self._rescue_due = self._rescue.due_ns()

    def _take_up(self, found: Mapping[int, Found]) -> None:
        """Ask those who hold fragments; what nobody holds is the initial one."""
        for p, entry in found.items():
            if not entry.donor and p not in self._rescue.owed:
                self._lost[p] = (entry.version, _why_lost(entry))
                self._out.append(Work(Recommit(p, entry.version)))
        for name in sorted({entry.donor for entry in found.values() if entry.donor}):
            self._note(UnitNote, what="rescue", detail=f"{WHY}; {name} is asked for what it holds")
            self._send(self.roster.by_name[name], NeedState(WHY, self._clock.read()))
        self._rescue_due = self._rescue.due_ns()

    def _rescued(self, peer: Peer, fragment: Fragment) -> None:
        found = self._rescue.came(peer.name, fragment)
        self._rescue_due = self._rescue.due_ns()
        if found is not None:
            p = fragment.fragment
            self.versions[p] = found.held
            self._lost[p] = (found.version, _why_lost(found))
            self._given_by[p] = found.donor
            self._out.append(Work(Recommit(p, found.version, fragment.payload)))

    def _recommitted(self, job: Recommit, result: Recommitted) -> None:
        """The last good state is a version of its own, which everybody gets at once."""
        p = job.fragment
        _, why = self._lost.pop(p)
        before, self.versions[p] = self.versions[p], job.version
        self.committed[p] = self.step
        self.floor[p] = job.version
        self._clock.advance(self.name, self.step)
        self._out.append(Save(f"fragment/{p}", self._durable(p, result.digest)))
        message = Fragment(p, job.version, self.step, result.payload, self._clock.read())
        for peer in self.roster.peers:
            if peer.greeted and not peer.awaiting:
                peer.holds[p] = job.version
                self._send(peer, message)
        self._note(
            RolledBack,
            fragment=p,
            version=job.version,
            before=before,
            clock=self.step,
            digest=result.digest,
            why=why,
            donor=self._given_by.pop(p, ""),
        )
        self._open(self.step + 1)
        self._not_before = NEVER
        self._open_for_business()

    def _resume(self, fragment: int, saved: dict[str, Any]) -> None:
        self.versions[fragment] = saved["version"]
        self.committed[fragment] = saved["clock"]
        self.floor[fragment] = saved.get("floor", 0)
        self._evaluations.resume(fragment, saved)
        for name, (incarnation, through, version) in saved["merged"].items():
            peer = self.roster.by_name.get(name)
            if peer is None or incarnation < peer.incarnation:
                continue
            if incarnation > peer.incarnation:
                peer.begin_life(incarnation)
            peer.merged_through[fragment] = through
            peer.contributed[fragment] = version

    def _stop_asked(self, event: StopAsked) -> None:
        # What was committed is saved and a merge under way was promised to nobody.
        self._stopped = True
        self._note(UnitEnded, why="asked to stop")
        self._out.append(Stop("asked to stop"))

    def _tick(self, event: Tick) -> None:
        if self._now >= self._links_due:
            self._look_at_links()
        if self.phase is Phase.PULL and self._now >= self._pull_until:
            for name in self._pending:
                self._excluded[name] = f"late: no push within {self.params.pull_ms_max} ms"
            self._pending.clear()
            self._settle()
        if self._now >= self._rescue_due:
            self._look_for_state()
        if self._now >= self._again_due:
            self._again_due = NEVER
            self._out += [Work(job) for job in self._again]
            self._again.clear()
        self._advance()

    # --- links ----------------------------------------------------------------------------------

    def _connected(self, event: Connected) -> None:
        peer = self.roster.by_name.get(event.peer)
        if peer is None:
            return  # its Hello gets the refusal, with the reason
        if peer.link.up:
            self._lose(peer, "replaced by a new connection")
        peer.link.opened(self._now)
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
            self._note(LinkDown, peer=peer.name, why=why)
        peer.end_session(f"no link: {why}")
        if self._rescue.active and self._rescue.gone(peer.name):
            self._take_up(self._rescue.anew(self._now))
        self._out += self._snapshots.lost(peer.name, f"no link: {why}")
        if self._pending.pop(peer.name, None) is not None:
            self._excluded[peer.name] = f"link lost while its fragment was pulled: {why}"
            if not self._pending:
                self._settle()

    def _look_at_links(self) -> None:
        for peer in self.roster.peers:
            verdict, why = peer.link.check(self._now)
            if verdict == "silent":
                self._out.append(Disconnect(peer.name, why))
                self._lose(peer, why)
            elif verdict == "speak":
                nonce = peer.link.probe(self._now)
                self._send(peer, Heartbeat(nonce, False, self._clock.read()))
        self._links_due = self.roster.due_ns()

    def _send(self, peer: Peer, message: Any) -> None:
        peer.link.sent_ns = self._now
        self._out.append(Send(peer.name, message))

    def _note(self, kind: Callable[..., Any], **fields: Any) -> None:
        self._out.append(
            Note(kind(t_ns=self._now, unit=self.name, incarnation=self._incarnation, **fields))
        )

    # --- messages -------------------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        message = event.message
        kind = type(message)
        peer = self.roster.by_name.get(event.sender)
        if peer is None:
            if kind is Hello:
                self._turn_away(event.sender, message, "fenced: not a learner of this run")
            return
        peer.link.heard_ns = self._now
        self._clock.merge(message.clock)
        if self._snapshots.listening and peer.greeted:
            self._out += self._snapshots.heard(peer.name, message)
        if kind is Heartbeat:
            self._heartbeat(peer, message)
        elif kind is Hello:
            self._hello(peer, message)
        elif peer.greeted:
            handler = self._on_message.get(kind)
            if handler is not None:
                handler(peer, message)
        elif kind is Push:
            self._refuse(peer.name, message, f"fenced: no session with it ({peer.away})")

    def _heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        if not peer.link.up:
            return
        if not message.echo:
            self._send(peer, Heartbeat(message.nonce, True, self._clock.read()))
            return
        rtt = peer.link.echoed(message.nonce, self._now)
        if rtt is not None:
            self._note(Heard, peer=peer.name, rtt_ns=rtt)

    def _hello(self, peer: Peer, hello: Hello) -> None:
        if not peer.link.up:
            return
        if hello.layout != self.layout:
            why = f"layout: parameter layout {hello.layout}, this run has {self.layout}"
            self._turn_away(peer.name, hello, why)
            return
        if hello.versions is not None and len(hello.versions) != self.params.fragments:
            have, want = len(hello.versions), self.params.fragments
            self._turn_away(peer.name, hello, f"layout: {have} fragments, this run has {want}")
            return
        if hello.incarnation < peer.incarnation:
            why = f"fenced: life {hello.incarnation} is over, life {peer.incarnation} was here"
            self._turn_away(peer.name, hello, why)
            return
        if hello.incarnation > peer.incarnation:
            peer.begin_life(hello.incarnation)
        if not peer.greeted:
            self._note(LinkUp, peer=peer.name)
        peer.greeted = True
        peer.away = "joining"
        newcomer = hello.versions is None
        donors = self._donors(peer) if newcomer else ()
        if hello.versions is not None:
            peer.holds = list(hello.versions)
        peer.training = not newcomer
        peer.awaiting = newcomer and not donors
        peer.wanted = self._newest(donors) if newcomer else self._missed(peer, hello)
        self._send(
            peer,
            Welcome(
                incarnation=self._incarnation,
                versions=tuple(self.versions),
                send_state=peer.awaiting,
                donors=donors,
                clock=self._clock.read(),
            ),
        )
        if self._rescue.active:
            peer.position = max(peer.position, hello.step)
            if self._rescue.heard(peer.name, hello.versions, self._now):
                self._take_up(self._rescue.anew(self._now))
            self._look_for_state()
        if peer.wanted:
            self._read_for(peer)
        self._replay(peer)

    def _donors(self, newcomer: Peer) -> tuple[str, ...]:
        """Whom a newcomer may recover from. While the cluster is only beginning, the syncer's
        parameters are as good as anybody's and inner states are nothing yet."""
        if self.params.recovery == "syncer" or not all(self.versions):
            return ()
        return self.roster.donors(newcomer.name)

    def _newest(self, donors: Sequence[str]) -> set[int]:
        """What a newcomer is sent at once: everything, or for one that has donors the fragment
        committed last. Its stamp starts the recovery (paper E.3.2) without waiting for the next
        merge, which may be far off or even need the newcomer."""
        if not donors:
            return set(range(self.params.fragments))
        return {max(range(self.params.fragments), key=self.committed.__getitem__)}

    def _need_state(self, peer: Peer, need: NeedState) -> None:
        if not peer.training:
            peer.awaiting = True
            peer.wanted = set(range(self.params.fragments))
            self._read_for(peer)

    def _missed(self, peer: Peer, hello: Hello) -> set[int]:
        """Fragments that a returning learner cannot do without: the outcome of its own part was
        lost on the way, or it may be waiting for one."""
        assert hello.versions is not None
        ahead = [p for p, held in enumerate(hello.versions) if held > self.versions[p]]
        if ahead and not self._bereft:
            self._note(
                UnitNote,
                what="history-lost",
                detail=f"{peer.name} holds newer versions of fragments {ahead} than the syncer",
            )
        bar = self.versions if self.params.blocking else peer.contributed
        return {p for p, held in enumerate(hello.versions) if held < max(bar[p], self.floor[p])}

    def _turn_away(self, name: str, hello: Hello, why: str) -> None:
        self._out.append(Send(name, Refused(why, self._clock.read())))
        self._note(
            UpdateRefused,
            sender=name,
            sender_incarnation=hello.incarnation,
            fragment=NO_FRAGMENT,
            step=hello.step,
            why=why,
        )

    def _read_for(self, peer: Peer) -> None:
        if not peer.reading and not self._bereft:
            peer.reading += 1
            self._out.append(Work(ReadAll(peer.name)))

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
        self._opened = self._now
        self._collect()

    def _collect(self) -> None:
        self.phase = Phase.COLLECT
        self._attempt = self._now
        if self.params.blocking:
            for peer in self.roster.peers:
                if peer.training and peer.position >= self.step:
                    peer.fresh = True

    def _advance(self) -> None:
        """Move on from COLLECT and GRACE as far as the reports allow."""
        while self.phase is Phase.COLLECT or self.phase is Phase.GRACE:
            fresh = self.roster.fresh()
            if fresh < self.params.quorum or self._now < self._not_before:
                self.phase = Phase.COLLECT  # also out of a window whose learners went away
                return
            if self.phase is Phase.COLLECT:
                self._quorum_reached()
            training = self.roster.training()
            if self._grace_limit == 0:
                how = self._why
            elif fresh >= training:
                how = "grace ended early: everybody reported"
            elif self._now >= self._grace_until:
                how = f"{self._why}, used up"
            else:
                return
            self._why = f"{quorum(fresh, training, self.params.quorum, self.step)[1]}; {how}"
            self._close()

    def _quorum_reached(self) -> None:
        self._quorum_at = self._now
        self.pace.saw_quorum(self._now - self._attempt)
        if self.params.grace:
            self._grace_limit, self._why = window(self.pace, self.params.grace_gamma)
        else:
            self._grace_limit, self._why = 0, "grace is off"
        self._grace_until = self._now + self._grace_limit
        self.phase = Phase.GRACE

    def _close(self) -> None:
        """The collection of step t is over: from here on reports count for step t+1."""
        fragment = self._schedule[self.step % self.params.sync_every]
        self._closed = self._now
        if fragment is None:
            for peer in self.roster.peers:
                peer.fresh = False
            self._open(self.step + 1)
            self._cut()
            return
        self._fragment = fragment
        self._request += 1
        self._pull_until = self._now + self.params.pull_ms_max * 1_000_000
        self._admitted = {}
        self._answered = {}
        self._empty = 0
        self._excluded = {}
        self._pending = {}
        self.phase = Phase.PULL
        pull = Pull(self._request, fragment, self._clock.read())
        for peer in self.roster.peers:
            if peer.fresh:
                peer.fresh = False
                self._pending[peer.name] = peer
                self._send(peer, pull)
            elif peer.training:
                self._excluded[peer.name] = f"no report since step {self.step} opened"
            else:
                self._excluded[peer.name] = peer.away

    # --- pulling and merging --------------------------------------------------------------------

    def _push(self, peer: Peer, push: Push) -> None:
        p = push.fragment
        if push.request == self._request and peer.name in self._answered:
            self._refuse(peer.name, push, f"duplicate: request {push.request} was answered before")
            return
        if self.phase is not Phase.PULL or push.request != self._request:
            why = f"late: answers request {push.request}, which is closed"
            if push.incarnation != peer.incarnation:
                why = f"fenced: from life {push.incarnation}, the learner lives {peer.incarnation}"
            self._refuse(peer.name, push, why)
            return
        if self._pending.pop(peer.name, None) is None:
            self._refuse(peer.name, push, f"late: it was not asked in request {push.request}")
            return
        self._answered[peer.name] = peer
        if push.incarnation == peer.incarnation and push.c_steps == 0:
            self._excluded[peer.name] = f"no step since it adopted fragment {p}"
            self._empty += 1
        else:
            self._judge(peer, push)
        if not self._pending:
            self._settle()
            self._advance()

    def _judge(self, peer: Peer, push: Push) -> None:
        p = self._fragment
        admitted, why = admit(
            push,
            Expected(
                incarnation=peer.incarnation,
                request=self._request,
                fragment=p,
                step=self.step,
                version=self.versions[p],
                committed=self.committed[p],
                merged_through=peer.merged_through[p],
                stale_limit=self.params.stale_limit,
                elements=self._elements[p] if self._elements else None,
                floor=self.floor[p],
            ),
        )
        if admitted:
            self._admitted[peer.name] = (push, self._now - self._closed)
            return
        self._excluded[peer.name] = f"refused: {why}"
        self._refuse(peer.name, push, why)
        if why.startswith(("stale", "duplicate")):
            peer.wanted.add(p)
            self._read_for(peer)

    def _refuse(self, sender: str, push: Push, why: str) -> None:
        self._note(
            UpdateRefused,
            sender=sender,
            sender_incarnation=push.incarnation,
            fragment=push.fragment,
            step=push.step,
            why=why,
        )

    def _settle(self) -> None:
        """Nobody is left to wait for: merge what came, or collect anew when it is too little."""
        if len(self._admitted) < self.params.quorum:
            able = self.params.learners - self._empty
            if self.params.blocking and able < self.params.quorum:
                self._nothing_new()
            else:
                self._retry("too few fragments came")
            return
        inputs = tuple(
            MergeInput(name, weight(push.c_tokens, push.c_steps), push.payload, push.base_version)
            for name, (push, _) in sorted(self._admitted.items())
        )
        p = self._fragment
        self._job = Merge(self.step, p, self.versions[p] + 1, inputs)
        self.phase = Phase.MERGE
        self._out.append(Work(self._job))

    def _nothing_new(self) -> None:
        """Too few have trained since they adopted the fragment, and the others will not: they wait
        for this merge. It happens after a rollback. The step is closed without one, which lets
        them go on, and what was trained is merged with the next.
        """
        detail = f"step {self.step}: {self._empty} learners adopted fragment {self._fragment} last"
        self._note(UnitNote, what="nothing-to-merge", detail=detail)
        self._open(self.step + 1)
        self._cut()
        for peer in self.roster.peers:  # none waits for another message before it may go on
            if peer.greeted and not peer.awaiting:
                self._send(peer, Heartbeat(peer.link.probe(self._now), False, self._clock.read()))

    def _retry(self, why: str) -> None:
        """Collect for the same step again.

        Only those whose fragment was good stay fresh: the others must report anew first, or
        a refused learner would be asked again at once, for ever. Where learners wait for the
        merge no new report will come, so there everybody is asked again after a pause.
        """
        detail = "; ".join(f"{name}: {said}" for name, said in sorted(self._excluded.items()))
        self._note(UnitNote, what="collect-again", detail=f"step {self.step}: {why} ({detail})")
        for name in self._admitted:
            peer = self.roster.by_name[name]
            peer.fresh = peer.fresh or peer.training
        self._job = None
        if self.params.blocking:
            self._not_before = self._now + self.params.pull_ms_max * 1_000_000
        self._collect()

    def _work_done(self, event: WorkDone) -> None:
        if isinstance(event.job, Merge):
            if event.job is self._job:
                self._merged(event.job, event.result)
                self._advance()
        elif isinstance(event.job, ReadAll):
            self._send_state(event.job, event.result)
        elif isinstance(event.job, Restore):
            self._restored(event.job, event.result)
        elif isinstance(event.job, Recommit):
            self._recommitted(event.job, event.result)
        elif isinstance(event.job, Evaluate):
            self._judged(event.job, event.result)
        elif isinstance(event.job, KeepPart):
            self._out += self._snapshots.kept(event.job, event.result, self._now)
        elif isinstance(event.job, SealSnapshot):
            self._sealed(event.job, event.result)

    def _judged(self, job: Evaluate, result: Judged) -> None:
        self._evaluations.answered()
        self._note(
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
            self._note(UnitNote, what="evaluation-failed", detail=event.why)
            return
        if isinstance(event.job, KeepPart | SealSnapshot):
            self._out += self._snapshots.failed(event.job.marker, event.why)
            return
        if isinstance(event.job, Merge):
            self._note(UnitNote, what="merge-failed", detail=event.why)
            for name in self._admitted:
                self._excluded[name] = f"the merge failed: {event.why}"
            self._admitted = {}
            self._retry("the merge failed")
            self._advance()
            return
        if isinstance(event.job, Recommit) and NO_SPACE in event.why:
            # Nothing was broadcast, so nothing is lost by waiting until there is space.
            self._note(UnitNote, what="disk-full", detail=event.why)
            self._again.append(event.job)
            self._again_due = self._now + self.params.pull_ms_max * 1_000_000
            return
        if isinstance(event.job, Restore | Recommit):
            # Going on would broadcast other parameters under versions that learners hold.
            self._stopped = True
            why = f"the state that was saved cannot be restored: {event.why}"
            self._note(UnitEnded, why=why)
            self._out.append(Stop(why, code=1))
            return
        peer = self.roster.by_name[event.job.peer]
        peer.reading = 0
        self._note(UnitNote, what="read-failed", detail=f"for {peer.name}: {event.why}")
        if peer.awaiting:  # it would wait in vain; a new connection tries again
            why = f"its state could not be read: {event.why}"
            self._out.append(Disconnect(peer.name, why))
            self._lose(peer, why)
            self._advance()

    def _merged(self, job: Merge, result: MergeResult) -> None:
        for name, why in sorted(result.poisoned.items()):
            push, _ = self._admitted.pop(name)
            reason = refusal(why)
            self._excluded[name] = f"refused: {reason}"
            self._refuse(name, push, reason)
            if reason.startswith("stale"):
                self._send_whole(self.roster.by_name[name], job.fragment)
        if result.payload is None:
            self._retry("too few fragments were sound")
            return
        p = job.fragment
        contributions = self._commit(job)
        self._clock.advance(self.name, job.clock)
        saved = self._durable(p, result.digest)
        saved["line"] = self._line(contributions, result)
        self._out.append(Save(f"fragment/{p}", saved))
        message = Fragment(p, job.version, job.clock, result.payload, self._clock.read())
        for peer in self.roster.peers:
            if peer.greeted and not peer.awaiting:
                self._broadcast(peer, message)
        sync_ns = self._now - self._closed
        self.pace.saw_sync(sync_ns)
        received, sent = self.traffic()
        self._note(
            Merged,
            clock=job.clock,
            fragment=p,
            version=job.version,
            quorum=self.params.quorum,
            contributions=contributions,
            excluded=self._excluded,
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
            self._out.append(Work(evaluation, LANE))
        self._job = None
        self._open(job.clock + 1)
        self._cut()

    # --- checkpoints ----------------------------------------------------------------------------

    def _cut(self) -> None:
        """Step t was closed and t+1 is open: where t is a multiple of T_c, a snapshot begins."""
        closed = self.step - 1
        if not self._snapshots.due(closed):
            return
        before, peers = self._lives_before, self.roster.peers
        state = {
            "step": closed,
            "versions": list(self.versions),
            "committed": list(self.committed),
            "fragments": [self._durable(p, "") for p in range(self.params.fragments)],
            "merged": {
                peer.name: {
                    "incarnation": peer.incarnation,
                    "through": list(peer.merged_through),
                    "contributed": list(peer.contributed),
                    "position": peer.position,
                }
                for peer in peers
            },
            "lives": {peer.name: before.get(peer.name, 0) + peer.incarnation for peer in peers},
        }
        members = {peer.name: peer.incarnation for peer in peers if peer.training}
        omitted = {peer.name: peer.away for peer in peers if not peer.training}
        self._out += self._snapshots.begin(
            closed, self._incarnation, state, members, omitted, self._now
        )

    def _sealed(self, job: SealSnapshot, kept: tuple[int, ...]) -> None:
        self._snapshots.sealed(job, self._now)
        told = SnapshotsKept(kept, job.marker, self._clock.read())
        for peer in self.roster.peers:
            if peer.greeted:
                self._send(peer, told)

    def _replay(self, peer: Peer) -> None:
        """Its messages that were on their way at the cut come now, before any new one."""
        if peer.incarnation == 1:
            for message in self._in_flight.pop(peer.name, ()):
                self._on_message[type(message)](peer, message)

    def _broadcast(self, peer: Peer, message: Fragment) -> None:
        """Send a merged fragment; whole to a learner that lacks the version it is a change of, and
        to one that is only recovering, which keeps nothing but the newest of each fragment."""
        p = message.fragment
        known = peer.training and peer.holds[p] == message.version - 1
        if message.payload.relative and not known:
            self._send_whole(peer, p)
            return
        peer.holds[p] = message.version
        self._send(peer, message)

    def _send_whole(self, peer: Peer, fragment: int) -> None:
        if peer.greeted:
            peer.wanted.add(fragment)
            self._read_for(peer)

    def _commit(self, job: Merge) -> tuple[Contribution, ...]:
        p = job.fragment
        self.versions[p] = job.version
        self.committed[p] = job.clock
        weights = {given.unit: given.weight for given in job.inputs}
        self._evaluations.merged(p, sum(push.c_tokens for push, _ in self._admitted.values()))
        contributions = []
        for name, (push, pull_ns) in sorted(self._admitted.items()):
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

    def _durable(self, fragment: int, digest: str) -> dict[str, Any]:
        """What a later life needs to go on with this fragment; ``digest`` names the arrays,
        which the worker keeps under the same version."""
        return {
            "clock": self.committed[fragment],
            "version": self.versions[fragment],
            "digest": digest,
            "floor": self.floor[fragment],
            "tokens": self._evaluations.saved(fragment),
            "merged": {
                peer.name: [
                    peer.incarnation,
                    peer.merged_through[fragment],
                    peer.contributed[fragment],
                ]
                for peer in self.roster.peers
            },
        }

    def _line(self, contributions: Sequence[Contribution], result: MergeResult) -> dict[str, Any]:
        """What a later life needs to repeat the journal's line of this merge."""
        return {
            "at": self._now,
            "life": self._incarnation,
            "quorum": self.params.quorum,
            "contributions": to_builtins(contributions),
            "excluded": self._excluded,
            "reason": self._why,
            "rule": result.rule,
        }

    def _repeat_last(self, saved: Mapping[str, Any]) -> None:
        """The line of the last life's last merge may have died with it, after the merge was sent.

        Only of that one: each merge is told before the next one begins.
        """
        found = [
            (saved[key]["clock"], p)
            for p in range(self.params.fragments)
            if "line" in saved.get(key := f"fragment/{p}", ())
        ]
        if not found:
            return
        clock, p = max(found)
        value = saved[f"fragment/{p}"]
        line = value["line"]
        if line["life"] >= self._incarnation:
            return  # of another run, whose state this one took over
        self._note(
            LastMerged,
            life=line["life"],
            ago_ns=self._now - line["at"],
            clock=clock,
            fragment=p,
            version=value["version"],
            quorum=line["quorum"],
            contributions=convert(line["contributions"], tuple[Contribution, ...]),
            excluded=line["excluded"],
            reason=line["reason"],
            digest=value["digest"],
            rule=line["rule"],
        )

    def _send_state(self, job: ReadAll, result: AllFragments) -> None:
        peer = self.roster.by_name[job.peer]
        peer.reading = 0
        if not peer.greeted:
            return
        clock = self._clock.read()
        for p in sorted(peer.wanted):
            payload = result.payloads[p]
            peer.holds[p] = self.versions[p]
            self._send(peer, Fragment(p, self.versions[p], self.committed[p], payload, clock))
        peer.wanted.clear()
        peer.awaiting = False


def _why_lost(found: Found) -> str:
    if not found.donor:
        return f"{WHY}, and no learner that was heard holds more than the first parameters"
    return f"{WHY}; {found.donor} holds version {found.held}"


def _taken_over(seam: Seam) -> dict[str, Any]:
    """What later lives need of an earlier run's checkpoint, until they have their own of it."""
    return {"fragments": list(seam.fragments), "lives": seam.lives}
