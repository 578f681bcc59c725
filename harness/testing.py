"""What the pytest plugin's fixtures hand to tests. Composition root, loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from harness import catalogue
from harness.commands import control
from harness.compose import Checked, Experiment, candidates, check, compose
from harness.draws import with_seed
from harness.errors import ChaosError, SpecError
from harness.events import AnyEvent, FaultEnded, FaultExecuted, Merged, RunEnded
from harness.journal import Journal
from harness.plan import Planned, make
from harness.plugin import need, option
from harness.rundir import RunDir, new_run_id
from harness.runner import Acts, StopFlag, run, started
from harness.runtimes.base import opened
from harness.spec import NS, FaultPart, read_table
from reports.gate import GATES
from reports.history import History, read_history
from reports.write import write_reports

CLUSTER_SPEC: dict[str, Any] = {
    "title": "driven by a test",
    "duration_s": 600,
    "quiet_tail_s": 3,
    "target": {
        "name": "diloco",
        "params": {"learners": 3, "fragments": 4, "sync_every": 4, "step_time_s": 0.1},
    },
}
"""What ``chaos_cluster`` starts when the marker names no spec."""


@dataclass
class ChaosRun:
    """A finished run."""

    directory: Path
    report: Any
    """The report value; its fields are those of report.json."""

    @cached_property
    def history(self) -> History:
        """Typed per-unit timelines of the run's journal."""
        return read_history(self.directory)

    @property
    def outcome(self) -> str:
        """The verdict's outcome: passed, deviated, no-effect, ..."""
        return str(self.report.verdict.outcome)

    def properties(self) -> dict[str, Any]:
        """What goes out as properties of the test."""
        report = self.report
        return {
            "chaos.outcome": self.outcome,
            "chaos.conclusive": report.verdict.conclusive,
            "chaos.seed": report.run.seed,
            "chaos.runtime": report.run.runtime,
            "chaos.goodput_ratio": report.goodput.ratio,
            "chaos.merged_goodput_ratio": report.goodput.merged_ratio,
            "chaos.uptime_ratio": report.goodput.uptime_ratio,
            "chaos.self_healing_seconds.max": report.healing_summary.max_s,
            "chaos.faults.planned": report.faults.planned,
            "chaos.faults.executed": report.faults.executed,
            "chaos.faults.effective": report.faults.effective,
            "chaos.report_path": str(self.directory / "report.html"),
        }

    def demand_pass(self) -> None:
        """Fail for a conclusive failure, raise an error for anything inconclusive."""
        if self.outcome == "passed":
            return
        text = "\n".join([f"chaos run {self.outcome}", *self.report.verdict.reasons])
        text += f"\nreport: {self.directory / 'report.html'}\nrepeat: {self.report.run.repeat}"
        if self.outcome == "deviated":
            pytest.fail(text, pytrace=False)
        raise InconclusiveError(text)


class InconclusiveError(Exception):
    """The experiment proved nothing, so the test that needs it can neither pass nor fail."""


def validate_marker(marker: pytest.Mark, base: Path) -> None:
    """Raise :class:`SpecError` with all that is wrong with a ``chaos`` marker."""
    unknown = set(marker.kwargs) - {"spec", "runtime", "seed", "params"}
    if unknown:
        raise SpecError("chaos marker", [f"unknown argument {', '.join(sorted(unknown))}"])
    given = marker.kwargs.get("seed")
    given = given if isinstance(given, int) else None
    with_seed(given, lambda seed: _checked(marker, base, seed), first=0)


def _checked(marker: pytest.Mark | None, base: Path, seed: int) -> Checked:
    arguments = dict(marker.kwargs) if marker else {}
    spec = arguments.get("spec") or (marker.args[0] if marker and marker.args else None)
    if spec is None:
        draft = read_table(CLUSTER_SPEC, "interactive", "", gates=GATES)
    else:
        draft = catalogue.find(str(spec), gates=GATES, base=base)
    return check(draft, seed, arguments.get("params"))


def _prepared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Experiment, RunDir]:
    marker = request.node.get_closest_marker("chaos")
    arguments = dict(marker.kwargs) if marker else {}
    runtime = arguments.get("runtime") or option(request.config, "chaos_runtime") or None
    given = arguments.get("seed")
    if given is None:
        given = option(request.config, "chaos_seed") or None
    base = Path(request.path).parent
    checked = with_seed(
        None if given is None else int(given), lambda seed: _checked(marker, base, seed)
    )
    if (runtime or checked.spec.head.runtime) == "docker":
        need(request, "docker")
    run_id = new_run_id()
    root = option(request.config, "chaos_report_dir")
    directory = (Path(root) if root else tmp_path) / f"{checked.spec.name}-{run_id}"
    experiment = compose(checked, run=run_id, directory=directory, runtime=runtime)
    return experiment, RunDir.create(directory, checked.spec, run_id, checked.seed)


def finished_run(request: pytest.FixtureRequest, tmp_path: Path) -> ChaosRun:
    """Run the test's experiment from start to end."""
    experiment, rundir = _prepared(request, tmp_path)
    experiment = _with_control(request, experiment, rundir)
    run(experiment, rundir)
    return ChaosRun(rundir.path, write_reports(rundir.path))


def _with_control(
    request: pytest.FixtureRequest, experiment: Experiment, rundir: RunDir
) -> Experiment:
    """The experiment with what its control measured, which is run first."""
    checked = Checked(experiment.spec, experiment.target, experiment.planned, experiment.seed)
    marker = request.node.get_closest_marker("chaos")
    overrides = dict(marker.kwargs).get("params") if marker else None
    wanted = control.prepare(checked, base=Path(request.path).parent, overrides=overrides)
    if wanted is None:
        return experiment
    folder = rundir.path / control.FOLDER
    control.carry_out(wanted, folder, run, runtime=experiment.runtime.name)
    return replace(experiment, control=control.measured(folder))


@dataclass
class ChaosCluster:
    """A live cluster in steady state, broken by the test itself."""

    experiment: Experiment
    directory: Path
    acts: Acts
    events: list[AnyEvent]
    """Everything journalled so far."""
    _count: int = 0
    _closed: list[ChaosRun] = field(default_factory=list)

    @property
    def units(self) -> Sequence[str]:
        """Names of all units, syncer first."""
        return [u.name for u in self.experiment.target.units()]

    def run_for(self, seconds: float) -> None:
        """Let the cluster train on for a while (virtual time in the simulated runtime)."""
        end_ns = self.acts.now() + round(seconds * NS)
        while self.acts.now() < end_ns:
            self.acts.poll(end_ns)

    def wait_for(
        self, condition: Callable[[], bool], within_s: float, what: str, hint: str = ""
    ) -> None:
        """Poll until ``condition`` holds; raises ``AssertionError`` at the deadline, saying what
        was waited for and what was seen last."""
        end_ns = self.acts.now() + round(within_s * NS)
        while not condition():
            if self.acts.now() >= end_ns:
                last = self.events[-1] if self.events else "nothing at all"
                raise AssertionError(
                    f"waited {within_s:g} s for {what}; last event: {last}"
                    + (f". Hint: {hint}" if hint else "")
                )
            self.acts.poll(end_ns)

    def inject(
        self, kind: str, *, where: Any = "one", for_s: float | None = None, **params: Any
    ) -> list[Planned]:
        """Begin a fault now; returns what was planned, one entry for each victim."""
        self._count += 1
        raw = {"kind": kind, "where": where, "at_s": 0, **params}
        if for_s is not None:
            raw["for_s"] = for_s
        draft = read_table({**CLUSTER_SPEC, "fault": [raw]}, "fault", "", gates=GATES)
        part = draft.faults[0]
        if draft.problems or part is None:
            raise SpecError("chaos_cluster.fault", draft.problems)
        items = self._planned(part)
        for item in items:
            self.acts.begin(item, self.acts.now())
        return items

    @contextmanager
    def fault(self, kind: str, *, where: Any = "one", **params: Any) -> Iterator[tuple[str, ...]]:
        """A fault for as long as the block lasts; gives the victims' names."""
        items = self.inject(kind, where=where, **params)
        try:
            yield tuple(i.unit for i in items)
        finally:
            for item in reversed(items):
                self.acts.end(item)

    def _planned(self, part: FaultPart) -> list[Planned]:
        from dataclasses import replace

        experiment = self.experiment
        units = candidates(experiment.target)
        items, problems = make([part], units, experiment.seed + self._count, 600.0)
        if problems:
            raise SpecError("chaos_cluster.fault", problems)
        return [replace(i, fault=i.fault.replace("f1", f"f{self._count}", 1)) for i in items]

    def expect_recovery(self, within_s: float, units: Sequence[str] | None = None) -> None:
        """Wait until every unit that was hit (or each of ``units``) contributes to a merge again.

        Counts from the last thing that was done to the unit.
        """
        since = self._last_touched()
        wanted = {u: since.get(u, 0) for u in (units or since)}
        if not wanted:
            raise AssertionError("no fault was executed, so there is nothing to recover from")
        self.wait_for(
            lambda: not self._unheard(wanted),
            within_s,
            f"{', '.join(sorted(wanted))} to contribute again",
            "look at the unit's log in the run directory, below units/",
        )

    def _last_touched(self) -> dict[str, int]:
        out: dict[str, int] = {}
        for event in self.events:
            if isinstance(event, FaultExecuted | FaultEnded) and event.unit != "syncer":
                out[event.unit] = event.t_ns
        return out

    def _unheard(self, wanted: Mapping[str, int]) -> set[str]:
        heard = {
            c.unit
            for event in self.events
            if isinstance(event, Merged)
            for c in event.contributions
            if c.unit in wanted and event.t_ns > wanted[c.unit]
        }
        return set(wanted) - heard

    def finished(self) -> ChaosRun:
        """The finished run; only after the fixture's block has ended."""
        if not self._closed:
            self._closed.append(ChaosRun(self.directory, write_reports(self.directory)))
        return self._closed[0]


@contextmanager
def live_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChaosCluster]:
    """Start the test's cluster, reach steady state, hand it over, heal, and close the journal."""
    experiment, rundir = _prepared(request, tmp_path)
    events: list[AnyEvent] = []
    with Journal(rundir.journal) as journal:
        acts = Acts(experiment, journal, events.append, StopFlag())
        acts.log(started(experiment))
        status, why = "completed", ""
        try:
            with opened(experiment.runtime, experiment.target):
                if not acts.baseline():
                    raise InconclusiveError("the cluster did not reach its steady state")
                acts.plan.begin(acts.now())
                try:
                    yield ChaosCluster(experiment, rundir.path, acts, events)
                    acts.tail()
                finally:
                    acts.heal()
        except BaseException as error:
            status, why = "error", f"{type(error).__name__}: {error}"
            if isinstance(error, ChaosError):
                acts.failed("chaos_cluster", str(error))
            raise
        finally:
            acts.close()
            acts.log(RunEnded(t_ns=acts.now(), status=status, why=why))
