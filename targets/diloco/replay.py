"""Follows a tape in one process: the real workers, and none of the protocol that decided.

Every life of every learner and the syncer are lines of operations (``targets.diloco.tape``), each
carried out once what it needs is there: a merge its learners' fragments, a learner the versions
that it adopts, a newcomer its donor's copy. Of those that could go on, the one that the journal
told first does, so no more fragments are in flight than there were in the run.

What comes out is compared with the tape: the digest of every merge, the loss of every step, the
digests of every state that a learner began with. All arithmetic is a function of these
operations, so everything must be equal bit for bit; where it is not, the first difference in the
journal's order is named and nothing after it is carried out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from faults.base import Tuning
from targets.base import Worker
from targets.diloco import messages
from targets.diloco.messages import (
    STATE_KINDS,
    CopyState,
    DropState,
    LoadAll,
    LoadState,
    Merge,
    MergeInput,
    Payload,
    Read,
    ReadAll,
    ReadState,
    Recommit,
    Restore,
    TrainStep,
)
from targets.diloco.params import DilocoParams
from targets.diloco.storage import MemoryStore
from targets.diloco.tape import (
    Adopt,
    Answer,
    Commit,
    Copy,
    LearnerLife,
    LearnerOp,
    Load,
    Part,
    Reopen,
    Rollback,
    SyncerOp,
    Take,
    Tape,
    Train,
)
from targets.diloco.work import learner_worker, syncer_worker

Key = tuple[str, int, int]
"""What one operation leaves for others: ("version", fragment, version), ("part", number, 0) or
("copy", number, 0)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of following a tape. Counts are of what was compared with it."""

    merges: int
    steps: int
    joins: int
    difference: str
    """The first difference, both values named; empty when all is equal."""
    line: int
    """Its line in the journal."""
    unfollowed: tuple[str, ...]
    """What kept parts of the tape from being followed."""
    held_bytes_max: int
    """Most bytes of fragments and copied states that waited to be used, at a time."""


@dataclass(slots=True)
class _Lane:
    """A line of operations and how far it was followed."""

    name: str
    ops: Sequence[Any]
    run: Callable[[Any], None]
    at: int = 0

    @property
    def left(self) -> bool:
        return self.at < len(self.ops)


@dataclass(slots=True)
class _Held:
    """Something that was made and is still needed."""

    value: Any
    nbytes: int
    uses: int


@dataclass
class _Stock:
    """What lanes leave for each other, each thing for as long as somebody will need it."""

    uses: dict[Key, int]
    """How often each is needed in all."""
    held: dict[Key, _Held] = field(default_factory=dict)
    nbytes: int = 0
    nbytes_max: int = 0

    def put(self, key: Key, value: Any, nbytes: int) -> None:
        uses = self.uses.get(key, 0)
        if uses:
            self.held[key] = _Held(value, nbytes, uses)
            self.nbytes += nbytes
            self.nbytes_max = max(self.nbytes_max, self.nbytes)

    def take(self, key: Key) -> Any:
        found = self.held[key]
        found.uses -= 1
        if not found.uses:
            del self.held[key]
            self.nbytes -= found.nbytes
        return found.value


class Replay:
    """One pass over a tape. ``progress`` is told (merges done, merges in all) after each.

    ``until`` leaves out merges of later global steps, and ends when the others are done.
    ``cache_dir`` should be the one that the run's compiled programs came from.
    """

    def __init__(
        self,
        tape: Tape,
        *,
        cache_dir: str = "",
        until: int | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._tape = tape
        self._params = _params_of(tape)
        seed = tape.run.target_seed
        self._seed = tape.run.seed if seed is None else seed
        self._cache_dir = cache_dir
        self._progress = progress
        self._until = until
        commits = [op for op in tape.syncer if isinstance(op, Commit)]
        self._total = sum(until is None or op.clock <= until for op in commits)
        self._merges = self._steps = self._joins = 0
        self._done = 0
        self._difference: tuple[int, str] | None = None
        self._lanes: list[_Lane] = []
        self._ready: list[tuple[int, int]] = []
        self._waiting: dict[Key, list[int]] = {}
        self._store = MemoryStore()
        self._memory: dict[tuple[int, int], str] = {}
        self._newest = [0] * self._params.fragments
        self._syncer = self._new_syncer()
        syncer = [op for op in tape.syncer if not self._beyond(op)]
        self._stock = _Stock(_uses(tape.learners, syncer))
        self._lane("syncer", syncer, self._on_syncer)
        for life in tape.learners:
            self._lane(f"{life.unit} (life {life.life})", life.ops, _Learner(self, life).run)

    # --- for the operations -----------------------------------------------------------------

    def compare(self, line: int, what: str, taped: Any, found: Any) -> None:
        """Keep the difference that the journal told first."""
        if taped != found and (self._difference is None or line < self._difference[0]):
            told = f"line {line}, {what}: {taped} in the tape, {found} in the replay"
            self._difference = (line, told)

    def put(self, key: Key, value: Any, nbytes: int) -> None:
        """Leave ``value`` for the lanes that need it, which may go on now."""
        self._stock.put(key, value, nbytes)
        for number in self._waiting.pop(key, ()):
            self._offer(number)

    def take(self, key: Key) -> Any:
        """What was left under ``key``; for the last taker it is gone."""
        return self._stock.take(key)

    # --- following --------------------------------------------------------------------------

    def run(self) -> Finding:
        """Follow the tape as far as it goes.

        Raises what workers raise for settings that do not work here (text that is not there).
        """
        for p in range(self._params.fragments):
            self._publish(p, 0)
        for number in range(len(self._lanes)):
            self._offer(number)
        while self._ready and not (self._until is not None and self._done == self._total):
            line, number = heapq.heappop(self._ready)
            if self._difference is not None and line > self._difference[0]:
                continue
            lane = self._lanes[number]
            op = lane.ops[lane.at]
            missing = next((key for key in _needs(op) if key not in self._stock.held), None)
            if missing is not None:
                self._waiting.setdefault(missing, []).append(number)
                continue
            lane.run(op)
            lane.at += 1
            self._offer(number)
        line, text = self._difference or (0, "")
        return Finding(
            self._merges,
            self._steps,
            self._joins,
            text,
            line,
            self._unfollowed(),
            self._stock.nbytes_max,
        )

    def _lane(self, name: str, ops: Sequence[Any], run: Callable[[Any], None]) -> None:
        self._lanes.append(_Lane(name, ops, run))

    def _offer(self, number: int) -> None:
        lane = self._lanes[number]
        if lane.left:
            heapq.heappush(self._ready, (lane.ops[lane.at].line, number))

    def _beyond(self, op: SyncerOp) -> bool:
        return self._until is not None and isinstance(op, Commit) and op.clock > self._until

    def _unfollowed(self) -> tuple[str, ...]:
        problems = tuple(self._tape.problems)
        stuck = [lane for lane in self._lanes if lane.left]
        if problems or not stuck or self._difference or self._until is not None:
            return problems
        names = ", ".join(lane.name for lane in stuck)
        return (f"the lines of {names} wait for each other: they are not in the order they had",)

    # --- the syncer -------------------------------------------------------------------------

    def _new_syncer(self) -> Worker:
        return syncer_worker(
            self._params,
            self._seed,
            store=self._store,
            memory=self._memory,
            cache_dir=self._cache_dir,
        )

    def _on_syncer(self, op: SyncerOp) -> None:
        match op:
            case Commit():
                self._commit(op)
            case Reopen(content=content):
                self._syncer = self._new_syncer()
                found = [content.get(p, v) for p, v in enumerate(self._newest)]
                self._syncer.run(Restore(tuple(found)))
            case Rollback():
                given = self.take(_copy(op.copy)) if op.copy else None
                payload = given.payloads[STATE_KINDS * op.fragment] if given else None
                result = self._syncer.run(Recommit(op.fragment, op.version, payload))
                what = f"fragment {op.fragment} taken back as version {op.version}"
                self.compare(op.line, what, op.digest, result.digest)
                self._newest[op.fragment] = op.version
                self._publish(op.fragment, op.version)

    def _commit(self, op: Commit) -> None:
        inputs = tuple(
            MergeInput(part.unit, part.weight, self.take(_part(part.number)), part.base_version)
            for part in op.parts
        )
        result = self._syncer.run(Merge(op.clock, op.fragment, op.version, inputs))
        found = result.digest
        if result.payload is None:
            refused = "; ".join(f"{u}: {why}" for u, why in sorted(result.poisoned.items()))
            found = f"nothing ({refused or 'not finite'})"
        what = (
            f"version {op.version} of fragment {op.fragment}, merged at global step {op.clock} "
            f"from {', '.join(map(_named, op.parts))}"
        )
        self.compare(op.line, what, op.digest, found)
        self._merges += 1
        self._done += 1
        if result.payload is not None:
            self._newest[op.fragment] = op.version
            self._publish(op.fragment, op.version)
        self._progress(self._done, self._total)

    def _publish(self, fragment: int, version: int) -> None:
        """The whole version, as every receiver has it, however it travelled to whom."""
        key = _version(fragment, version)
        if self._stock.uses.get(key):
            payload = self._syncer.run(ReadAll("")).payloads[fragment]
            self.put(key, payload, payload.nbytes)

    # --- learners ---------------------------------------------------------------------------

    def worker(self, life: LearnerLife) -> Worker:
        """The worker of one life of one learner, without pacing."""
        names = [self._params.learner_name(i) for i in range(self._params.learners)]
        return learner_worker(
            self._params,
            names.index(life.unit),
            self._seed,
            life=life.data,
            cache_dir=self._cache_dir,
        )

    def stepped(self) -> None:
        """One step's loss was compared."""
        self._steps += 1

    def joined(self) -> None:
        """The digests of one state were compared."""
        self._joins += 1

    @property
    def fragments(self) -> int:
        """P."""
        return self._params.fragments


class _Learner:
    """Carries out one life of one learner; its worker lives as long as that takes."""

    def __init__(self, replay: Replay, life: LearnerLife) -> None:
        self._replay = replay
        self._life = life
        self._who = f"{life.unit} (life {life.life})"
        self._left = len(life.ops)
        self._worker: Worker | None = None

    def run(self, op: LearnerOp) -> None:
        if self._worker is None:
            self._worker = self._replay.worker(self._life)
        self._do(self._worker, op)
        self._left -= 1
        if not self._left:
            self._worker = None

    def _do(self, worker: Worker, op: LearnerOp) -> None:
        replay = self._replay
        match op:
            case Train(line=line, step=step, loss=loss):
                result = worker.run(TrainStep(step))
                if loss is not None:
                    replay.compare(line, f"loss of {self._who} at step {step}", loss, result.loss)
                replay.stepped()
            case Adopt(fragment=p, version=version):
                worker.run(messages.Adopt(p, version, replay.take(_version(p, version))))
            case Answer():
                payload = self._answer(worker, op)
                replay.put(_part(op.part), payload, payload.nbytes)
            case Load(versions=versions):
                payloads = tuple(replay.take(_version(p, v)) for p, v in enumerate(versions))
                self._began(op, worker.run(LoadAll(payloads)).digests)
            case Take(copy=copy):
                self._began(op, worker.run(replay.take(_copy(copy))).digests)
            case Copy(copy=copy):
                state = self._copied(worker)
                replay.put(_copy(copy), state, sum(p.nbytes for p in state.payloads))

    def _answer(self, worker: Worker, op: Answer) -> Payload:
        learner: Any = worker
        if op.update:
            learner.tuning = Tuning(update=op.update)
        payload: Payload = worker.run(Read(op.fragment, op.part))
        if op.update:
            learner.tuning = Tuning()
        return payload

    def _copied(self, worker: Worker) -> LoadState:
        copy = worker.run(CopyState("replay"))
        numbers = range(STATE_KINDS * self._replay.fragments)
        parts = tuple(worker.run(ReadState("replay", number)) for number in numbers)
        worker.run(DropState("replay"))
        return LoadState(parts, copy.trained, copy.moments)

    def _began(self, op: Load | Take, found: Mapping[str, str]) -> None:
        how = f"from {op.donor}" if isinstance(op, Take) else "from the syncer"
        for name, taped in sorted(op.digests.items()):
            what = f"{name} of the state that {self._who} began with, {how}"
            self._replay.compare(op.line, what, taped, found.get(name))
        if op.digests:
            self._replay.joined()


def follow(
    tape: Tape,
    *,
    cache_dir: str = "",
    until: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Finding:
    """Follow ``tape``; see :class:`Replay`."""
    return Replay(tape, cache_dir=cache_dir, until=until, progress=progress).run()


def read_params(values: Mapping[str, Any]) -> DilocoParams:
    """The parameters that a journal's first line holds. Raises ``ValueError`` for others."""
    try:
        return msgspec.convert(dict(values), DilocoParams)
    except msgspec.ValidationError as error:
        raise ValueError(f"the journal's parameters are not of this version: {error}") from error


def _params_of(tape: Tape) -> DilocoParams:
    """Raises ``ValueError`` for a first line whose parameters are not those of its units."""
    params = read_params(tape.run.params)
    names = {params.learner_name(i) for i in range(params.learners)}
    strange = sorted({life.unit for life in tape.learners} - names)
    told = len(tape.run.fragments)
    problems = [f"learners is {params.learners}, and there is {name}" for name in strange]
    if told != params.fragments:
        problems.append(f"fragments is {params.fragments}, and {told} are described")
    if problems:
        raise ValueError(f"the journal's first line contradicts itself: {'; '.join(problems)}")
    return params


def _needs(op: Any) -> list[Key]:
    match op:
        case Commit(parts=parts):
            return [_part(part.number) for part in parts]
        case Adopt(fragment=p, version=version):
            return [_version(p, version)]
        case Load(versions=versions):
            return [_version(p, v) for p, v in enumerate(versions)]
        case Take(copy=copy):
            return [_copy(copy)]
        case Rollback(copy=copy) if copy:
            return [_copy(copy)]
    return []


def _uses(learners: Sequence[LearnerLife], syncer: Sequence[SyncerOp]) -> dict[Key, int]:
    uses: dict[Key, int] = {}
    for ops in (syncer, *(life.ops for life in learners)):
        for op in ops:
            for key in _needs(op):
                uses[key] = uses.get(key, 0) + 1
    return uses


def _version(fragment: int, version: int) -> Key:
    return ("version", fragment, version)


def _part(number: int) -> Key:
    return ("part", number, 0)


def _copy(number: int) -> Key:
    return ("copy", number, 0)


def _named(part: Part) -> str:
    return f"{part.unit} (life {part.life}, step {part.step})"
