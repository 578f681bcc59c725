"""``diloco-chaos run SPEC|NAME``: the main job."""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import catalogue, toml
from harness import suite as suites
from harness.arrivals import spared
from harness.commands import control, members, resuming, seeds, together
from harness.commands import replay as replaying
from harness.commands.progress import Progress
from harness.compose import Checked, Experiment, candidates, cautions, check, compose
from harness.draws import with_seed
from harness.errors import SpecError
from harness.rundir import RunDir, new_run_id
from harness.runner import run, stop_on_signals
from harness.runtimes import RUNTIMES
from harness.runtimes.base import RunContext, Runtime
from harness.suite import Suite
from reports.gate import GATES
from reports.schema import Report, to_json
from reports.text import terminal
from reports.together import TOGETHER
from reports.write import write_reports


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("spec", help="a spec file, or the name of a built-in experiment or suite")
    parser.add_argument("--runtime", choices=list(RUNTIMES), help="overrides the spec's runtime")
    parser.add_argument("--seed", type=int, help="repeats a run's random draws")
    parser.add_argument("--out", type=Path, help="run directory (default: runs/NAME-RUN)")
    parser.add_argument(
        "--attach", metavar="PROJECT", help="inject into a standing docker compose project"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a target parameter, for example --set learners=8 (value as in TOML)",
    )
    parser.add_argument(
        "--control",
        type=Path,
        metavar="DIR",
        help="compare losses with the finished run there, instead of running the spec's control",
    )
    parser.add_argument(
        "--seeds", metavar="1,2,3", help="run every experiment of a suite with each of these"
    )
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=1,
        metavar="N",
        help="simulated runs of a suite with seeds that go on at a time (default: 1)",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on from the newest complete checkpoint of the run there, with its seed",
    )
    parser.add_argument(
        "--replay", action="store_true", help="replay the run's tape afterwards, for the report"
    )
    parser.add_argument("--json", action="store_true", help="print report.json, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _jobs(given: str) -> int:
    # Not int(): argparse would call 0 and -3 fine, and they ran one at a time without a word.
    if not (given.isascii() and given.isdigit() and int(given) >= 1):
        raise argparse.ArgumentTypeError(f"{given!r} is no whole number of 1 or more")
    return int(given)


def execute(options: argparse.Namespace) -> int:
    """Run the experiment or suite; the exit status is the verdict's."""
    suite = suites.find(options.spec, TOGETHER)
    if suite is None and options.seeds is not None:
        raise SpecError("--seeds", [f"{options.spec} is no suite: use --seed for one experiment"])
    if suite is not None and (suite.seeds or options.seeds is not None):
        return seeds.execute(suite, options, one)
    if options.jobs > 1:
        raise SpecError("--jobs", [f"{options.spec} has no seeds, so one run goes on at a time"])
    if suite is not None:
        return _together(suite, options)
    report, out = _one(options)
    if options.json:
        sys.stdout.write(to_json(report).decode())
    else:
        sys.stdout.write(terminal(report, str(out / "report.html")) + "\n")
    return report.verdict.exit_status


def _together(suite: Suite, options: argparse.Namespace) -> int:
    """Every experiment of the suite with the same seed, then their comparison."""
    given = suite.seed if options.seed is None else options.seed
    checked = with_seed(given, lambda drawn: members.checked(suite, options, drawn))
    seed = next(iter(checked.values())).seed
    out = options.out or Path("runs") / f"{suite.name}-{new_run_id()}"
    say = sys.stderr if options.json else sys.stdout
    last = 0

    def carry(spec: str, directory: Path) -> int:
        nonlocal last
        given = {
            **vars(options),
            "spec": together.member(suite, spec),
            "seed": seed,
            "out": directory,
        }
        kept = together.controlling(suite, together.member(suite, spec))
        given["control"] = None if kept is None else out / kept
        earlier = resuming.member(suite, given["spec"])
        given["resume"] = None if earlier is None else out / earlier
        report, place = _one(argparse.Namespace(**given))
        print(terminal(report, str(place / "report.html")), file=say, flush=True)
        last = report.verdict.exit_status
        return last

    found = together.carry_out(suite, out, carry)
    if found is None:
        return last
    if options.json:
        sys.stdout.write(together.as_json(suite, found).decode())
    else:
        sys.stdout.write(together.terminal(suite, found, out))
    return found.status


def one(options: argparse.Namespace) -> Report:
    """One experiment; its report."""
    return _one(options)[0]


def _one(options: argparse.Namespace) -> tuple[Report, Path]:
    """One experiment: its report, and the directory that holds it."""
    earlier = resuming.directory(options.spec, options.resume)
    if options.seed is None:
        options = argparse.Namespace(**{**vars(options), "seed": resuming.seed_of(earlier)})
    checked = _checked(options)
    if options.replay:
        replaying.possible(checked.target, earlier)
    wanted = _control(options, checked)
    named = None if options.control is None else control.named(options.control, checked)
    run_id = new_run_id()
    out = options.out or Path("runs") / f"{checked.spec.name}-{run_id}"
    with resuming.seed_told(earlier, checked.seed):
        experiment = compose(
            checked,
            run=run_id,
            directory=out,
            runtime=options.runtime,
            make_runtime=_attached(options.attach),
            given=options.spec,
            repeat_with=repeated(options),
            resume=earlier,
        )
    rundir = RunDir.create(out, checked.spec, run_id, checked.seed)
    say = sys.stderr if options.json else sys.stdout
    print(
        f"seed {checked.seed}, run {run_id}\nrepeat with: {experiment.repeat}",
        file=say,
        flush=True,
    )

    told = [*cautions(checked.target), *spared(checked.spec.faults, candidates(checked.target))]
    for note in told:
        print(f"note: {note}", file=say, flush=True)

    def carry(experiment: Experiment, rundir: RunDir) -> None:
        with stop_on_signals() as stop, Progress(experiment, say, quiet=options.quiet) as progress:
            run(experiment, rundir, observer=progress.observe, stop=stop)

    if wanted is not None:
        folder = out / control.FOLDER
        print(f"control: {wanted.spec.name}, in {folder}", file=say, flush=True)
        found = control.carry_out(wanted, folder, carry, runtime=options.runtime)
        if found.verdict.exit_status in together.STOPPED:
            return found, folder
        experiment = replace(experiment, control=control.measured(folder))
    elif named is not None:
        experiment = replace(experiment, control=named)
    carry(experiment, rundir)
    report = write_reports(rundir.path)  # before a replay, which may take long or be interrupted
    if options.replay and report.verdict.exit_status not in together.STOPPED:
        report = replaying.afterwards(rundir.path, quiet=options.quiet or options.json)
    return report, rundir.path


def _control(options: argparse.Namespace, checked: Checked) -> Checked | None:
    """The control that has to be run first, if any."""
    if options.control is not None or not checked.spec.head.control:
        return None
    if options.attach is not None:
        raise SpecError("control", ["a standing cluster has none: name a finished run, --control"])
    base = Path(options.spec).parent if Path(options.spec).is_file() else None
    return control.prepare(checked, base=base, overrides=parse_settings(options.set))


def _checked(options: argparse.Namespace) -> Checked:
    """The spec, with what was overridden; a standing cluster says itself what it is."""
    settings = parse_settings(options.set)
    if options.attach is None:
        return prepare(options.spec, options.seed, overrides=settings)
    from harness.runtimes.compose_project import discover
    from harness.runtimes.docker_engine import Engine

    engine = Engine(None)
    try:
        project = discover(engine, options.attach)
    finally:
        engine.close()
    overrides = {**project.params, **settings}
    return prepare(options.spec, options.seed, overrides=overrides, target_seed=project.seed)


def repeated(options: argparse.Namespace) -> list[str]:
    """The arguments, besides spec, runtime and seed, with which the run can be repeated."""
    attached = ["--attach", options.attach] if options.attach else []
    attached += ["--resume", str(options.resume)] if options.resume else []
    attached += ["--control", str(options.control)] if options.control else []
    attached += ["--replay"] if options.replay else []
    return attached + [part for item in options.set for part in ("--set", item)]


def prepare(
    spec: str,
    seed: int | None,
    *,
    overrides: dict[str, Any] | None = None,
    base: Path | None = None,
    target_seed: int | None = None,
) -> Checked:
    """Find and check a spec. The seed is the given one, the spec's, or a fresh one."""
    draft = catalogue.find(spec, gates=GATES, base=base)
    if seed is None:
        seed = draft.head.seed if draft.head is not None else None
    return with_seed(seed, lambda drawn: check(draft, drawn, overrides, target_seed=target_seed))


def parse_settings(given: list[str]) -> dict[str, Any]:
    """``["learners=8"]`` to ``{"learners": 8}``; raises :class:`SpecError` for what is no TOML."""
    out: dict[str, Any] = {}
    problems = []
    for item in given:
        try:
            new = toml.loads(item)
        except ValueError:
            problems.append(f'{item!r} is not KEY=VALUE with a TOML value (text needs "quotes")')
            continue
        problems += [f"{name} is set twice; give one value" for name in new if name in out]
        out |= new
    if problems:
        raise SpecError("--set", problems)
    return out


def _attached(project: str | None) -> functools.partial[Runtime] | None:
    if project is None:
        return None
    from harness.runtimes.attached import AttachedRuntime

    def make(context: RunContext, project: str) -> Runtime:
        return AttachedRuntime(context, project)

    return functools.partial(make, project=project)
