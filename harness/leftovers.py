"""What a run started, written down before it is started, and how all of it is undone.

The *manifest* is an append-only file of JSON lines in the run directory. It is all that undo
needs: neither the harness that wrote it nor any of its units has to be alive. Undo is the same
whether the reaper does it (the harness died) or ``diloco-chaos clean`` (the reaper died too).

Units carry the run id in their environment (:data:`RUN_VARIABLE`), which catches a process that
was started in the instant before its line reached the manifest. Nothing is matched by name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.runtimes.places import sweep_ports

RUN_VARIABLE = "DILOCO_CHAOS_RUN"
"""Environment variable that every process of a run carries."""
RUN_LABEL = "diloco-chaos.run"
"""Label that every container, network and volume of a run carries; its value is the run id."""
CGROUP_PREFIX = "diloco-chaos."
"""Every cgroup of ours is called PREFIX + run id + "." + unit."""
MANIFEST = "manifest.jsonl"
_EMPTY_LOOKS = 4
_LOOK_S = 0.025


@dataclass
class Undone:
    """What undoing one run did, and what it could not do."""

    run: str
    removed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


# --- processes ----------------------------------------------------------------------------------


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when it is gone or a zombie.

    Together with its id this names one process for ever: ids are used again, this pair is not.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return None
    after = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return None if after[0] in "ZX" else int(after[19])


def processes_of(run: str) -> list[int]:
    """Every living process that carries ``run`` in its environment, this one excepted."""
    wanted = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone, or another user's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return sorted(pid for pid in found if start_ticks(pid) is not None)


def cgroups_of(run: str, root: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Every cgroup directory of the run below ``root`` (three levels are searched)."""
    name = f"{CGROUP_PREFIX}{run}."
    found = [*root.glob(f"*/{name}*"), *root.glob(f"{name}*"), *root.glob(f"*/*/{name}*")]
    found += root.glob(f"*/*/*/{name}*")
    return sorted(set(found))


# --- the manifest -------------------------------------------------------------------------------


def read_manifest(path: Path) -> list[dict[str, Any]]:
    """The manifest's entries; a torn or foreign line is left out. Empty when there is no file."""
    entries = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("kind"), str):
                    entries.append(entry)
    return entries


def undo(run: str, manifest: Path, deadline: float) -> Undone:
    """Undo all that the manifest names, before ``deadline`` on ``time.monotonic()``.

    Each step stands alone: what fails is written down and the next one still happens.
    """
    entries = read_manifest(manifest)
    done = Undone(run)
    _step(done, lambda: _kill_registered(entries, done))
    _step(done, lambda: _kill_marked(run, deadline, done))
    _step(done, lambda: _remove_cgroups(run, entries, deadline, done))
    for url in dict.fromkeys(e.get("url") for e in entries if e["kind"] == "docker"):
        _step(done, partial(remove_from_engine, run, url, done))
    for entry in entries:
        if entry["kind"] == "attached":
            _step(done, partial(_heal_project, entry, done))
    _step(done, lambda: _remove_paths(run, entries, done))
    return done


def _step(done: Undone, step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # one thing that cannot be undone must not keep the others
        done.problems.append(f"{type(error).__name__}: {error}")


def _kill_registered(entries: list[dict[str, Any]], done: Undone) -> None:
    for entry in entries:
        pid = entry.get("pid")
        if entry["kind"] != "process" or not isinstance(pid, int) or pid <= 1:
            continue
        with contextlib.suppress(ProcessLookupError):  # it may end by itself meanwhile
            if start_ticks(pid) == entry.get("start") and os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGCONT)
                os.killpg(pid, signal.SIGKILL)
                done.removed.append(f"process group {pid} ({entry.get('name', '?')})")


def _kill_marked(run: str, deadline: float, done: Undone) -> None:
    """Kill whatever still carries the run id, until there is nothing left that does.

    A process shows no environment for a moment while it starts, so "nothing" must be seen
    :data:`_EMPTY_LOOKS` times, some milliseconds apart.
    """
    empty = 0
    while empty < _EMPTY_LOOKS:
        left = processes_of(run)
        empty = 0 if left else empty + 1
        if left and time.monotonic() >= deadline:
            done.problems.append(f"processes {left} are still there")
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
                if f"process {pid}" not in done.removed:
                    done.removed.append(f"process {pid}")
        time.sleep(_LOOK_S)


def _remove_cgroups(run: str, entries: list[dict[str, Any]], deadline: float, done: Undone) -> None:
    named = {Path(str(e.get("path"))) for e in entries if e["kind"] == "cgroup"}
    for path in sorted(named | set(cgroups_of(run))):
        if not path.name.startswith(f"{CGROUP_PREFIX}{run}."):
            done.problems.append(f"{path} is no cgroup of run {run}; left alone")
        elif remove_cgroup(path, deadline):
            done.removed.append(f"cgroup {path}")


def remove_cgroup(path: Path, deadline: float) -> bool:
    """Remove an emptied cgroup; False when there is none. Raises ``OSError`` at the deadline."""
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return False
        except OSError as error:
            # A process that was just killed stays a member for a few milliseconds.
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
        else:
            return True


def _remove_paths(run: str, entries: list[dict[str, Any]], done: Undone) -> None:
    for entry in entries:
        path = Path(str(entry.get("path", "")))
        # Two marks must agree before a tree is deleted: an absolute path, and our file in it.
        if entry["kind"] == "remove" and path.is_absolute() and owned_by(path, run):
            shutil.rmtree(path)
            done.removed.append(f"directory {path}")


OWNER_FILE = ".diloco-chaos-run"


def own(path: Path, run: str) -> None:
    """Make ``path`` a directory that only ``run`` uses and that undo may delete."""
    path.mkdir(parents=True, exist_ok=True)
    (path / OWNER_FILE).write_text(run)


def owned_by(path: Path, run: str) -> bool:
    """Whether :func:`own` gave the directory to ``run``."""
    try:
        return (path / OWNER_FILE).read_text() == run
    except OSError:
        return False


# --- containers ---------------------------------------------------------------------------------


def remove_from_engine(run: str, url: str | None, done: Undone) -> None:
    """Remove what carries the run's label on the engine at ``url`` (None: the default one).

    The Docker client is imported only now: a run without containers needs no engine.
    """
    from harness.runtimes.docker_engine import Engine
    from harness.runtimes.docker_removal import remove_run, residue_of

    engine = Engine(url)
    try:
        found = residue_of(engine, run, 0)
        done.problems += [str(error) for error in remove_run(engine, run)]
        left = residue_of(engine, run, 0)
    finally:
        engine.close()
    for kind in ("containers", "networks", "volumes"):
        gone = set(getattr(found, kind)) - set(getattr(left, kind))
        done.removed += [f"{kind.removesuffix('s')} {name}" for name in sorted(gone)]
        done.problems += [
            f"{kind.removesuffix('s')} {n} is still there" for n in getattr(left, kind)
        ]


def _heal_project(entry: dict[str, Any], done: Undone) -> None:
    """Heal what an attached run held on a standing project; nothing of it is removed."""
    from harness.runtimes.attached import heal_left

    problems = heal_left(entry)
    done.problems += problems
    if not problems:
        done.removed.append(f"faults on project {entry.get('project')}")


# --- every run of this user ---------------------------------------------------------------------


def clean(registry: Path, budget_s: float = 30.0) -> list[Undone]:
    """Undo every run in ``registry`` whose owner is gone; runs that still have one are left.

    ``registry`` is ``harness.runtimes.places.state_dir()``. Bounded by ``budget_s`` per run.
    """
    results = []
    for note in sorted(registry.glob("*.json")):
        for entry in read_manifest(note):
            if start_ticks(entry.get("owner", 0)) == entry.get("owner_start"):
                continue
            run, manifest = str(entry.get("run")), Path(str(entry.get("manifest")))
            result = undo(run, manifest, time.monotonic() + budget_s)
            results.append(result)
            if not result.problems:
                note.unlink(missing_ok=True)
    sweep_ports(registry.parent / "ports")
    return results


def expired(registry: Path) -> Iterator[str]:
    """Run ids in ``registry`` whose owner is gone: what :func:`clean` would undo."""
    for note in sorted(registry.glob("*.json")):
        for entry in read_manifest(note):
            if start_ticks(entry.get("owner", 0)) != entry.get("owner_start"):
                yield str(entry.get("run"))
