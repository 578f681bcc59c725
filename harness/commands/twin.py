"""``diloco-chaos twin SPEC``: the same experiment and seed live and simulated, side by side.

The live run comes first. How long its steps, restarts, imports and transfers took is read from its
journal and given to the simulated runtime, which then runs the same experiment with the same seed
and the trainer that does no arithmetic. The two must agree on goodput within 3 points, on who was
hit, and on the verdict.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from harness import catalogue
from harness.commands.progress import Progress
from harness.commands.run import parse_settings, prepare
from harness.commands.together import known_run
from harness.compose import Checked, check, compose
from harness.errors import SpecError
from harness.journal import read_journal
from harness.rundir import RunDir, new_run_id
from harness.runner import run, stop_on_signals
from harness.sim.options import SimOptions
from reports.compare import as_text, compare
from reports.gate import GATES
from reports.history import JOURNAL, read_history
from reports.measured import Measured, measure
from reports.schema import Report
from reports.twin import judge
from reports.write import write_reports

LIVE_RUNTIMES = ("process", "docker")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("spec", help="a spec file, or the name of a built-in experiment")
    parser.add_argument("--seed", type=int, help="of both runs")
    parser.add_argument("--runtime", choices=LIVE_RUNTIMES, default="process", help="the live one")
    parser.add_argument(
        "--live", type=Path, metavar="DIR", help="a finished live run of SPEC to take instead"
    )
    parser.add_argument("--out", type=Path, help="folder for both (default: runs/NAME-twin-RUN)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a target parameter"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def execute(options: argparse.Namespace) -> int:
    """Exits 0 when the twins agree, 1 when they do not; a run that proves nothing decides nothing,
    and its own exit status is passed on."""
    out = options.out or Path("runs") / f"{Path(options.spec).stem}-twin-{new_run_id()}"
    quiet = options.quiet or options.json
    if options.live is None:
        checked = prepare(options.spec, options.seed, overrides=parse_settings(options.set))
        live_dir = out / "live"
        live = _perform(checked, options.runtime, live_dir, quiet=quiet)
    else:
        live_dir = options.live
        known_run(live_dir)
        live = write_reports(live_dir)
    if not _proves("live", live):
        return live.verdict.exit_status
    measured = measured_in(live_dir, live)
    twin = simulated_twin(options.spec, live_dir, measured)
    simulated = _perform(twin, "simulated", out / "simulated", quiet=True)
    if not _proves("simulated", simulated):
        return simulated.verdict.exit_status
    verdict = judge(live, simulated)
    theirs = measured_in(out / "simulated", simulated)
    if options.json:
        value = {"ok": verdict.ok, "twin": verdict, "measured": measured, "simulated": theirs}
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    else:
        said = [*table(measured, theirs), "", as_text(compare(live, simulated)).rstrip()]
        sys.stdout.write("\n".join([*said, f"runs: {live_dir}, {out / 'simulated'}", ""]))
    return 0 if verdict.ok else 1


def _proves(which: str, report: Report) -> bool:
    if report.verdict.exit_status in (0, 1):
        return True
    why = "; ".join(report.verdict.reasons)
    sys.stderr.write(f"the {which} run proves nothing: {report.verdict.outcome}: {why}\n")
    return False


def measured_in(directory: Path, report: Report) -> Measured:
    """The figures of a run directory."""
    detected = [h.detect_s for h in report.healing if h.counts and h.detect_s is not None]
    return measure(read_journal(directory / JOURNAL).events, detected)


def simulated_twin(spec: str, live_dir: Path, measured: Measured) -> Checked:
    """``spec`` with the live run's seed, parameters and durations, for the simulated runtime.

    Raises :class:`SpecError` when the run is none of that experiment.
    """
    history = read_history(live_dir)
    draft = catalogue.find(spec, gates=GATES)
    if draft.name != history.run.experiment or draft.head is None:
        raise SpecError(
            "twin", [f"{live_dir} is a run of {history.run.experiment!r}, not of {draft.name!r}"]
        )
    # The trainer without arithmetic has the same number of parameters, so links carry as much.
    params = {k: v for k, v in history.run.params.items() if v is not None}
    params |= {"trainer": "scripted", "scripted_elements": sum(history.run.fragments)}
    head = draft.head.model_copy(
        update={"runtime": "simulated", "runtime_options": _told(sim_options(measured))}
    )
    return check(replace(draft, head=head), history.run.seed, params)


def sim_options(measured: Measured) -> SimOptions:
    """The simulated runtime's options; what the run had no sample of keeps its default."""
    # Live links are healed of a stall by making them anew.
    found: dict[str, Any] = {"stall_heals": "recreate"}

    def always(option: str, *names: str) -> None:
        values = [ms for name in names if (ms := measured.ms(name)) is not None]
        if values:
            found[option] = (values[0], values[0])

    always("restart_ms", "restart")
    always("spawn_ms", "spawn")
    always("import_ms", "import")
    always("cold_compile_ms", "first compile")
    always("compile_ms", "compile", "first compile")
    always("syncer_ready_ms", "syncer boot")
    round_trip, join = measured.ms("round trip"), measured.ms("join")
    late, gap = measured.ms("step late"), measured.ms("step gap")
    if round_trip is not None:
        found["latency_ms"] = (round_trip / 2, round_trip / 2)
    if join is not None:
        # Dialling, the greeting and the transfer itself take two round trips on the link. Waiting
        # for a fragment to come by is left in: less than a step, once for each life.
        found["load_ms"] = max(0.0, join - 2 * (round_trip or 0.0))
    if late is not None:
        # Drawn evenly from zero to this, so the mean is half of it.
        found["step_jitter_ms"] = max(0.0, 2 * late)
    if gap is not None:
        found["step_gap_ms"] = gap
    return SimOptions(**found)


def _told(options: SimOptions) -> dict[str, Any]:
    """The options that differ from the defaults, as a spec would give them."""
    plain = SimOptions()
    names = [n for n in options.__struct_fields__ if getattr(options, n) != getattr(plain, n)]
    return {name: msgspec.to_builtins(getattr(options, name)) for name in names}


def table(live: Measured, simulated: Measured) -> list[str]:
    """The figures of both runs beside each other."""
    rows = [f"{'measured, median':<16} {'live':>12} {'':>7} {'simulated':>12}"]
    for one, other in zip(live.figures, simulated.figures, strict=True):
        rows.append(
            f"{one.name:<16} {_ms(one.ms):>12} {'n=' + str(one.samples):>7} {_ms(other.ms):>12}"
            f"   {one.about}"
        )
    return rows


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def _perform(checked: Checked, runtime: str, out: Path, *, quiet: bool) -> Report:
    run_id = new_run_id()
    experiment = compose(checked, run=run_id, directory=out, runtime=runtime)
    rundir = RunDir.create(out, checked.spec, run_id, checked.seed)
    if not quiet:
        sys.stdout.write(f"seed {checked.seed}, run {run_id}, runtime {runtime}\n")
    with stop_on_signals() as stop, Progress(experiment, sys.stdout, quiet=quiet) as progress:
        run(experiment, rundir, observer=progress.observe, stop=stop)
    return write_reports(rundir.path)
