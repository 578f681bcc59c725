"""Many seeds on all cores, until something fails or time is up."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.errors import ChaosError
from harness.fuzz.act import Ran, perform
from harness.fuzz.draw import draw
from harness.fuzz.ending import deaf, end_with_parent
from harness.fuzz.scratch import adopt, scratch
from harness.fuzz.shrink import shrink

AUDIT_EVERY = 20
"""One seed in so many is run twice, and its two journals must be equal."""

BATCH = 10
"""Seeds handed to a process at a time."""

Table = dict[str, Any]


class Complaint(Protocol):
    """A promise that a run broke."""

    @property
    def check(self) -> str:
        """Name of the check."""
        ...

    @property
    def why(self) -> str:
        """What it saw."""
        ...


Judge = Callable[[Ran], Sequence[Complaint]]
"""Every broken promise of a run. Must be picklable (a module's function) for :func:`search`."""


@dataclass(frozen=True)
class Failure:
    """A seed that broke a promise."""

    seed: int
    table: Table
    check: str
    why: str


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    seeds: int
    seconds: float
    failure: Failure | None = None


def trial(seed: int, judge: Judge) -> Failure | None:
    """Run the experiment of ``seed``; its first broken promise, if any."""
    table = draw(seed)
    found = complaint(table, seed, judge, audit=seed % AUDIT_EVERY == 0)
    return None if found is None else Failure(seed, table, *found)


def complaint(
    table: Table, seed: int, judge: Judge, *, audit: bool = False
) -> tuple[str, str] | None:
    """(check, why) of the first promise that the run breaks; with ``audit`` it is run twice."""
    try:
        ran = perform(table, seed)
        if audit and perform(table, seed).journal != ran.journal:
            return "determinism", "two runs of one seed wrote different journals"
    except ChaosError as error:
        return "harness", f"{type(error).__name__}: {error}"
    for one in judge(ran):
        return one.check, one.why
    return None


def minimal(failure: Failure, judge: Judge, *, seconds: float = 120.0) -> Failure:
    """The smallest experiment, run with the same seed, that fails the same check."""
    if failure.check == "determinism":
        return failure

    def fails(table: Table) -> bool:
        found = complaint(table, failure.seed, judge)
        return found is not None and found[0] == failure.check

    table = shrink(failure.table, fails, seed=failure.seed, seconds=seconds)
    found = complaint(table, failure.seed, judge)
    return failure if found is None else Failure(failure.seed, table, *found)


def search(
    judge: Judge,
    *,
    first: int = 0,
    seeds: int | None = None,
    seconds: float | None = None,
    processes: int | None = None,
) -> Iterator[Progress]:
    """Try seed after seed from ``first`` on, in ``processes`` (default: one per core).

    Ends after ``seeds`` of them, after ``seconds``, or at the first failure: the one with the
    lowest seed among the batches then under way, so that the answer does not depend on timing
    more than it must. Yields after every batch: the last one has the failure, if any, and one
    before it may have another.
    """
    began = time.monotonic()
    batches = _batches(first, seeds)
    done = 0
    context = multiprocessing.get_context("spawn")
    with (
        scratch() as folder,
        ProcessPoolExecutor(processes, context, _worker, (folder,)) as pool,
        _ended_when_left(),
    ):
        workers = processes or multiprocessing.cpu_count()
        with deaf():
            running = {
                pool.submit(_batch, judge, batch)
                for batch in itertools.islice(batches, 2 * workers)
            }
        failures: list[Failure] = []
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                tried, failure = future.result()
                done += tried
                if failure is not None:
                    failures.append(failure)
            late = seconds is not None and time.monotonic() - began > seconds
            if failures or late:
                running = _cancelled(running)
            else:
                fresh = itertools.islice(batches, len(finished))
                running |= {pool.submit(_batch, judge, batch) for batch in fresh}
            worst = min(failures, key=lambda f: f.seed, default=None)
            yield Progress(done, time.monotonic() - began, worst)


def _worker(folder: Path) -> None:
    """Begin a worker of the search that made ``folder``."""
    end_with_parent()
    adopt(folder)


@contextmanager
def _ended_when_left() -> Iterator[None]:
    """Processes that are begun meanwhile are ended when an exception, or nobody's asking for more,
    leaves this early: none of their batches is waited for."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        raise


def _cancelled(
    running: set[Future[tuple[int, Failure | None]]],
) -> set[Future[tuple[int, Failure | None]]]:
    """What could not be cancelled any more."""
    return {future for future in running if not future.cancel()}


def _batches(first: int, seeds: int | None) -> Iterator[range]:
    end = None if seeds is None else first + seeds
    for start in itertools.count(first, BATCH):
        if end is not None and start >= end:
            return
        yield range(start, start + BATCH if end is None else min(start + BATCH, end))


def _batch(judge: Judge, batch: range) -> tuple[int, Failure | None]:
    for tried, seed in enumerate(batch, start=1):
        failure = trial(seed, judge)
        if failure is not None:
            return tried, failure
    return len(batch), None
