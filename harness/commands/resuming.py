"""Which earlier run a new one goes on from, by ``--resume``, the spec's ``resume`` or a suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import catalogue
from harness.errors import SpecError
from harness.suite import Suite
from reports.gate import GATES


def directory(spec: str, given: Path | None) -> Path | None:
    """The directory of the run that the experiment ``spec`` goes on from; None when it begins
    anew. ``given`` is the command line's. Whether there is such a run is not looked at."""
    asked = _asked(spec)
    if given is not None or asked is None:
        return given
    path = Path(spec)
    return path.parent / asked if path.is_file() else Path(asked)


def member(suite: Suite, spec: str) -> str | None:
    """Folder of the member that the experiment ``spec`` goes on from; None when it is none."""
    folder = Path(_asked(spec) or "").stem
    return folder if folder in suite.folders() else None


def seed_of(run: Path | None) -> int | None:
    """The seed of the run in that directory, which one that goes on from it needs; None when it
    cannot be told."""
    if run is None:
        return None
    try:
        seed = json.loads((run / "spec.resolved.json").read_bytes())["seed"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # what is wrong with the directory is said by whoever resumes from it
    return seed if type(seed) is int else None


@contextmanager
def seed_told(run: Path | None, seed: int) -> Iterator[None]:
    """Whatever refuses to go on from ``run`` under another ``seed`` than its own is told both."""
    try:
        yield
    except SpecError as error:
        own = seed_of(run)
        if error.where != "resume" or own in (None, seed):
            raise
        hint = (
            f"the run in {run} has seed {own}, this one {seed}: leave --seed out to take its seed"
        )
        raise SpecError(error.where, [*error.problems, hint]) from error


def _asked(spec: str) -> str | None:
    draft = catalogue.find(spec, gates=GATES)
    return draft.head.resume if draft.head is not None else None
