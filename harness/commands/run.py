"""``diloco-chaos run SPEC|NAME``: the main job."""

from __future__ import annotations

import argparse
import functools
import secrets
import sys
from pathlib import Path
from typing import Any

from harness import catalogue
from harness import suite as suites
from harness.commands import together
from harness.commands.progress import Progress
from harness.compose import Checked, check, compose
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
    parser.add_argument("--json", action="store_true", help="print report.json, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def execute(options: argparse.Namespace) -> int:
    """Run the experiment or suite; the exit status is the verdict's."""
    suite = suites.find(options.spec, TOGETHER)
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
    seed = suite.seed if options.seed is None else options.seed
    seed = secrets.randbelow(2**31) if seed is None else seed
    problems: list[str] = []
    specs = [_member(suite, member) for member in suite.together]
    for spec in specs:  # no hour of running before the second one's misspelt name shows
        try:
            prepare(spec, seed, overrides=parse_settings(options.set))
        except SpecError as error:
            problems += [f"{Path(spec).stem}: {p}" for p in error.problems]
    if problems:
        raise SpecError(suite.name, problems)
    out = options.out or Path("runs") / f"{suite.name}-{new_run_id()}"
    say = sys.stderr if options.json else sys.stdout
    last = 0

    def one(spec: str, directory: Path) -> int:
        nonlocal last
        given = {**vars(options), "spec": _member(suite, spec), "seed": seed, "out": directory}
        report, place = _one(argparse.Namespace(**given))
        print(terminal(report, str(place / "report.html")), file=say, flush=True)
        last = report.verdict.exit_status
        return last

    found = together.carry_out(suite, out, one)
    if found is None:
        return last
    if options.json:
        sys.stdout.write(together.as_json(suite, found).decode())
    else:
        sys.stdout.write(together.terminal(suite, found, out))
    return found.status


def _member(suite: Suite, spec: str) -> str:
    beside = suite.base / spec if suite.base is not None else None
    return str(beside) if beside is not None and beside.is_file() else spec


def _one(options: argparse.Namespace) -> tuple[Report, Path]:
    """One experiment: its report, and the directory that holds it."""
    checked = _checked(options)
    run_id = new_run_id()
    out = options.out or Path("runs") / f"{checked.spec.name}-{run_id}"
    experiment = compose(
        checked,
        run=run_id,
        directory=out,
        runtime=options.runtime,
        make_runtime=_attached(options.attach),
        given=options.spec,
        repeat_with=repeated(options),
    )
    rundir = RunDir.create(out, checked.spec, run_id, checked.seed)
    say = sys.stderr if options.json else sys.stdout
    print(
        f"seed {checked.seed}, run {run_id}\nrepeat with: {experiment.repeat}",
        file=say,
        flush=True,
    )
    with stop_on_signals() as stop, Progress(experiment, say, quiet=options.quiet) as progress:
        run(experiment, rundir, observer=progress.observe, stop=stop)
    return write_reports(rundir.path), rundir.path


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
    drawn = secrets.randbelow(2**31) if seed is None else seed
    return check(draft, drawn, overrides, target_seed=target_seed)


def parse_settings(given: list[str]) -> dict[str, Any]:
    """``["learners=8"]`` to ``{"learners": 8}``; raises :class:`SpecError` for what is no TOML."""
    import tomllib

    out: dict[str, Any] = {}
    problems = []
    for item in given:
        try:
            out |= tomllib.loads(item)
        except tomllib.TOMLDecodeError:
            problems.append(f'{item!r} is not KEY=VALUE with a TOML value (text needs "quotes")')
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
