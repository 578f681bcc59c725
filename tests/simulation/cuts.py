"""Watches a simulated run from above and judges its checkpoints apart from the product's code.

The watcher sees every message at both ends, so it knows which were on their way at a cut; nobody in
the run does. Identities of messages are compared: the simulator hands them over as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import harness.runner
from harness.compose import check, compose
from harness.events import AnyEvent, SnapshotComplete, TailEnded
from harness.fuzz.act import Ran
from harness.journal import JournalText
from harness.rundir import RunDir
from harness.runtimes.simulated import SimulatedRuntime
from harness.spec import read_table
from reports.build import analyse
from reports.history import fold
from reports.violations import Violation, judge
from targets.base import Received, Send, Work
from targets.diloco.checkpoints import Checkpoints
from targets.diloco.messages import KeepPart, Push, Report
from targets.diloco.target import DilocoTarget

SYNCER = "syncer"
NEAR = 300
"""Messages before a cut that are looked at: more than are ever on their way on a link."""
Place = tuple[int, int]
"""(number of the call, place in it): an order of everything in the run."""


class Run:
    """A run with its checkpoints, its messages, and everything one may want to ask of it."""

    def __init__(
        self,
        table: Mapping[str, Any],
        seed: int,
        folder: Path,
        patch: pytest.MonkeyPatch,
        earlier: Run | Path | None = None,
    ) -> None:
        draft = read_table({**table, "runtime": "simulated"}, "cut", "", gates={})
        checked = check(draft, seed)
        assert isinstance(checked.target, DilocoTarget)
        self.target = checked.target
        self.sent: dict[int, tuple[Place, str, Any]] = {}
        """Identity of a message to where it was sent, by whom, and the message itself."""
        self.received: dict[tuple[str, str], list[tuple[Place, Any]]] = {}
        """(By whom, from whom) to where each message was received, in order."""
        self.cuts: dict[tuple[str, int, int], Place] = {}
        """(unit, incarnation, marker) to where the unit made its cut."""
        self._calls = 0
        notes: list[str] = []
        if isinstance(earlier, Run):
            notes = self.target.resume_from(earlier.stores())
        elif earlier is not None:
            notes = self.target.resume(earlier)
        self.notes = notes
        with patch.context() as watched:
            sound = self.target.node
            watched.setattr(self.target, "node", lambda unit: self._watched(sound(unit), unit))
            folder.mkdir(exist_ok=True)
            experiment = compose(checked, run="cut", directory=folder)
            events: list[AnyEvent] = []
            pending: dict[str, str] = {}

            def observe(event: AnyEvent) -> None:
                events.append(event)
                if type(event) is TailEnded and isinstance(experiment.runtime, SimulatedRuntime):
                    pending.update(experiment.runtime.pending())

            harness.runner.run(experiment, RunDir(folder), observer=observe)
        self.ran = Ran(tuple(events), (folder / "journal.jsonl").read_bytes(), pending)
        self.history = fold(JournalText(self.ran.events, ()))
        self.analysis = analyse(self.history)

    def stores(self) -> dict[str, Checkpoints]:
        """Every unit's checkpoints."""
        return {u.name: self.target.parts(u.name) for u in self.target.units()}

    def of(self, kind: type, unit: str = "") -> list[Any]:
        """Events of a kind, and of a unit."""
        found = (e for e in self.ran.events if isinstance(e, kind))
        return [e for e in found if not unit or getattr(e, "unit", "") == unit]

    def violations(self) -> list[Violation]:
        """What the product's checks and this watcher find."""
        return [*judge(self.ran), *self.audit()]

    def audit(self) -> list[Violation]:
        """What the watcher alone finds."""
        found: list[Violation] = []
        for complete in self.of(SnapshotComplete):
            for name, life in complete.members.items():
                found += self._cut(complete, name, life)
        return found

    def in_flight(self, complete: SnapshotComplete, name: str) -> list[Any]:
        """Reports and pushes of ``name`` that crossed the cut, in the order of arrival."""
        own = self.cuts[SYNCER, complete.incarnation, complete.marker]
        theirs = self.cuts[name, complete.members[name], complete.marker]
        found = []
        for place, m in self.received.get((SYNCER, name), ()):
            if place > own and isinstance(m, Report | Push):
                if self.sent[id(m)][0] > theirs:
                    break  # links keep their order
                if m.incarnation == complete.members[name]:
                    found.append(m)
        return found

    def _cut(self, complete: SnapshotComplete, name: str, life: int) -> list[Violation]:
        marker = complete.marker
        own = self.cuts[SYNCER, complete.incarnation, marker]
        theirs = self.cuts.get((name, life, marker))
        if theirs is None:
            return [Violation("cut", f"{name} has no cut for {marker} and is a member")]
        found: list[Violation] = []
        for unit, sender in ((SYNCER, name), (name, SYNCER)):
            mine, other = (own, theirs) if unit == SYNCER else (theirs, own)
            early = [m for place, m in self.received.get((unit, sender), ()) if place < mine]
            for m in early[-NEAR:]:
                if self.sent[id(m)][0] > other and self._of(m, life, unit):
                    text = f"{unit} received {type(m).__name__} before its cut {marker}"
                    found.append(Violation("cut", f"{text}, {sender} sent it after its own"))
        if marker in self.target.parts(SYNCER).markers(sealed=True):
            _, recorded = self.target.parts(SYNCER).sealed(marker)
            got = [m for who, m in recorded if who == name]
            if got != self.in_flight(complete, name):
                text = f"snapshot {marker}: {len(got)} messages of {name} were recorded, "
                text += f"{len(self.in_flight(complete, name))} were in flight"
                found.append(Violation("in-flight", text))
        return found

    @staticmethod
    def _of(message: Any, life: int, receiver: str) -> bool:
        """Whether the message is of that life: others are not part of the cut."""
        return receiver != SYNCER or getattr(message, "incarnation", life) == life

    def _watched(self, node: Any, unit: str) -> Any:
        sound = node.handle

        def handle(event: Any, now_ns: int) -> list[Any]:
            self._calls += 1
            if isinstance(event, Received):
                # A learner cuts before it acts on the marker, the syncer after what led to the cut.
                place = (self._calls, -1 if unit == SYNCER else 1 << 30)
                pair = self.received.setdefault((unit, event.sender), [])
                pair.append((place, event.message))
            effects: list[Any] = sound(event, now_ns)
            for index, effect in enumerate(effects):
                if isinstance(effect, Send):
                    place = (self._calls, index)
                    # Broadcasts are one object for all; when it was sent is the same for all.
                    self.sent.setdefault(id(effect.message), (place, unit, effect.message))
                elif isinstance(effect, Work) and isinstance(effect.job, KeepPart):
                    job = effect.job
                    self.cuts[unit, job.incarnation, job.marker] = (self._calls, index)
            return effects

        node.handle = handle
        return node
