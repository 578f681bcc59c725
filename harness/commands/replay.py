"""``diloco-chaos replay DIR``: follow a run's event tape, and say whether it ends bit-equal.

The tape is in the run's own journal. Everything is computed again in this process, without links,
clocks or faults; the finding goes into ``replay.jsonl`` beside the journal, where reports find it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.commands.pace import Bar
from harness.commands.together import kept, known_run
from harness.errors import ChaosError, HarnessError, Interrupted, JournalError, SpecError
from harness.events import Replayed, RunStarted, encode
from harness.journal import TORN, JournalText, read_journal
from harness.rundir import host_facts
from harness.runtimes.places import cache_dir
from reports.history import JOURNAL, REPLAY
from reports.schema import Report
from reports.write import write_reports
from targets.base import Target

TAPED = ("diloco",)
"""Targets whose journals are tapes."""

EQUAL, DIFFERS, NOTHING = "bit-equal", "differs", "inconclusive"
DECLINED = "declined"
_STATUS = {EQUAL: 0, DIFFERS: 1, NOTHING: 3}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dir", type=Path, help="the directory of a run")
    parser.add_argument(
        "--until",
        type=int,
        metavar="CLOCK",
        help="only merges up to this global step; leaves the reports as they are",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def execute(options: argparse.Namespace) -> int:
    """Exits 0 when all that was compared is equal, 1 when something differs, 3 when the tape could
    not be followed (a journal that ends early counts up to its end) or a run like this never can
    be, 2 without a tape. What was not followed at all writes nothing."""
    known_run(options.dir)
    if options.until is not None and options.until < 0:
        raise SpecError("--until", [f"{options.until} is no global step: they count from 0"])
    if kept(options.dir) is not None:
        raise SpecError("replay", [f"{options.dir} is a suite; name one of its runs"])
    try:
        found = replay(options.dir, until=options.until, quiet=options.quiet or options.json)
    except Declined as declined:
        told = {"verdict": DECLINED, "exit_status": declined.exit_status, "why": str(declined)}
        said = json.dumps(told, indent=2) if options.json else f"not replayed: {declined}"
        sys.stdout.write(said + "\n")
        return declined.exit_status
    if options.until is None:
        keep(options.dir, found)
        write_reports(options.dir)
    if options.json:
        told = {"verdict": verdict(found), "exit_status": _STATUS[verdict(found)]}
        sys.stdout.write(json.dumps(told | msgspec.to_builtins(found), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(described(found)) + "\n")
    return _STATUS[verdict(found)]


class Declined(ChaosError):
    """A run of a kind that cannot be replayed, ever; says why."""

    exit_status = 3


def taped(target: str) -> None:
    """Raises :class:`SpecError` for a target that writes no tape."""
    if target not in TAPED:
        raise SpecError(
            "replay", [f"target {target!r} writes no event tape (these do: {', '.join(TAPED)})"]
        )


def possible(target: Target, earlier: Path | None) -> None:
    """Raises :class:`SpecError` for a run, not begun yet, that could not be replayed afterwards.

    ``earlier`` holds the run that it goes on from, if any.
    """
    taped(target.name)
    from targets.diloco.tape import refused

    why = refused(target.params, str(earlier or ""))
    if why:
        raise SpecError("replay", [why])


def replay(run_dir: Path, *, until: int | None = None, quiet: bool = False) -> Replayed:
    """Follow the tape of the run in ``run_dir``.

    Raises ``JournalError`` for a journal that cannot be read, :class:`SpecError` for a run without
    a tape, :class:`Declined` for one that can never be followed and ``HarnessError`` when the
    workers cannot run here.
    """
    path = run_dir / JOURNAL
    # Before it is read: of a run that still goes on, a shorter journal is named than was followed,
    # and never a longer one.
    digest = _digest(path)
    journal = read_journal(path)
    run = next((e for e in journal.events if isinstance(e, RunStarted)), None)
    if run is None:
        raise SpecError("replay", [f"{path} lacks its first line: what was run is not known"])
    taped(run.target)
    from targets.diloco import tape as tapes

    base = Replayed(
        t_ns=journal.events[-1].t_ns,
        journal=digest,
        merges=0,
        steps=0,
        joins=0,
        until=until,
        host=_other_host(run, run_dir),
    )
    try:
        tape = tapes.build(zip(_numbers(journal), journal.events, strict=True))
    except tapes.NoTapeError as error:
        raise Declined(str(error)) from error
    return _followed(tape, base, journal, quiet)


def _followed(tape: Any, base: Replayed, journal: JournalText, quiet: bool) -> Replayed:
    from targets.diloco.replay import follow

    began_ns = time.monotonic_ns()
    with Bar("replaying", tape.merges, "merges", sys.stderr, quiet=quiet) as bar:
        try:
            found = follow(tape, cache_dir=str(cache_dir()), until=base.until, progress=bar)
        except (ValueError, RuntimeError, OSError) as error:
            raise HarnessError(
                f"the tape cannot be followed here: {type(error).__name__}: {error}"
            ) from error
    return msgspec.structs.replace(
        base,
        merges=found.merges,
        steps=found.steps,
        joins=found.joins,
        difference=found.difference,
        difference_line=found.line,
        unfollowed=(*journal.problems, *found.unfollowed),
        cut=_only_cut(tape, found.unfollowed, journal),
        wall_ns=time.monotonic_ns() - began_ns,
        held_bytes_max=found.held_bytes_max,
        memory_bytes_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _only_cut(tape: Any, unfollowed: Sequence[str], journal: JournalText) -> bool:
    """Whether the journal ends early and lacks nothing but what was to come."""
    torn = all(problem.startswith(TORN) for problem in journal.problems)
    return tape.cut and not tape.holes and torn and len(unfollowed) == len(tape.problems)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise JournalError(f"cannot read journal {path}: {error}") from error


def _numbers(journal: JournalText) -> tuple[int, ...]:
    return journal.lines or tuple(range(1, len(journal.events) + 1))


def afterwards(run_dir: Path, *, quiet: bool) -> Report:
    """Replay a run that just ended, and put what was found into its reports.

    Raises what :func:`replay` raises, and ``Interrupted``, which leaves the reports as they are.
    """
    try:
        found = replay(run_dir, quiet=quiet)
    except KeyboardInterrupt as error:
        told = f"the replay was interrupted; the run's reports, without it, are in {run_dir}"
        raise Interrupted(signal.SIGINT, told) from error
    keep(run_dir, found)
    return write_reports(run_dir)


def keep(run_dir: Path, found: Replayed) -> None:
    """Write ``replay.jsonl``. Raises ``HarnessError`` when that cannot be done."""
    try:
        (run_dir / REPLAY).write_bytes(encode(found))
    except OSError as error:
        raise HarnessError(f"cannot write {run_dir / REPLAY}: {error}") from error


def verdict(found: Replayed) -> str:
    """``bit-equal``, ``differs`` or ``inconclusive``."""
    if found.difference:
        return DIFFERS
    if not found.merges or (found.unfollowed and not found.cut):
        return NOTHING
    return EQUAL


def described(found: Replayed) -> list[str]:
    """The finding for people."""
    seconds = found.wall_ns / 1e9
    speed = f", {found.steps / seconds:.0f} steps/s" if found.steps and seconds else ""
    lines = [
        f"compared: {found.merges} merges, {found.steps} steps, {found.joins} states joined with",
        f"took {seconds:.1f} s{speed}; at most {found.held_bytes_max / 2**20:.1f} MiB of fragments "
        f"in flight, {found.memory_bytes_max / 2**20:.0f} MiB resident",
    ]
    if found.until is not None:
        lines.append(f"only up to global step {found.until}, as asked")
    if found.cut:
        lines.append("the journal ends early: it was followed up to there")
    lines += [f"not followed: {why}" for why in found.unfollowed[:10]]
    if len(found.unfollowed) > 10:
        lines.append(f"and {len(found.unfollowed) - 10} more that cannot be followed")
    if found.difference:
        lines.append(f"first difference: {found.difference}")
    if found.host:
        lines.append(f"note that the run was made elsewhere: {found.host}")
    said = {
        EQUAL: "bit-equal: every digest and every loss is the tape's",
        DIFFERS: "DIFFERS from the tape",
        NOTHING: "inconclusive: see above for what could not be followed",
    }
    return [*lines, said[verdict(found)]]


def _other_host(run: RunStarted, run_dir: Path) -> str:
    """How the run's host differs from this one, as far as it is known; empty when it does not."""
    here = host_facts()
    if not run.host_fingerprint:
        return ""
    found = []
    if run.host_fingerprint != here["fingerprint"]:
        found.append(f"host {run.host_fingerprint}, this one is {here['fingerprint']}")
    try:
        then = msgspec.json.decode((run_dir / "host.json").read_bytes())["versions"]
    except (OSError, KeyError, TypeError, msgspec.DecodeError):
        return "; ".join(found)
    now = here["versions"]
    found += [
        f"{name} {then[name]} then, {now[name]} now"
        for name in ("jax", "jaxlib", "flax", "optax", "numpy")
        if name in then and then[name] != now[name]
    ]
    return "; ".join(found)
