"""Short ways to write an experiment of the simulated cluster and to look at its outcome."""

from __future__ import annotations

from typing import Any, TypeVar

from harness.events import AnyEvent, Event
from harness.fuzz.act import Ran, perform
from harness.journal import JournalText
from reports.build import Analysis, analyse
from reports.history import fold
from reports.violations import Violation, judge

E = TypeVar("E", bound=Event)

PARAMS: dict[str, Any] = {
    "learners": 4,
    "quorum": 1,
    "grace": True,
    "fragments": 4,
    "sync_every": 4,
    "trainer": "scripted",
    "step_time_s": 0.2,
}


def fault(kind: str, where: str, at_s: float, for_s: float | None = None, **own: Any) -> Any:
    """One ``[[fault]]`` table."""
    table = {"kind": kind, "where": [where], "at_s": at_s, **own}
    return table if for_s is None else {**table, "for_s": for_s}


def experiment(
    *faults: Any,
    duration_s: float = 30.0,
    quiet_tail_s: float = 20.0,
    options: dict[str, Any] | None = None,
    **params: Any,
) -> dict[str, Any]:
    """A table of the simulated runtime."""
    return {
        "title": "a scenario",
        "duration_s": duration_s,
        "quiet_tail_s": quiet_tail_s,
        "target": {"name": "diloco", "params": {**PARAMS, **params}},
        "runtime_options": options or {},
        "fault": list(faults),
    }


class Story:
    """A run with everything one may want to ask of it."""

    def __init__(self, table: dict[str, Any], seed: int = 1) -> None:
        self.ran: Ran = perform(table, seed)
        self.journal = JournalText(self.ran.events, ())
        self.analysis: Analysis = analyse(fold(self.journal))

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        return self.ran.events

    def of(self, kind: type[E], unit: str = "") -> list[E]:
        return [
            e
            for e in self.events
            if isinstance(e, kind) and (not unit or getattr(e, "unit", "") == unit)
        ]

    def violations(self) -> list[Violation]:
        return judge(self.ran)

    def when(self, fault_id: str, kind: type[Event]) -> int:
        """Instant of the fault's event of that kind."""
        found = [e.t_ns for e in self.of(kind) if getattr(e, "fault", "") == fault_id]
        assert found, f"fault {fault_id} has no {kind.__name__}"
        return found[0]
