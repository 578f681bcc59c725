"""Workers of the ``scripted`` trainer: the jobs' results without any array.

Payloads have the right size and no data. Their digests are hashes of what went into them, so a
lost or doubled contribution still changes the digest of the merge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from faults.base import Tuning
from targets.diloco import wiretypes
from targets.diloco.checkpoints import ARRAYS
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
    SealSnapshot,
    StateCopy,
    StepResult,
    TrainStep,
)
from targets.diloco.params import DilocoParams
from targets.diloco.storage import no_space
from targets.diloco.trainers.base import Layout
from targets.diloco.trainers.toy import tokens_per_step
from targets.diloco.work import Costs, Pacing, cost_ns, rule_name

MAIN_LANE = frozenset({TrainStep, Adopt, LoadAll, LoadState})

Memory = dict[tuple[int, int], str]
"""(fragment, version) to digest: what a simulated syncer's disk remembers of its merges."""


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _digests(adopted: tuple[str, ...], moments: str, steps: int) -> dict[str, str]:
    return {
        "params": _hash(adopted, steps),
        "moments": _hash(moments, steps),
        "step": str(steps),
        "learning_rate": "0.0",
    }


class ScriptedLearner:
    """Counts steps. Snapshots need no care: a read's digest is fixed when it is bound."""

    def __init__(
        self,
        layout: Layout,
        params: DilocoParams,
        learner: int,
        pacing: Pacing | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.costs = costs or Costs()
        self.tuning = Tuning()
        self._params = params
        self._name = params.learner_name(learner)
        self._tokens = tokens_per_step(params, learner)
        self._step_ns = params.step_ns(learner)
        self._pacing = pacing
        self._elements = layout.elements
        self._bytes = [4 * n for n in layout.elements]
        self._steps = 0
        self._adopted = [""] * len(layout.fragments)
        # Moments are the history that they have seen: by whom they were begun, and from what.
        self._moments = ""
        self._copies: dict[str, tuple[tuple[str, ...], str, int]] = {}
        self.keeper: Keeper | None = None

    def warm(self) -> None:
        """Nothing to compile."""

    def run(self, job: Job) -> Any:
        """Carry out ``job``."""
        return self.compute(job) if type(job) in MAIN_LANE else self.bind(job)()

    def compute(self, job: Job) -> Any:
        """Carry out a main-lane job."""
        match job:
            case TrainStep():
                return self._train()
            case Adopt(fragment=fragment, payload=payload):
                self._adopted[fragment] = payload.digest
                return None
            case LoadAll(payloads=payloads):
                self._adopted = [payload.digest for payload in payloads]
                self._steps, self._moments = 0, _hash(self._name, self._adopted)
                return Loaded(_digests(tuple(self._adopted), self._moments, 0))
            case LoadState(payloads=payloads, trained=trained):
                self._adopted = [payload.digest for payload in payloads[::STATE_KINDS]]
                self._steps, self._moments = trained, payloads[1].digest
                return Loaded(_digests(tuple(self._adopted), self._moments, trained))
        raise TypeError(f"not a job of a learner's main lane: {type(job).__name__}")

    def publish(self) -> None:
        """Nothing to publish: reads see the counters."""

    def bind(self, job: Job) -> Callable[[], Any]:
        """``job`` as a call; the answer to a read is fixed now."""
        match job:
            case Read():
                pass
            case CopyState(transfer=transfer):
                copy = self._copies[transfer] = (tuple(self._adopted), self._moments, self._steps)
                found = StateCopy(self._steps, self._steps, _digests(*copy))
                return lambda: found
            case ReadState(transfer=transfer, number=number):
                part = self._part(self._copies[transfer], number)
                return lambda: part
            case DropState(transfer=transfer):
                self._copies.pop(transfer, None)
                return lambda: None
            case KeepPart():
                return self._keep(job)
            case PruneParts():
                return partial(keeper_of(self.keeper).prune, job)
            case _:
                return partial(self.compute, job)
        dtype = self._params.wire_up
        digest = _hash(self._name, self._steps, self._adopted[job.fragment])
        nbytes = wiretypes.nbytes(dtype, self._elements[job.fragment])
        payload = Payload(dtype=dtype, nbytes=nbytes, digest=digest)
        return lambda: payload

    def _keep(self, job: KeepPart) -> Callable[[], PartKept]:
        copy = (tuple(self._adopted), self._moments, self._steps)

        def read(fragment: int, name: str) -> Payload:
            return self._part(copy, STATE_KINDS * fragment + ARRAYS["learner"].index(name))

        return partial(
            keeper_of(self.keeper).keep,
            job,
            read,
            trained=copy[2],
            moments=copy[2],
            digests=_digests(*copy),
        )

    def _part(self, copy: tuple[tuple[str, ...], str, int], number: int) -> Payload:
        fragment, which = divmod(number, STATE_KINDS)
        digest = copy[1] if which else copy[0][fragment]
        return Payload(dtype="f32", nbytes=self._bytes[fragment], digest=digest)

    def cost_ns(self, job: Job) -> int:
        """Virtual duration of ``job`` on a chip that nothing slows."""
        return cost_ns(job, self._step_ns, self._bytes, self.costs)

    def _train(self) -> StepResult:
        self._steps += 1
        if self._pacing is None:
            return StepResult(self._tokens, 0, 0, self._step_ns)
        began_at_ns = self._pacing.begin()
        paced = self._pacing.end(began_at_ns)
        return StepResult(self._tokens, began_at_ns, paced.compute_ns, self._pacing.nominal_ns)


class ScriptedSyncer:
    """Merges digests. ``memory`` outlives the worker where the syncer's disk would."""

    tuning = Tuning()
    """As the worker with arrays has it."""

    def __init__(
        self,
        layout: Layout,
        params: DilocoParams,
        memory: Memory | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.costs = costs or Costs()
        self._quorum = params.quorum
        self._dtype = params.wire_down
        self._memory: Memory = {} if memory is None else memory
        self._bytes = [4 * n for n in layout.elements]
        self._nbytes = [wiretypes.nbytes(params.wire_down, n) for n in layout.elements]
        self._rules = [rule_name(layout, p, params.merge) for p in range(len(layout.fragments))]
        self._versions = [0] * len(layout.fragments)
        self.keeper: Keeper | None = None

    def compute(self, job: Job) -> Any:
        """Carry out a main-lane job."""
        return self.run(job)

    def bind(self, job: Job) -> Callable[[], Any]:
        """``job`` as a call; what a checkpoint holds is fixed now."""
        if isinstance(job, KeepPart):
            held = [self._payload(p) for p in range(len(self._versions))]
            return partial(keeper_of(self.keeper).keep, job, partial(_outer, held))
        if isinstance(job, SealSnapshot):
            return partial(keeper_of(self.keeper).seal, job)
        return partial(self.run, job)

    def run(self, job: Job) -> Any:
        """Carry out a job of a syncer."""
        match job:
            case Merge(fragment=fragment, version=version, inputs=inputs):
                if len(inputs) < self._quorum:
                    return MergeResult(None, {}, "", True, self._rules[fragment])
                self._need_space()
                parts = [(i.unit, i.weight, i.payload.digest) for i in inputs]
                self._versions[fragment] = version
                digest = self._memory[fragment, version] = _hash(fragment, version, parts)
                return MergeResult(self._payload(fragment), {}, digest, True, self._rules[fragment])
            case Restore(versions=versions):
                self._versions = list(versions)
                return None
            case Recommit(fragment=fragment, version=version):
                self._need_space()
                held = job.payload or self._payload(fragment)
                payload = msgspec.structs.replace(self._whole(fragment), digest=held.digest)
                self._versions[fragment] = version
                self._memory[fragment, version] = payload.digest
                return Recommitted(payload, payload.digest)
            case KeepPart() | SealSnapshot():
                return self.bind(job)()
            case ReadAll():
                return AllFragments(tuple(self._whole(p) for p in range(len(self._versions))))
        raise TypeError(f"not a job of the syncer: {type(job).__name__}")

    def cost_ns(self, job: Job) -> int:
        """Virtual duration of ``job``."""
        return cost_ns(job, 0, self._bytes, self.costs)

    def _need_space(self) -> None:
        if self.tuning.disk_full:
            raise no_space()

    def _payload(self, fragment: int) -> Payload:
        version = self._versions[fragment]
        digest = self._memory.get((fragment, version)) or _hash(fragment, version)
        return Payload(dtype=self._dtype, nbytes=self._nbytes[fragment], digest=digest)

    def _whole(self, fragment: int) -> Payload:
        payload = self._payload(fragment)
        if not payload.relative:
            return payload
        return msgspec.structs.replace(payload, dtype="f32", nbytes=self._bytes[fragment])


def _outer(held: Sequence[Payload], fragment: int, name: str) -> Payload | None:
    """A checkpoint's arrays of a syncer without any: the digest stands for theta and momentum."""
    return None if name == "sent" else msgspec.structs.replace(held[fragment], dtype="f32")
