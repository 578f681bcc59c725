"""How the syncer gets back what its disk did not keep, before it opens for business.

    damaged fragment ──the version before──────────┐
    nothing saved ──Rescue: a learner's fragment───┴─> Recommit: a version nobody has seen
     (or not all of a rescue was)
                                                           └─> RolledBack, sent to everybody

A version is saved before it is sent. When the disk gives back less than was saved, the last good
state is committed anew, and what builds on older versions is refused from then on
(``Committed.floor``). Until all of that is done no step may close: :class:`Steps` is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.events import RolledBack, UnitNote
from targets.base import Save, Started, Work
from targets.diloco.committed import Committed
from targets.diloco.liveness import NEVER
from targets.diloco.messages import (
    Fragment,
    Hello,
    NeedState,
    Recommit,
    Recommitted,
    Restore,
    Restored,
)
from targets.diloco.params import DilocoParams
from targets.diloco.rescue import WHY, Found, Rescue
from targets.diloco.roster import Peer, Roster
from targets.diloco.sessions import Sessions
from targets.diloco.snapshots import Seam
from targets.diloco.vector import VectorClock
from targets.node import Desk

RESCUE = "rescue"
"""Under which it is durable whether a rescue is under way: a life that dies in the middle of one
has saved some fragments anew, and must not be taken for one that had nothing else."""


def bereft(event: Started) -> bool:
    """Whether the disk gave nothing back although an earlier life was here, to this life or to one
    that did not get to the end of its rescue."""
    if RESCUE in event.damaged or event.saved.get(RESCUE, {}).get("open"):
        return True
    return event.incarnation > 1 and not event.saved and not event.damaged


class Steps(Protocol):
    """The global steps, as far as mending concerns them."""

    step: int

    def hold(self, step: int) -> None:
        """Open ``step`` and do not close it before :meth:`release`."""

    def release(self) -> None:
        """Go on with the open step."""


class Mending:
    """Everything between a start that found less than was saved and the first new step."""

    def __init__(
        self,
        desk: Desk,
        params: DilocoParams,
        roster: Roster,
        clock: VectorClock,
        committed: Committed,
        sessions: Sessions,
        steps: Steps,
    ) -> None:
        self._desk = desk
        self._params = params
        self._roster = roster
        self._clock = clock
        self._committed = committed
        self._sessions = sessions
        self._steps = steps
        self.lost: dict[int, tuple[int, str]] = {}
        """Fragment to its next version, and why the disk's newest is not good."""
        self.due = NEVER
        """When :meth:`tick` has something to do: a rescue's look, or another try."""
        self._given_by: dict[int, str] = {}
        """Fragment to the learner that handed it over."""
        self._rescue = Rescue(params)
        self._rescue_due = NEVER
        self._again: list[Recommit] = []
        """What there was no space for, and when to try once more."""
        self._again_due = NEVER

    def damaged(self, fragment: int, why: str) -> None:
        """The version after the one found may have been sent to everybody: never again."""
        self.lost[fragment] = (self._committed.versions[fragment] + 2, why)

    def begin(self, event: Started, seam: Seam | None) -> bool:
        """What was saved is taken over; whether steps have to wait for the worker's part of it.
        ``seam`` is what the run went on from, if it did."""
        committed = self._committed
        if bereft(event):
            beyond = [f["version"] for f in seam.fragments] if seam is not None else None
            self._rescue.begin(committed.versions, event.incarnation, beyond)
            committed.bereft = True
            self._desk.out.append(Save(RESCUE, {"open": True}))
        if not (any(committed.versions) or self.lost or committed.bereft):
            return False
        # First in the lane: the worker may have stored one merge that was never saved here.
        self._desk.out.append(Work(Restore(tuple(committed.versions))))
        return True

    def pending(self) -> str:
        """What a rescue waits for, as a sentence; empty when there is none."""
        if not self._rescue.active:
            return ""
        owed = ", ".join(sorted({found.donor for found in self._rescue.owed.values()}))
        return f"{WHY}: {f'{owed} must send it' if owed else 'learners must be heard first'}"

    # --- a disk that gave something back --------------------------------------------------------

    def restored(self, result: Restored | None) -> None:
        """The worker holds what was saved, or the version before where the disk was damaged."""
        # What learners were asked for meanwhile is committed when it is here, and not before.
        again = [] if self._committed.bereft else list(self.lost)
        if result is not None:
            for fragment, why in result.damaged.items():
                if fragment not in self.lost:
                    self.lost[fragment] = (self._committed.versions[fragment] + 1, why)
                    again.append(fragment)
        for fragment in again:
            self._desk.out.append(Work(Recommit(fragment, self.lost[fragment][0])))
        self._open_for_business()

    def recommitted(self, job: Recommit, result: Recommitted) -> None:
        """The last good state is a version of its own, which everybody gets at once."""
        p, step, committed = job.fragment, self._steps.step, self._committed
        _, why = self.lost.pop(p)
        before, committed.versions[p] = committed.versions[p], job.version
        committed.steps[p] = step
        committed.floor[p] = job.version
        self._clock.advance(self._desk.name, step)
        self._desk.out.append(Save(f"fragment/{p}", committed.durable(p, result.digest)))
        message = Fragment(p, job.version, step, result.payload, self._clock.read())
        for peer in self._roster.peers:
            if peer.greeted and not peer.awaiting:
                peer.holds[p] = job.version
                self._sessions.send(peer, message)
        self._desk.note(
            RolledBack,
            fragment=p,
            version=job.version,
            before=before,
            clock=step,
            digest=result.digest,
            why=why,
            donor=self._given_by.pop(p, ""),
            emptied=committed.bereft,
        )
        self._steps.hold(step + 1)
        self._open_for_business()

    def no_space(self, job: Recommit, why: str) -> None:
        """Nothing was broadcast, so nothing is lost by waiting until there is space."""
        self._desk.note(UnitNote, what="disk-full", detail=why)
        self._again.append(job)
        self._again_due = self._desk.now + self._params.pull_ms_max * 1_000_000
        self._look_at_clock()

    def _open_for_business(self) -> None:
        if self.lost or self._rescue.active:
            return
        if self._committed.bereft:
            self._committed.bereft = False
            self._desk.out.append(Save(RESCUE, {"open": False}))
            for peer in self._roster.peers:  # who came while there was nothing to give
                if peer.greeted and peer.wanted:
                    self._sessions.read_for(peer)
        self._steps.release()

    def _look_at_clock(self) -> None:
        self.due = min(self._rescue_due, self._again_due)

    def tick(self) -> None:
        """Call once :attr:`due` has passed."""
        if self._desk.now >= self._rescue_due:
            self._look_for_state()
        if self._desk.now >= self._again_due:
            self._again_due = NEVER
            self._desk.out += [Work(job) for job in self._again]
            self._again.clear()
        self._look_at_clock()

    # --- a disk that gave nothing back (targets.diloco.rescue) ----------------------------------

    def heard(self, peer: Peer, hello: Hello) -> None:
        """A learner was let in: it may hold what is missing."""
        if self._rescue.active:
            peer.position = max(peer.position, hello.step)
            if self._rescue.heard(peer.name, hello.versions, self._desk.now):
                self._take_up(self._rescue.anew(self._desk.now))
            self._look_for_state()

    def gone(self, peer: Peer) -> None:
        """A learner's link is lost; it may have owed us something."""
        if self._rescue.active and self._rescue.gone(peer.name):
            self._take_up(self._rescue.anew(self._desk.now))

    def came(self, peer: Peer, fragment: Fragment) -> None:
        """A learner handed a fragment over."""
        found = self._rescue.came(peer.name, fragment)
        self._watch_rescue()
        if found is not None:
            p = fragment.fragment
            self._committed.versions[p] = found.held
            self.lost[p] = (found.version, _why_lost(found))
            self._given_by[p] = found.donor
            self._desk.out.append(Work(Recommit(p, found.version, fragment.payload)))

    def _look_for_state(self) -> None:
        """Somebody was heard, or did not answer in time."""
        now = self._desk.now
        if self._rescue.ready(now):
            found = self._rescue.decide(now)
            self.lost = {p: (f.version, _why_lost(f)) for p, f in found.items()}
            if found:
                # Beyond any step that somebody knows of, as after other losses.
                told = self._clock.of(self._desk.name)
                known = max(told, *(p.position for p in self._roster.peers))
                self._steps.hold(known + 1 + self._params.sync_every)
            self._take_up(found)
            self._open_for_business()
        elif self._rescue.owed and now >= self._rescue.due_ns():
            self._take_up(self._rescue.anew(now))
        self._watch_rescue()

    def _take_up(self, found: Mapping[int, Found]) -> None:
        """Ask those who hold fragments; what nobody holds is the initial one."""
        for p, entry in found.items():
            if not entry.donor and p not in self._rescue.owed:
                self.lost[p] = (entry.version, _why_lost(entry))
                self._desk.out.append(Work(Recommit(p, entry.version)))
        for name in sorted({entry.donor for entry in found.values() if entry.donor}):
            detail = f"{WHY}; {name} is asked for what it holds"
            self._desk.note(UnitNote, what="rescue", detail=detail)
            need = NeedState(WHY, self._clock.read())
            self._sessions.send(self._roster.by_name[name], need)
        self._watch_rescue()

    def _watch_rescue(self) -> None:
        self._rescue_due = self._rescue.due_ns()
        self._look_at_clock()


def _why_lost(found: Found) -> str:
    if not found.donor:
        return f"{WHY}, and no learner that was heard holds more than the first parameters"
    return f"{WHY}; {found.donor} holds version {found.held}"
