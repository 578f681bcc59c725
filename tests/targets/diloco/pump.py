"""A syncer and its learners in memory: one heap, virtual time, workers that only count.

Not the simulator: a hundred lines that a protocol test can be debugged with. Messages travel in
order with a fixed latency; the test cuts, silences, freezes and kills between two ``run`` calls.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from harness import events as ev
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
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
from targets.diloco import messages as m
from targets.diloco.learner import Learner
from targets.diloco.params import DilocoParams
from targets.diloco.syncer import Syncer

MS = 1_000_000


def tokens_of(step: int) -> int:
    """Tokens of a local step; uneven, so that a sum over the wrong steps shows."""
    return 100 + step % 7


def params_of(**changes: Any) -> DilocoParams:
    settings: dict[str, Any] = {
        "learners": 4,
        "fragments": 4,
        "sync_every": 4,
        "trainer": "scripted",
    }
    params = DilocoParams(**{**settings, **changes})
    assert params.problems() == []
    return params


class Unit:
    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Any = None
        self.incarnation = 0
        self.alive = False
        self.frozen = False
        self.backlog: list[Any] = []
        self.saved: dict[str, Any] = {}
        self.lane_free: dict[str, int] = {}
        self.tick_at: int | None = None
        self.stopped: Stop | None = None


class Wire:
    """A learner's link. ``session`` is None while the learner's end is down."""

    def __init__(self) -> None:
        self.session: int | None = None
        self.syncer_knows = False
        self.silent_up = False
        self.silent_down = False
        self.refused = False


class Pump:
    def __init__(
        self,
        params: DilocoParams,
        *,
        step_ms: dict[str, int] | int = 100,
        latency_ms: float = 1,
        merge_ms: int = 3,
        layout: str = "L",
    ) -> None:
        self.params = params
        self.layout = layout
        self.now = 0
        self.notes: list[Any] = []
        self.learners = [params.learner_name(i) for i in range(params.learners)]
        self.units = {name: Unit(name) for name in ["syncer", *self.learners]}
        self.wires = {name: Wire() for name in self.learners}
        self.step_ms = {
            n: step_ms if isinstance(step_ms, int) else step_ms.get(n, 100) for n in self.learners
        }
        self.latency = int(latency_ms * MS)
        self.merge_ms = merge_ms
        self.poison: dict[str, str] = {}
        """Learner to the reason with which the syncer's worker drops its inputs."""
        self.tamper: Callable[[str, Any], list[Any]] = lambda sender, message: [message]
        """(sender, message) to what is sent in its place."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._sessions = 0

    # --- what tests do --------------------------------------------------------------------------

    def start(self, *names: str) -> Pump:
        for name in names or self.units:
            self.spawn(name)
        return self

    def run(self, ms: float) -> Pump:
        """Let ``ms`` milliseconds of virtual time pass."""
        end = self.now + int(ms * MS)
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end
        return self

    def run_until(self, what: Callable[[], bool], within_ms: float, why: str) -> Pump:
        end = self.now + within_ms * MS
        while not what():
            late = not self._heap or self._heap[0][0] > end
            assert not late, f"{why}: not within {within_ms} ms; {self.syncer.pending()}"
            self.now, _, action = heapq.heappop(self._heap)
            action()
        return self

    def spawn(self, name: str) -> None:
        unit = self.units[name]
        assert not unit.alive
        fresh = Unit(name)
        fresh.incarnation = unit.incarnation + 1
        fresh.saved = unit.saved
        fresh.alive = True
        if name == "syncer":
            fresh.node = Syncer(name, self.params, self.learners, self.layout)
        else:
            fresh.node = Learner(name, self.params, layout=self.layout)
        self.units[name] = fresh
        self._feed(fresh, Started(fresh.incarnation, dict(fresh.saved)))
        if name != "syncer":
            self._at(0, lambda: self._dial(fresh))

    def kill(self, name: str) -> None:
        self.units[name].alive = False
        for learner in self.learners if name == "syncer" else [name]:
            self._drop(learner, "connection reset")

    def freeze(self, name: str) -> None:
        self.units[name].frozen = True

    def thaw(self, name: str) -> None:
        unit = self.units[name]
        unit.frozen = False
        backlog, unit.backlog = unit.backlog, []
        for event in backlog:
            self._feed(unit, event)

    def cut(self, name: str) -> None:
        """End the connection; the learner dials again."""
        self._drop(name, "connection reset")

    def silence(self, name: str, *, up: bool = True, down: bool = True) -> None:
        self.wires[name].silent_up, self.wires[name].silent_down = up, down

    def heal(self, name: str) -> None:
        """Lift silence; as with Toxiproxy, that closes what was open."""
        self.silence(name, up=False, down=False)
        self.wires[name].refused = False
        self._drop(name, "connection closed by healing")

    def stop(self, name: str, grace_ms: int = 1000) -> None:
        self._feed(self.units[name], StopAsked(grace_ms * MS))

    @property
    def syncer(self) -> Syncer:
        node = self.units["syncer"].node
        assert isinstance(node, Syncer)
        return node

    def learner(self, index: int) -> Learner:
        node = self.units[self.learners[index]].node
        assert isinstance(node, Learner)
        return node

    def of(self, kind: type[Any], since_ns: int = 0, **fields: Any) -> list[Any]:
        """Notes of one kind whose fields have the given values."""
        return [
            note
            for note in self.notes
            if type(note) is kind
            and note.t_ns >= since_ns
            and all(getattr(note, k) == v for k, v in fields.items())
        ]

    # --- machinery ------------------------------------------------------------------------------

    def _at(self, delay: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay, self._order, action))

    def _feed(self, unit: Unit, event: Any) -> None:
        if not unit.alive:
            return
        if unit.frozen:
            unit.backlog.append(event)
            return
        for effect in unit.node.handle(event, self.now):
            self._carry_out(unit, effect)
        self._arm(unit)

    def _arm(self, unit: Unit) -> None:
        due = unit.node.deadline_ns()
        if due is None or (unit.tick_at is not None and unit.tick_at <= due):
            return
        unit.tick_at = due

        def fire() -> None:
            if unit.tick_at != due:
                return
            unit.tick_at = None
            now_due = unit.node.deadline_ns()
            if now_due is not None and now_due <= self.now:
                self._feed(unit, Tick())
            elif unit.alive:
                self._arm(unit)

        self._at(max(0, due - self.now), fire)

    def _carry_out(self, unit: Unit, effect: Any) -> None:
        match effect:
            case Send(peer, message):
                self._transmit(unit, peer, message)
            case Work(job, lane):
                self._work(unit, job, lane)
            case Save(key, value):
                unit.saved[key] = value
            case Note(event):
                assert event.t_ns == self.now
                ev.decode(ev.encode(event))  # every note must survive the journal
                self.notes.append(event)
            case Disconnect(peer, why):
                self._hang_up(unit, peer, why)
            case Stop():
                unit.stopped = effect
                self.kill(unit.name)

    def _transmit(self, unit: Unit, peer: str, message: Any) -> None:
        up = unit.name != "syncer"
        wire = self.wires.get(unit.name if up else peer)
        if wire is None or wire.session is None:
            return
        session = wire.session
        for sent in self.tamper(unit.name, message):

            def arrive(sent: Any = sent) -> None:
                silent = wire.silent_up if up else wire.silent_down
                if wire.session == session and not silent:
                    self._feed(self.units[peer], Received(unit.name, sent))

            if not (up and not wire.syncer_knows):
                self._at(self.latency, arrive)

    def _dial(self, unit: Unit) -> None:
        wire = self.wires[unit.name]
        if not unit.alive or self.units[unit.name] is not unit or wire.session is not None:
            return
        if wire.refused or not self.units["syncer"].alive:
            self._at(50 * MS, lambda: self._dial(unit))
            return
        self._sessions += 1
        wire.session = self._sessions
        # A silent proxy accepts, and the far end never learns of it.
        wire.syncer_knows = not (wire.silent_up or wire.silent_down)
        if wire.syncer_knows:
            self._feed(self.units["syncer"], Connected(unit.name))
        self._feed(unit, Connected("syncer"))

    def _drop(self, learner: str, why: str) -> None:
        """The connection ends and both ends are told."""
        wire = self.wires[learner]
        if wire.session is None:
            return
        self._end_session(learner)
        unit = self.units[learner]
        if wire.syncer_knows:
            self._feed(self.units["syncer"], Disconnected(learner, why))
        self._feed(unit, Disconnected("syncer", why))

    def _hang_up(self, unit: Unit, peer: str, why: str) -> None:
        learner = peer if unit.name == "syncer" else unit.name
        wire = self.wires[learner]
        if wire.session is None:
            return
        other = self.units[peer]
        known, silent = wire.syncer_knows, wire.silent_up or wire.silent_down
        if unit.name == "syncer" and silent:
            wire.syncer_knows = False  # half open: the learner does not learn of it
            return
        self._end_session(learner)
        if known and not silent:
            self._feed(other, Disconnected(unit.name, "closed by the peer"))
        # Behind a silent proxy the syncer keeps a dead link until its own silence bound.

    def _end_session(self, learner: str) -> None:
        self.wires[learner].session = None
        unit = self.units[learner]
        self._at(50 * MS, lambda: self._dial(unit))

    def _work(self, unit: Unit, job: Any, lane: str) -> None:
        start = max(self.now, unit.lane_free.get(lane, 0))
        end = start + self._cost(unit, job)
        unit.lane_free[lane] = end
        pinned = self._result(unit, job, start) if isinstance(job, m.Read) else None

        def done() -> None:
            result = pinned if pinned is not None else self._result(unit, job, start)
            if isinstance(result, WorkFailed):
                self._feed(unit, result)
            else:
                self._feed(unit, WorkDone(job, result))

        self._at(end - self.now, done)

    def _cost(self, unit: Unit, job: Any) -> int:
        match job:
            case m.TrainStep():
                return self.step_ms[unit.name] * MS
            case m.Merge() | m.ReadAll():
                return self.merge_ms * MS
        return MS // 10

    def _result(self, unit: Unit, job: Any, start: int) -> Any:
        match job:
            case m.TrainStep(step):
                return m.StepResult(tokens_of(step), start, self.now - start, self.now - start)
            case m.Read(fragment, _):
                return m.Payload("f32", 64, f"{unit.name}/{unit.node.holding.step}/{fragment}")
            case m.LoadAll():
                return m.Loaded({"params": "x"})
            case m.Merge(_, fragment, version, inputs):
                poisoned = {i.unit: self.poison[i.unit] for i in inputs if i.unit in self.poison}
                payload = m.Payload("f32", 64, f"{fragment}@{version}")
                if len(inputs) - len(poisoned) < self.params.quorum:
                    return m.MergeResult(None, poisoned, "", True, "rda")
                return m.MergeResult(payload, poisoned, payload.digest, True, "rda")
            case m.ReadAll():
                return m.AllFragments(
                    tuple(
                        m.Payload("f32", 64, f"{p}@{v}")
                        for p, v in enumerate(unit.node.committed.versions)
                    )
                )
        return None


# --- the books: tokens per fragment, from the notes alone --------------------------------------


def audit(notes: list[Any], fragments: int) -> None:
    """Assert what must never be broken, from the events alone.

    Each step's tokens enter each fragment at most once, with the counts and weight of the
    merge; versions rise by one; no learner adopts an older version.
    """
    steps: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    merged_steps: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    versions = [0] * fragments
    committed: list[dict[int, int]] = [{0: 0} for _ in range(fragments)]
    adopted: dict[tuple[str, int, int], int] = {}
    clock = 0
    for note in notes:
        match note:
            case ev.Step():
                mine = steps[note.unit, note.incarnation]
                assert note.step not in mine, f"local step taken twice: {note}"
                mine[note.step] = note.tokens
            case ev.Adopted():
                key = (note.unit, note.incarnation, note.fragment)
                assert note.version > adopted.get(key, -1), f"version fell: {note}"
                assert committed[note.fragment][note.version] == note.clock
                adopted[key] = note.version
            case ev.Merged():
                p = note.fragment
                assert note.version == versions[p] + 1, f"version not the next: {note}"
                assert note.clock > clock, f"global step did not rise: {note}"
                assert len(note.contributions) >= note.quorum
                versions[p], clock = note.version, note.clock
                committed[p][note.version] = note.clock
                names = [c.unit for c in note.contributions]
                assert names == sorted(set(names))
                assert not set(names) & set(note.excluded)
                for c in note.contributions:
                    covered = range(c.since_step + 1, c.step + 1)
                    mine = steps[c.unit, c.incarnation]
                    taken = merged_steps[c.unit, c.incarnation, p]
                    assert not taken & set(covered), f"steps merged twice: {note}"
                    taken.update(covered)
                    assert c.c_steps == len(covered) > 0
                    assert c.c_tokens == sum(mine[s] for s in covered)
                    assert c.weight == c.c_tokens**2 / c.c_steps
                    assert committed[p][c.base_version] == c.base_clock


def token_books(pump: Pump) -> list[dict[str, int]]:
    """Per fragment: trained, merged, lost, in flight; each counted on its own from the notes."""
    books = []
    for p in range(pump.params.fragments):
        trained = sum(n.tokens for n in pump.of(ev.Step))
        merged = sum(c.c_tokens for n in pump.of(ev.Merged, fragment=p) for c in n.contributions)
        lost = flight = 0
        merged_at: dict[tuple[str, int], set[int]] = defaultdict(set)
        for n in pump.of(ev.Merged, fragment=p):
            for c in n.contributions:
                merged_at[c.unit, c.incarnation].update(range(c.since_step + 1, c.step + 1))
        overwritten: dict[tuple[str, int], int] = defaultdict(int)
        for a in pump.of(ev.Adopted, fragment=p):
            overwritten[a.unit, a.incarnation] = a.step
        for s in pump.of(ev.Step):
            life = (s.unit, s.incarnation)
            unit = pump.units[s.unit]
            if s.step in merged_at[life]:
                continue
            if s.step <= overwritten[life] or not unit.alive or unit.incarnation > s.incarnation:
                lost += s.tokens
            else:
                flight += s.tokens
        books.append({"trained": trained, "merged": merged, "lost": lost, "in_flight": flight})
    return books
