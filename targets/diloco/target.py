"""The Decoupled DiLoCo target: parameters checked, units described, nodes and workers made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from faults.base import Damage, Tuning
from harness.errors import SpecError
from harness.events import AnyEvent, Merged, UnitInfo
from targets import parameters
from targets.base import Node, UnitSpec, Worker
from targets.diloco import presets, resuming, trainers
from targets.diloco.checkpointing import Resuming
from targets.diloco.checkpoints import Checkpoints, FileCheckpoints, MemoryCheckpoints
from targets.diloco.keeping import Keeper
from targets.diloco.params import DilocoParams
from targets.diloco.resuming import Resumption
from targets.diloco.storage import MemoryStore
from targets.diloco.trainers.base import Layout
from targets.diloco.work import learner_worker, syncer_worker
from targets.live import Transport

SYNCER = "syncer"


def create(params: Mapping[str, Any], seed: int) -> DilocoTarget:
    """The target; raises ``harness.errors.SpecError`` that names every bad parameter."""
    return DilocoTarget(read_params(params), seed)


def params_schema() -> dict[str, Any]:
    """JSON schema of ``[target] params``, for editors."""
    return parameters.schema(DilocoParams)


def read_params(given: Mapping[str, Any]) -> DilocoParams:
    """``given`` with defaults filled in; raises ``SpecError`` with all mistakes at once."""
    expanded, conflicts = presets.expand(given)
    found = parameters.read(DilocoParams, expanded)
    problems = conflicts + found.problems + found.about(found.value.problems())
    if not found.wrong & {"trainer", "model", "data", "scripted_elements"}:
        problems += found.about(_of_trainer(found.value))
    if problems:
        raise SpecError("target.params", problems)
    return found.value


def _of_trainer(params: DilocoParams) -> list[str]:
    """What the trainer and the parameter layout object to."""
    module = trainers.load(params.trainer)
    problems = module.problems(params)
    if not problems:
        try:
            Layout.of(module.tensors(params), params.fragments)
        except ValueError as error:
            problems.append(str(error))
    return problems


class DilocoTarget:
    """Implements ``targets.base.Target``. Nodes and workers are for the simulated runtime."""

    name = "diloco"

    def __init__(self, checked: DilocoParams, seed: int) -> None:
        self.checked = checked
        self.seed = seed
        self.params: Mapping[str, Any] = parameters.plain(checked)
        self._learners = [checked.learner_name(i) for i in range(checked.learners)]
        # What a simulated syncer's disk keeps of its arrays between two lives.
        self._store = MemoryStore()
        self._memory: dict[tuple[int, int], str] = {}
        self._parts: dict[str, MemoryCheckpoints] = {}
        """What simulated units keep of checkpoints."""
        self._resumption: Resumption | None = None
        self._earlier = Path()

    @cached_property
    def layout(self) -> Layout:
        """The parameter tensors and their fragments."""
        module = trainers.load(self.checked.trainer)
        return Layout.of(module.tensors(self.checked), self.checked.fragments)

    @cached_property
    def layout_digest(self) -> str:
        """What every ``Hello`` must carry."""
        return self.layout.digest(self.seed)

    def units(self) -> Sequence[UnitSpec]:
        """The syncer, then the learners, each of which dials the syncer, and others to recover."""
        syncer = UnitSpec(
            UnitInfo(name=SYNCER, role="syncer"),
            config=self._told(SYNCER),
            traits=frozenset({"durable", "link"}),
        )
        return [syncer, *(self._learner(i) for i in range(self.checked.learners))]

    def _learner(self, index: int) -> UnitSpec:
        params = self.checked
        info = UnitInfo(
            name=params.learner_name(index),
            role="learner",
            group=params.group(index),
            speed=params.speed(index),
            tokens_per_step=trainers.load(params.trainer).tokens_per_step(params, index),
            step_time_ns=params.step_ns(index),
        )
        donors = params.donors(index)
        return UnitSpec(
            info,
            links=(SYNCER, *donors),
            on_demand=frozenset(donors),
            config={"index": index, **self._told(info.name)},
            traits=frozenset({"steps", "updates", "link"}),
        )

    def fragments(self) -> tuple[int, ...]:
        """Elements in each fragment."""
        return self.layout.elements

    def node(self, unit: str) -> Node:
        """A fresh node; raises ``KeyError`` for a name that is none of ours."""
        from targets.diloco.learner import Learner
        from targets.diloco.syncer import Syncer

        earlier = self._resumption
        if unit == SYNCER:
            seam = earlier.seam() if earlier is not None else None
            elements = self.layout.elements
            return Syncer(SYNCER, self.checked, self._learners, self.layout_digest, elements, seam)
        donors = self.checked.donors(self._index(unit))
        part = earlier.learners.get(unit) if earlier is not None else None
        resuming = Resuming(part) if part is not None else None
        return Learner(
            unit,
            self.checked,
            SYNCER,
            self.layout_digest,
            donors,
            resuming=resuming,
            lives_before=self._lives_before(unit),
        )

    def worker(self, unit: str) -> Worker:
        """A fresh worker; the syncer's finds what earlier lives of it made durable."""
        keeper = Keeper(self.parts(unit), unit, "learner", "simulated", self.layout_digest)
        if unit == SYNCER:
            self._take_over()
            worker: Any = syncer_worker(
                self.checked, self.seed, store=self._store, memory=self._memory
            )
            worker.keeper = replace(keeper, role="syncer")
            return worker  # type: ignore[no-any-return]
        index = self._index(unit)
        self._lives[unit] = self._lives.get(unit, 0) + 1
        life = self._lives[unit] + self._lives_before(unit)
        worker = learner_worker(self.checked, index, self.seed, life=life)
        worker.keeper = keeper
        return worker  # type: ignore[no-any-return]

    def cautions(self) -> list[str]:
        """What a reader of the run should know about its parameters, one sentence each."""
        return self.checked.cautions()

    # --- checkpoints ----------------------------------------------------------------------------

    def parts(self, unit: str) -> MemoryCheckpoints:
        """Where a simulated unit keeps its parts of checkpoints."""
        return self._parts.setdefault(unit, MemoryCheckpoints())

    def keep(self, directory: Path) -> None:
        """Write what simulated units kept of checkpoints below the run ``directory``, as real
        units do while they run. Raises ``OSError``."""
        for unit, parts in self._parts.items():
            if parts.markers():
                parts.write(FileCheckpoints(directory / resuming.FOLDER / unit))

    def resume(self, directory: Path) -> list[str]:
        """Go on from the newest complete checkpoint of the run in ``directory``; returns what is
        worth knowing about it. Raises ``harness.errors.SpecError`` naming every reason against."""
        self._earlier = directory
        if told := resuming.params_of(directory):
            problems = resuming.changed(read_params(told), self.checked)
            if problems:
                raise SpecError("resume", problems)
        return self.resume_from(resuming.file_stores(directory))

    def resume_from(self, stores: Mapping[str, Checkpoints]) -> list[str]:
        """As :meth:`resume`, from each unit's checkpoints."""
        try:
            found = resuming.find(dict(stores), SYNCER, self._learners, self.layout_digest)
        except resuming.CannotResume as error:
            raise SpecError("resume", error.problems) from error
        self._resumption = found
        # Every simulated run has the same id; which one it was, its seed says: ours, or its parts
        # would not fit.
        same_id = found.run == "simulated"
        which = f"the simulated run with seed {self.seed}" if same_id else f"run {found.run}"
        return [f"goes on from global step {found.marker} of {which}", *found.notes]

    def _take_over(self) -> None:
        """The syncer's first life finds the earlier run's outer state on its disk."""
        found, first = self._resumption, SYNCER not in self._lives
        self._lives[SYNCER] = 1
        if found is None or not first:
            return
        if self.checked.trainer == "scripted":
            resuming.fill_memory(self._memory, found.syncer)
        else:
            resuming.fill_store(self._store, found.syncer)

    def _told(self, unit: str) -> dict[str, Any]:
        if self._resumption is None:
            return {}
        return {"resume": resuming.unit_config(self._resumption, self._earlier, unit)}

    def _lives_before(self, unit: str) -> int:
        return 0 if self._resumption is None else self._resumption.lives.get(unit, 0)

    @cached_property
    def _lives(self) -> dict[str, int]:
        return {}

    def damage(self, unit: str, how: Damage) -> str:
        """Damage the arrays that a simulated unit left on its disk; what was done, if anything.

        Where there are no arrays (``scripted``) the node's own values are all there is.
        """
        if unit != SYNCER:
            return ""
        if how == "lose":
            self._memory.clear()
            self._store.clear()
            self._parts.pop(unit, None)
            return "every fragment lost"
        return self._store.flip() if how == "flip" else ""

    def tampered(self, transport: Transport, tuning: Callable[[], Tuning]) -> Transport:
        """``transport`` as a simulated unit uses it whose updates are tampered with."""
        from targets.diloco.tamper import TamperedTransport

        return TamperedTransport(transport, tuning)

    def module(self) -> str:
        """What a real unit runs."""
        return "targets.diloco.serve"

    def steady(self, absent: Collection[str] = ()) -> SteadyMerges:
        """Steady once every learner took part in a merge of every fragment."""
        present = [name for name in self._learners if name not in absent]
        return SteadyMerges(present, self.checked.fragments)

    def _index(self, unit: str) -> int:
        try:
            return self._learners.index(unit)
        except ValueError:
            raise KeyError(f"{unit} is no unit of this target") from None


class SteadyMerges:
    """Implements ``targets.base.SteadyDetector``: one full cycle of fragments from everybody."""

    def __init__(self, learners: Sequence[str], fragments: int) -> None:
        self._missing = {name: set(range(fragments)) for name in learners}
        self._fragments = fragments

    def observe(self, event: AnyEvent) -> None:
        """Only merges matter."""
        if isinstance(event, Merged):
            for contribution in event.contributions:
                self._missing.get(contribution.unit, set()).discard(event.fragment)

    def verdict(self) -> tuple[bool, str]:
        """(reached, who is still missing from how many fragments)."""
        late = {name: len(left) for name, left in self._missing.items() if left}
        if not late:
            return True, f"every learner was merged into all {self._fragments} fragments"
        listed = ", ".join(f"{name} ({left})" for name, left in late.items())
        return False, f"learners not yet merged into every fragment (how many lack): {listed}"
