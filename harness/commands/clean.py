"""``diloco-chaos clean``: remove what runs whose owner is gone left behind."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from harness.fuzz.scratch import abandoned
from harness.leftovers import Undone, clean, expired
from harness.needs import docker_socket
from harness.runtimes.places import state_dir


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--dry-run", action="store_true", help="only say whose leftovers there are")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def docker_missing() -> bool:
    """Whether there is no socket of an engine to ask."""
    path = docker_socket()
    return path.startswith("/") and not Path(path).exists()


def _expired_on_the_engine() -> list[Undone]:
    """What the registry does not know: another user's, or that of a home that is gone."""
    from harness.runtimes.docker_engine import Engine
    from harness.runtimes.docker_removal import expired_runs, remove_run

    engine = Engine(None)
    try:
        out = []
        for run in expired_runs(engine):
            problems = [str(error) for error in remove_run(engine, run)]
            out.append(Undone(run, removed=["what carried its label"], problems=problems))
        return out
    finally:
        engine.close()


def _removed(folder: Path) -> Undone:
    """Remove what a search left behind that was killed."""
    done = Undone("fuzz")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        done.problems.append(f"{type(error).__name__}: {error}")
    else:
        done.removed.append(f"directory {folder}")
    return done


def execute(options: argparse.Namespace) -> int:
    """Undo every run without an owner. Exits 4 when something could not be removed."""
    if options.dry_run:
        runs = [*expired(state_dir()), *map(str, abandoned())]
        text = json.dumps({"expired": runs}) if options.json else "\n".join(runs) or "nothing"
        sys.stdout.write(text + "\n")
        return 0
    results = clean(state_dir()) + [_removed(folder) for folder in abandoned()]
    if not docker_missing():
        results += _expired_on_the_engine()
    if options.json:
        rows = [{"run": r.run, "removed": r.removed, "problems": r.problems} for r in results]
        sys.stdout.write(json.dumps({"cleaned": rows}) + "\n")
    else:
        lines = [f"{r.run}: removed {len(r.removed)}" for r in results] or ["nothing to clean"]
        for result in results:
            lines += [f"  removed {item}" for item in result.removed]
            lines += [f"  could not remove: {item}" for item in result.problems]
        sys.stdout.write("\n".join(lines) + "\n")
    return 4 if any(r.problems for r in results) else 0
