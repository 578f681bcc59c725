"""Workers: the arithmetic behind a learner and behind the syncer, for both drivers.

Payloads hold encoded bytes (``targets.diloco.codec``); arrays exist inside workers only. Nothing
here talks to anybody: a worker does one job after the other and answers with the job's result.
The ``scripted`` trainer has workers of its own (``targets.diloco.work_scripted``).

**Snapshots.** A pull is answered while the next step runs, from the parameters after the last
completed main-lane job. What a learner sends must be exactly what its counters say, so a
threaded driver (``targets.live``) holds its one lock when it calls ``publish`` and tells the node
of the finished job, and when it hands a message to the node and calls ``bind`` for the jobs the
node asked for. ``run`` does all of it at once, for drivers without threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from faults.base import Tuning
from targets.base import Worker
from targets.diloco import arrays, codec, trainers
from targets.diloco.accelerator import Paced
from targets.diloco.anchors import Received, Sent
from targets.diloco.arrays import Flat, Merged, Outer, Rule
from targets.diloco.checkpoints import ARRAYS
from targets.diloco.early import Opener
from targets.diloco.evaluation import Evaluate, Judged
from targets.diloco.keeping import Keeper, keeper_of
from targets.diloco.messages import (
    STATE_KINDS,
    Adopt,
    AllFragments,
    CopyState,
    DropState,
    Job,
    KeepPart,
    LoadAll,
    Loaded,
    LoadState,
    Merge,
    MergeInput,
    MergeResult,
    PartKept,
    Payload,
    PruneParts,
    Read,
    ReadAll,
    ReadState,
    Recommit,
    Recommitted,
    Restore,
    Restored,
    SealSnapshot,
    StateCopy,
    StepResult,
    TrainStep,
)
from targets.diloco.outliers import UsualNorm
from targets.diloco.params import DilocoParams
from targets.diloco.poison import UNSPOILT, poisoned
from targets.diloco.storage import FragmentStore, StateDamaged, StateError, Store, no_space
from targets.diloco.trainers.base import Arrays, Layout, Quality, Snapshot, State, Trainer


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Virtual durations of jobs in ns, for the simulator; a twin of a live run sets its own.

    ``adopt_ns`` is 0 because a paced step's deadline does not move when a fragment is taken.
    """

    step_ns: int = 1_000_000
    """An inner step when ``step_time_s`` is 0."""
    read_ns: int = 300_000
    adopt_ns: int = 0
    load_ns: int = 20_000_000
    merge_ns: int = 500_000
    read_all_ns: int = 1_000_000
    bytes_per_s: int = 1_000_000_000
    """Bytes of payload read, encoded or merged per second, on top of the fixed part."""

    def moved(self, fixed_ns: int, nbytes: int) -> int:
        """``fixed_ns`` and the time for ``nbytes``."""
        return fixed_ns + nbytes * 1_000_000_000 // self.bytes_per_s


class Pacing(Protocol):
    """Makes a step last as long as the emulated chip's (``targets.diloco.accelerator.Pacer``)."""

    nominal_ns: int

    def begin(self) -> int:
        """The instant at which a step begins."""
        ...

    def end(self, began_at_ns: int) -> Paced:
        """Wait until the step that began then is over."""
        ...


def cost_ns(job: Job, step_ns: int, layout_bytes: Sequence[int], costs: Costs) -> int:
    """Virtual duration of ``job``; ``layout_bytes`` is the f32 size of each fragment."""
    match job:
        case TrainStep():
            return step_ns or costs.step_ns
        case Adopt(fragment=fragment):
            return costs.adopt_ns
        case Read(fragment=fragment):
            return costs.moved(costs.read_ns, layout_bytes[fragment])
        case ReadState(number=number):
            return costs.moved(costs.read_ns, layout_bytes[number // STATE_KINDS])
        case CopyState() | KeepPart():
            return costs.moved(costs.read_ns, STATE_KINDS * sum(layout_bytes))
        case DropState() | Evaluate() | PruneParts() | SealSnapshot():
            return 0
        case LoadAll():
            return costs.moved(costs.load_ns, sum(layout_bytes))
        case LoadState():
            return costs.moved(costs.load_ns, STATE_KINDS * sum(layout_bytes))
        case Merge(fragment=fragment, inputs=inputs):
            return costs.moved(costs.merge_ns, len(inputs) * layout_bytes[fragment])
        case Recommit(fragment=fragment):
            return costs.moved(costs.merge_ns, layout_bytes[fragment])
        case ReadAll() | Restore():
            return costs.moved(costs.read_all_ns, sum(layout_bytes))


class LearnerWorker:
    """Trains one replica. ``pacing`` None: the simulator does the pacing (``cost_ns``)."""

    def __init__(
        self,
        trainer: Trainer,
        params: DilocoParams,
        learner: int,
        pacing: Pacing | None = None,
        tuning: Callable[[], Tuning] | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.trainer = trainer
        self.layout = trainer.layout
        self.costs = costs or Costs()
        self.tuning = Tuning()
        """Set by the simulator; a real unit passes a function that is asked instead. Only
        ``update`` matters here, the rest is the pacer's affair."""
        self._ask = tuning
        self._params = params
        self._step_ns = params.step_ns(learner)
        self._pacing = pacing
        self._snapshot: Snapshot | None = None
        self._loaded = False
        self._copies: dict[str, Snapshot] = {}
        self.keeper: Keeper | None = None
        """Where parts of checkpoints go; set by whoever knows the place."""
        self._bytes = [4 * n for n in self.layout.elements]
        self._received = Received(
            len(self.layout.fragments),
            needed="int4" in (params.wire_up, params.wire_down),
            feedback=params.error_feedback,
        )
        self.opener = Opener(self.layout, self._received)

    def warm(self) -> None:
        """Compile what a step needs; before the unit says that it is ready."""
        self.trainer.warm()

    def run(self, job: Job) -> Any:
        """Carry out ``job`` and make its outcome visible to reads; see the module."""
        result = self.bind(job)()
        if not isinstance(job, Read | CopyState | ReadState | DropState | KeepPart | PruneParts):
            self.publish()
        return result

    def compute(self, job: Job) -> Any:
        """Carry out a main-lane job; reads do not see it before :meth:`publish`.

        Raises ``codec.PayloadError`` for a payload that must not be used; the replica is then
        unchanged.
        """
        match job:
            case TrainStep():
                return self._train()
            case Adopt(fragment=fragment, payload=payload):
                flat, tensors = self.opener.open(fragment, payload)
                self.trainer.write(fragment, tensors)
                self._received.took(fragment, flat)
                return None
            case LoadAll(payloads=payloads):
                opened = [self.opener.open(p, payload) for p, payload in enumerate(payloads)]
                self.opener.forget_parts()  # of a donor that did not come to its end
                self.trainer.load([tensors for _, tensors in opened])
                self._loaded = True
                self._received.forget()
                for p, (flat, _) in enumerate(opened):
                    self._received.took(p, flat)
                return Loaded(dict(self.trainer.digests()))
            case LoadState():
                self.trainer.restore(self._state(job))
                self._loaded = True
                self._received.forget()
                return Loaded(dict(self.trainer.digests()))
        raise TypeError(f"not a job of a learner's main lane: {type(job).__name__}")

    def publish(self) -> None:
        """Let reads see the parameters as they are now; nothing before the first ``LoadAll``."""
        if self._loaded:
            self._snapshot = self.trainer.snapshot()
            self._received.publish()

    def bind(self, job: Job) -> Callable[[], Any]:
        """``job`` as a call. A read is answered from the snapshot published last before now."""
        match job:
            case ReadState(transfer=transfer, number=number):
                return partial(self._part, self._copies[transfer], number)
            case DropState(transfer=transfer):
                return partial(_done, self._copies.pop(transfer, None))
            case PruneParts():
                return partial(keeper_of(self.keeper).prune, job)
            case Read() | CopyState() | KeepPart():
                pass
            case _:
                return partial(self.compute, job)
        if self._snapshot is None:
            raise RuntimeError("a fragment was asked for before the learner had any parameters")
        if isinstance(job, CopyState):
            self._copies[job.transfer] = self._snapshot
            return partial(_described, self._snapshot)
        if isinstance(job, KeepPart):
            return partial(self._keep, job, self._snapshot)
        tuning = self.tuning if self._ask is None else self._ask()
        anchor = self._received.published[job.fragment]
        return partial(self._read, self._snapshot, job.fragment, anchor, tuning.update)

    def cost_ns(self, job: Job) -> int:
        """Virtual duration of ``job`` on a chip that nothing slows."""
        return cost_ns(job, self._step_ns, self._bytes, self.costs)

    def _train(self) -> StepResult:
        if self._pacing is None:
            trained = self.trainer.step()
            return StepResult(trained.tokens, 0, 0, self._step_ns, trained.loss)
        compute_at_ns = self._pacing.begin()
        trained = self.trainer.step()
        paced = self._pacing.end(compute_at_ns)
        return StepResult(
            tokens=trained.tokens,
            # Where the step's time began, which is the end of the one before when back to back.
            began_at_ns=paced.began_at_ns,
            compute_ns=paced.compute_ns,
            nominal_ns=self._pacing.nominal_ns,
            loss=trained.loss,
        )

    def _read(self, snapshot: Snapshot, fragment: int, anchor: Flat | None, update: str) -> Payload:
        read = snapshot.read(fragment)
        if self._params.wire_up == "int4":
            payload = self._received.pack(fragment, _flat(read), anchor)
        else:
            payload = codec.pack(read, self._params.wire_up)
        if update in UNSPOILT:
            return payload
        bad = poisoned(payload, update, anchor)
        return Payload(bad.dtype, bad.nbytes, bad.digest, bad.data, tampered=update)

    def _part(self, snapshot: Snapshot, number: int) -> Payload:
        fragment, which = divmod(number, STATE_KINDS)
        arrays = snapshot.inner(fragment)[which - 1] if which else snapshot.read(fragment)
        return codec.pack(arrays, "f32")

    def _keep(self, job: KeepPart, snapshot: Snapshot) -> PartKept:
        def read(fragment: int, name: str) -> Payload:
            return self._part(snapshot, STATE_KINDS * fragment + ARRAYS["learner"].index(name))

        return keeper_of(self.keeper).keep(
            job,
            read,
            trained=snapshot.trained,
            moments=snapshot.moments,
            digests=snapshot.digests(),
        )

    def _state(self, job: LoadState) -> State:
        count = len(self.layout.fragments)
        if len(job.payloads) != STATE_KINDS * count:
            raise codec.PayloadError("layout", f"{len(job.payloads)} parts for {count} fragments")
        opened = [
            self.opener.open_part(number, payload) for number, payload in enumerate(job.payloads)
        ]
        params, first, second = (opened[which::STATE_KINDS] for which in range(STATE_KINDS))
        return State(params, first, second, job.trained, job.moments)


def _described(snapshot: Snapshot) -> StateCopy:
    return StateCopy(snapshot.trained, snapshot.moments, dict(snapshot.digests()))


def _done(dropped: Snapshot | None) -> None:
    """Nothing is left to do: the reference went when the job was bound."""


class SyncerWorker:
    """Holds the global parameters and the outer optimizer's momentum, one fragment each.

    ``initial`` is in the layout's tensor order and version 0 of every fragment. With a ``store``
    every merge is durable before its result is returned, and a later life begins with the newest
    versions. The node's versions are what counts (see :class:`Restore`).
    """

    def __init__(
        self,
        layout: Layout,
        params: DilocoParams,
        initial: Arrays,
        store: Store | None = None,
        backend: arrays.Backend | None = None,
        cache_dir: str = "",
        costs: Costs | None = None,
        evaluate: Callable[[Arrays], Quality | None] | None = None,
    ) -> None:
        self.layout = layout
        self.costs = costs or Costs()
        self._evaluate = evaluate
        self.tuning = Tuning()
        """Set by whoever drives it, whenever a job is queued; only ``disk_full`` matters."""
        self._usual = [UsualNorm() for _ in layout.fragments]
        self._params = params
        self._outer = Outer(params.outer_lr, params.outer_momentum)
        which = backend or arrays.backend(max(layout.elements))
        self._merge = arrays.merger(which, cache_dir)
        self._store = store
        self._initial = [_flat(fragment) for fragment in layout.split(initial)]
        self._theta = [theta.copy() for theta in self._initial]
        self._buf = [np.zeros_like(theta) for theta in self._theta]
        # The merge writes here and changes places with the present state once it is sound.
        self._spare: list[tuple[Flat, Flat] | None] = [None] * len(self._theta)
        self._pinned: set[int] = set()
        """Fragments whose present arrays a checkpoint reads; they are not written to again."""
        self.keeper: Keeper | None = None
        """Where parts of checkpoints go; set by whoever knows the place."""
        self._payloads: list[Payload | None] = [None] * len(self._theta)
        self._sizes = [[layout.tensors[i].elements for i in f] for f in layout.fragments]
        self._rules = [rules(layout, p, params.merge) for p in range(len(layout.fragments))]
        self._bytes = [4 * n for n in layout.elements]
        self._versions = [0] * len(self._theta)
        self._sent: Sent | None = None
        if "int4" in (params.wire_up, params.wire_down):
            # Bases of pushes that are not yet too old: merges of a fragment are sync_every apart.
            kept = 2 + params.stale_limit // params.sync_every if params.wire_up == "int4" else 1
            self._sent = Sent([self._as_sent(p) for p in range(len(self._theta))], kept)
        if store is not None:
            # What is damaged is named, and replaced, once the node asks for its versions.
            self._go_back([max(store.versions(p), default=0) for p in range(len(self._theta))])

    def _restore(self, versions: Sequence[int]) -> None:
        """Go to ``versions`` (one per fragment). Raises ``storage.StateError`` when one of them
        is not at hand, naming it."""
        for fragment, version in enumerate(versions):
            if version != self._versions[fragment]:
                self._theta[fragment], self._buf[fragment] = self._stored(fragment, version)
                self._versions[fragment] = version
                self._payloads[fragment] = None
                if self._sent is not None:
                    self._sent.restart(fragment, version, self._sent_then(fragment, version))

    def _go_back(self, versions: Sequence[int]) -> Restored | None:
        """As :meth:`_restore`, but to the version before where the one asked for is damaged.

        Raises ``storage.StateError`` where that one is not good either.
        """
        damaged: dict[int, str] = {}
        found = list(versions)
        for fragment, version in enumerate(versions):
            wanted = list(self._versions)
            wanted[fragment] = version
            try:
                self._restore(wanted)
            except StateDamaged as error:
                damaged[fragment] = str(error)
                wanted[fragment] = found[fragment] = version - 1
                self._restore(wanted)
        return Restored(tuple(found), damaged) if damaged else None

    def _recommitted(self, job: Recommit) -> Recommitted:
        p = job.fragment
        self._need_space()
        if job.payload is not None:
            self._theta[p] = codec.unpack(job.payload, self.layout.elements[p]).copy()
            self._buf[p] = np.zeros_like(self._theta[p])
        theta, buf = self._theta[p], self._buf[p]
        if self._store is not None:
            # Twice: the version before the newest is what a damaged disk falls back to, and what
            # was lost must not come back that way.
            self._store.save(p, job.version - 1, theta, buf)
            self._store.save(p, job.version, theta, buf)
        self._versions[p] = job.version
        self._payloads[p] = None
        if self._sent is not None:
            self._sent.restart(p, job.version, self._as_sent(p))
        return Recommitted(self._payload(p), codec.digest([theta]))

    def run(self, job: Job) -> Any:
        """Carry out a job of a syncer.

        A merge of version v builds upon version v - 1, whatever is held. Raises
        ``storage.StateError`` when that is not at hand any more.
        """
        match job:
            case Merge():
                return self._merged(job)
            case Restore(versions=versions):
                return self._go_back(versions)
            case Recommit():
                return self._recommitted(job)
            case ReadAll():
                return AllFragments(tuple(self._payload(p) for p in range(len(self._theta))))
            case Evaluate() | KeepPart() | SealSnapshot():
                return self.bind(job)()
        raise TypeError(f"not a job of the syncer: {type(job).__name__}")

    def compute(self, job: Job) -> Any:
        """Carry out a main-lane job."""
        return self.run(job)

    def bind(self, job: Job) -> Callable[[], Any]:
        """``job`` as a call. An evaluation is one of the parameters as they are now: a driver calls
        this in the critical section in which the node asked, when no merge is under way."""
        if isinstance(job, Evaluate):
            return partial(self._judged, [theta.copy() for theta in self._theta])
        if isinstance(job, KeepPart):
            return self._keep(job)
        if isinstance(job, SealSnapshot):
            return partial(keeper_of(self.keeper).seal, job)
        return partial(self.run, job)

    def cost_ns(self, job: Job) -> int:
        """Virtual duration of ``job``."""
        return cost_ns(job, 0, self._bytes, self.costs)

    def _keep(self, job: KeepPart) -> Callable[[], PartKept]:
        """References will do: merges write into other arrays and then change places."""
        pinned = list(zip(self._theta, self._buf, strict=True))
        sent = [self._sent.newest(p) for p in range(len(pinned))] if self._sent else None
        self._pinned = set(range(len(pinned)))

        def read(fragment: int, name: str) -> Payload | None:
            which = ARRAYS["syncer"].index(name)
            if which == len(pinned[fragment]):
                down = sent is not None and self._params.wire_down == "int4"
                return codec.pack([sent[fragment]], "f32") if down and sent is not None else None
            return codec.pack([pinned[fragment][which]], "f32")

        return partial(keeper_of(self.keeper).keep, job, read)

    def _judged(self, thetas: list[Flat]) -> Judged:
        layout = self.layout
        split = [codec.split(theta, layout.shapes(p)) for p, theta in enumerate(thetas)]
        found = self._evaluate(layout.join(split)) if self._evaluate is not None else None
        if found is None:
            raise RuntimeError("this trainer has nothing to evaluate")
        records = found.tokens // self._params.sequence
        return Judged(found.loss, found.accuracy, found.floor, records)

    def theta(self, fragment: int) -> Flat:
        """The fragment as it is now: flat float32, not to be written to."""
        return self._theta[fragment]

    def _stored(self, fragment: int, version: int) -> tuple[Flat, Flat]:
        if version == 0:
            initial = self._initial[fragment]
            return initial.copy(), np.zeros_like(initial)
        if self._store is None:
            raise StateError(
                f"version {version} of fragment {fragment} is asked for, version "
                f"{self._versions[fragment]} is held, and no state was kept on disk"
            )
        return self._store.load(fragment, version, self.layout.elements[fragment])

    def _sent_then(self, fragment: int, version: int) -> Flat:
        """What receivers made of a version that was just restored."""
        if self._params.wire_down == "int4" and version > 0 and self._store is not None:
            return self._store.sent(fragment, version, self.layout.elements[fragment])
        return self._as_sent(fragment)

    def _held(self, fragment: int) -> Flat:
        """What deltas are anchored at: the fragment, or with int4 down what receivers hold."""
        if self._params.wire_down == "int4" and self._sent is not None:
            return self._sent.newest(fragment)
        return self._theta[fragment]

    def _as_sent(self, fragment: int) -> Flat:
        """What receivers make of the fragment as it is now, when it is sent whole."""
        theta = self._theta[fragment]
        if self._params.wire_down == "bf16":
            return codec.decode(codec.encode([theta], "bf16"), "bf16", theta.size)
        return theta.copy()

    def _align(self, fragment: int, version: int) -> None:
        wanted = list(self._versions)
        wanted[fragment] = version
        self._restore(wanted)

    def _merged(self, job: Merge) -> MergeResult:
        self._align(job.fragment, job.version - 1)
        refused: dict[str, str] = {}
        usable = self._usable(job, refused)
        rule = rule_name(self.layout, job.fragment, self._params.merge)
        merged: Merged | None = None
        while len(usable) >= self._params.quorum:
            merged = self._attempt(job.fragment, usable)
            bad = {
                unit: why
                for (unit, _), norms in zip(usable.items(), merged.norms, strict=True)
                if (why := self._usual[job.fragment].objection(norms))
            }
            # Without an outlier the quorum must still be there: else the same learners would be
            # asked again for ever, and one honest surprise would stop all merging.
            if len(usable) - len(bad) < self._params.quorum:
                bad = {unit: why for unit, why in bad.items() if not why.startswith("outlier")}
            if not bad:
                break
            refused |= bad
            usable = {unit: entry for unit, entry in usable.items() if unit not in bad}
            merged = None
        if merged is None or not merged.finite:
            return MergeResult(None, refused, "", merged is None, rule)
        payload = self._commit(job.fragment, job.version, merged)
        # Not of a merge that could not be kept: it will be done again.
        self._usual[job.fragment].learn(merged.norms)
        digest = codec.digest([merged.theta])
        return MergeResult(payload, refused, digest, True, rule)

    def _usable(self, job: Merge, refused: dict[str, str]) -> dict[str, tuple[float, Flat]]:
        """Unit to (weight, fragment), by unit name: sums are taken in this order."""
        usable: dict[str, tuple[float, Flat]] = {}
        elements = self.layout.elements[job.fragment]
        ordered: list[MergeInput] = sorted(job.inputs, key=lambda i: i.unit)
        for entry in ordered:
            try:
                base = self._sent.at(job.fragment, entry.base_version) if self._sent else None
                flat = codec.unpack(entry.payload, elements, base)
            except codec.PayloadError as error:
                refused[entry.unit] = str(error)
            else:
                usable[entry.unit] = (entry.weight, flat)
        return usable

    def _attempt(self, fragment: int, usable: Mapping[str, tuple[float, Flat]]) -> Merged:
        theta, buf = self._theta[fragment], self._buf[fragment]
        anchor = self._held(fragment)
        spare = self._spare[fragment] or (np.empty_like(theta), np.empty_like(buf))
        self._spare[fragment] = spare
        merged = self._merge(
            anchor,
            buf,
            [flat for _, flat in usable.values()],
            [weight for weight, _ in usable.values()],
            self._sizes[fragment],
            self._rules[fragment],
            self._outer,
            spare,
        )
        if anchor is theta:
            return merged
        merged.theta[:] += theta - anchor  # the step is one of the exact fragment; see anchors
        return replace(merged, finite=merged.finite and arrays.finite(merged.theta))

    def _commit(self, fragment: int, version: int, merged: Merged) -> Payload:
        """Make the merge durable, then the present state; returns what is broadcast."""
        sent: Flat | None = None
        if self._params.wire_down == "int4":
            payload, sent = codec.pack_change(merged.theta, self._held(fragment))
        else:
            payload = codec.pack([merged.theta], self._params.wire_down)
        self._need_space()
        if self._store is not None:
            self._store.save(fragment, version, merged.theta, merged.buf, sent)
        if sent is None and self._params.wire_up == "int4":
            sent = codec.decode(payload.data, payload.dtype, merged.theta.size)
        if sent is not None and self._sent is not None:
            self._sent.put(fragment, version, sent)
        self._spare[fragment] = (self._theta[fragment], self._buf[fragment])
        if fragment in self._pinned:
            self._pinned.discard(fragment)
            self._spare[fragment] = None
        self._theta[fragment], self._buf[fragment] = merged.theta, merged.buf
        self._versions[fragment] = version
        self._payloads[fragment] = None if payload.relative else payload
        return payload

    def _need_space(self) -> None:
        """Raises the kernel's ``OSError`` while the control file says that the disk is full."""
        if self.tuning.disk_full:
            raise no_space()

    def _payload(self, fragment: int) -> Payload:
        """The whole fragment, for whoever lacks the version before: what all others hold."""
        payload = self._payloads[fragment]
        if payload is None:
            dtype = self._params.wire_down
            payload = codec.pack([self._held(fragment)], "f32" if dtype == "int4" else dtype)
            self._payloads[fragment] = payload
        return payload


def rules(layout: Layout, fragment: int, merge: Rule) -> list[Rule]:
    """How each tensor of the fragment is merged: embeddings are averaged, whatever ``merge`` says
    for the others (paper D.2). They have a fragment of their own unless there is only one."""
    return ["avg" if layout.tensors[i].embedding else merge for i in layout.fragments[fragment]]


def rule_name(layout: Layout, fragment: int, merge: Rule) -> str:
    """``avg``, ``rda``, or both joined by a plus for a fragment of mixed tensors."""
    return "+".join(dict.fromkeys(rules(layout, fragment, merge)))


def _flat(fragment: Arrays) -> Flat:
    return np.concatenate([np.asarray(a, dtype=np.float32).reshape(-1) for a in fragment])


def layout_of(params: DilocoParams) -> Layout:
    """The parameter layout of ``params``; raises ``ValueError`` when fragments do not fit."""
    return Layout.of(trainers.load(params.trainer).tensors(params), params.fragments)


def learner_worker(
    params: DilocoParams,
    learner: int,
    seed: int,
    *,
    life: int = 1,
    cache_dir: str = "",
    pacing: Pacing | None = None,
    tuning: Callable[[], Tuning] | None = None,
) -> Worker:
    """The worker of the learner with that number; ``cache_dir`` is for compiled code."""
    if params.trainer == "scripted":
        from targets.diloco.work_scripted import ScriptedLearner

        return ScriptedLearner(layout_of(params), params, learner, pacing)
    module = trainers.load(params.trainer)
    trainer = module.create(params, learner, seed, life=life, cache_dir=cache_dir)
    return LearnerWorker(trainer, params, learner, pacing, tuning)


def syncer_worker(
    params: DilocoParams,
    seed: int,
    *,
    store: Store | None = None,
    memory: dict[tuple[int, int], str] | None = None,
    cache_dir: str = "",
) -> Worker:
    """The syncer's worker, at the initial parameters that every learner will be sent, or at what
    an earlier life left in ``store`` (see :func:`disk_store`; ``memory`` for ``scripted``).
    ``cache_dir`` is for compiled code."""
    layout = layout_of(params)
    if params.trainer == "scripted":
        from targets.diloco.work_scripted import ScriptedSyncer

        return ScriptedSyncer(layout, params, memory)
    module = trainers.load(params.trainer)

    def evaluate(arrays: Arrays) -> Quality | None:
        return module.evaluate(params, arrays, seed)

    initial = module.initial(params, seed)
    return SyncerWorker(layout, params, initial, store, cache_dir=cache_dir, evaluate=evaluate)


def disk_store(params: DilocoParams, seed: int, state_dir: Path) -> Store:
    """The store of a real syncer's process, below its ``state_dir``."""
    return FragmentStore(state_dir / "fragments", layout_of(params).digest(seed))
