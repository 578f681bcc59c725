"""A suite with several seeds: every experiment with every seed, then one table.

A seed's runs lie in ``OUT/seed-N``, which is a suite's directory of its own. Simulated runs depend
on nothing but their spec and seed, so several may go on at a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from harness import suite as suites
from harness.commands import members, resuming, together
from harness.compose import Checked
from harness.errors import ChaosError, SpecError
from harness.fuzz.ending import end_with_parent
from harness.rundir import new_run_id
from harness.suite import Suite
from reports.build import build
from reports.schema import Report
from reports.spread import Compared, as_text, spread
from reports.text import title
from reports.together import worst

One = Callable[[argparse.Namespace], Report]


@dataclass(frozen=True)
class Task:
    """One run of one member."""

    seed: int
    folder: str
    options: argparse.Namespace
    after: frozenset[str | None]
    """Folders of the members, of the same seed, whose runs must be there before."""


def execute(suite: Suite, options: argparse.Namespace, one: One) -> int:
    """Run everything; the worst exit status of all runs and bounds."""
    chosen = _seeds(suite, options)
    out = options.out or Path("runs") / f"{suite.name}-{new_run_id()}"
    checked = members.checked(suite, options, chosen[0])
    tasks = list(_tasks(suite, options, chosen, out))
    if options.jobs > 1:
        _only_simulated(checked, options)
    try:
        for seed in chosen:
            (out / f"seed-{seed}").mkdir(parents=True, exist_ok=True)
        if together.kept(out) is not None:
            raise SpecError("--out", [f"{out} already holds a suite; name another folder"])
        (out / f"{suite.name}{suites.KEPT}").write_text(suite.text, encoding="utf-8")
    except OSError as error:
        raise SpecError("--out", [f"cannot write to {out}: {error.strerror or error}"]) from error
    say = sys.stderr if options.json else sys.stdout
    total = len(tasks)
    for done, (task, status, said) in enumerate(_carry_out(tasks, options.jobs, one), 1):
        line = f"{done} of {total}: {task.folder}, seed {task.seed}: {said}"
        print(line, file=say, flush=True)
        if status in together.STOPPED:
            return status
    return judge(replace(suite, seeds=chosen), out, as_json=options.json, keep=True)


def _seeds(suite: Suite, options: argparse.Namespace) -> tuple[int, ...]:
    if options.seeds is not None and options.seed is not None:
        raise SpecError("--seeds", ["there is a --seed, too; give one of them"])
    if options.seeds is None:
        return suite.seeds if options.seed is None else (options.seed,)
    try:
        return tuple(dict.fromkeys(int(part) for part in options.seeds.split(",")))
    except ValueError:
        raise SpecError("--seeds", [f"{options.seeds!r} is no list like 1,2,3"]) from None


def _tasks(
    suite: Suite, options: argparse.Namespace, chosen: Sequence[int], out: Path
) -> Iterator[Task]:
    """Every run, those first that others are compared with."""
    order = together.in_order(suite)
    for seed in chosen:
        for member, folder in order:
            spec = together.member(suite, member)
            control, earlier = together.controlling(suite, spec), resuming.member(suite, spec)
            place = out / f"seed-{seed}"
            given = {
                **vars(options),
                "spec": spec,
                "seed": seed,
                "seeds": None,
                "out": place / folder,
                "control": None if control is None else place / control,
                "resume": None if earlier is None else place / earlier,
                "quiet": True,
                "execute": None,
            }
            yield Task(seed, folder, argparse.Namespace(**given), frozenset({control, earlier}))


def _only_simulated(checked: Mapping[str, Checked], options: argparse.Namespace) -> None:
    live = [
        folder
        for folder, one in checked.items()
        if (options.runtime or one.spec.head.runtime) != "simulated"
    ]
    if live:
        why = f"{', '.join(live)}: live runs would take each other's processors; leave --jobs out"
        raise SpecError("--jobs", [why])


def _carry_out(tasks: Sequence[Task], jobs: int, one: One) -> Iterator[tuple[Task, int, str]]:
    """(task, exit status, outcome) of each run as it ends."""
    if jobs <= 1:
        for task in tasks:
            yield (task, *_carry(one, task.options))
        return
    waiting, running = list(tasks), dict[Future[tuple[int, str]], Task]()
    # A fresh interpreter each: JAX has threads, which do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        try:
            while waiting or running:
                pending = {(t.seed, t.folder) for t in [*waiting, *running.values()]}
                for task in [t for t in waiting if not _blocked(t, pending)]:
                    if len(running) >= jobs:
                        break
                    waiting.remove(task)
                    running[pool.submit(_carry, one, task.options)] = task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield (running.pop(future), *future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _blocked(task: Task, pending: set[tuple[int, str]]) -> bool:
    return any((task.seed, folder) in pending for folder in task.after if folder)


def _carry(one: One, options: argparse.Namespace) -> tuple[int, str]:
    try:
        with redirect_stdout(sys.stderr):
            report = one(options)
    except ChaosError as error:
        return error.exit_status, str(error)
    good = "" if report.goodput.ratio is None else f", goodput {report.goodput.ratio:.1%}"
    loss = report.quality.final_loss
    learned = "" if loss is None else f", loss {loss:.4f}"
    return report.verdict.exit_status, f"{title(report)}{good}{learned}"


def groups(suite: Suite, out: Path) -> list[Compared]:
    """Every group, computed from the journals below ``out``.

    Raises ``harness.errors.JournalError`` when a run is not there.
    """
    runs = {
        seed: {folder: build(out / f"seed-{seed}" / folder) for folder in suite.folders()}
        for seed in suite.seeds
    }
    return [
        spread(group.title, group.arms, runs, by=group.tokens, bounds=group.gap_max)
        for group in suite.compared()
    ]


def judge(suite: Suite, out: Path, *, as_json: bool, keep: bool = False) -> int:
    """Print the table, and write it down too to ``keep`` it; the worst status of all runs and
    bounds."""
    found = groups(suite, out)
    statuses = {
        build(out / f"seed-{seed}" / folder).verdict.exit_status
        for seed in suite.seeds
        for folder in suite.folders()
    }
    for group in found:
        statuses |= {0 if arm.ok else 1 if arm.missed else 3 for arm in group.arms}
    status = worst(statuses)
    value: dict[str, Any] = {
        "schema": 1,
        "suite": suite.name,
        "title": suite.title,
        "seeds": suite.seeds,
        "exit_status": status,
        "groups": found,
    }
    data = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    text = "\n".join([f"{suite.name}: {suite.title}; seeds {_listed(suite.seeds)}", ""])
    text += "\n".join(as_text(group) for group in found)
    if keep:
        (out / "suite.json").write_bytes(data)
        (out / "suite.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(data.decode() if as_json else text)
    return status


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
