"""The dead-man: a process outside the harness that undoes a run when the harness is gone.

:class:`Reaper` is the harness's side. It starts ``python -m harness.reaper`` before anything
else of a run and holds the only writing end of a pipe to it. The harness says "done" after a
complete teardown; when the pipe ends without that word, whatever the reason (SIGKILL included),
the other side undoes what the manifest names, within a bounded time, and exits.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.errors import LaunchError
from harness.leftovers import MANIFEST, start_ticks, undo
from harness.runtimes.places import state_dir, sweep_ports

START_S = 20.0
UNDO_S = 30.0
_READY = b"ready\n"
_DONE = b"done\n"


class Reaper:
    """A run's dead-man and the manifest that tells it what there is to undo.

    Life cycle: construct (starts it), :meth:`record` before each start, :meth:`done` last.
    Raises :class:`LaunchError` when the process cannot be had: no run without a dead-man.
    """

    def __init__(self, run: str, directory: Path) -> None:
        self.run = run
        self.manifest = directory / MANIFEST
        self.note = state_dir() / f"{run}.json"
        self._log = directory / "reaper.log"
        try:
            self._file = open(self.manifest, "ab", buffering=0)  # noqa: SIM115
            self.note.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"cannot write the run's manifest ({error}); choose a writable --out directory, "
                "and XDG_STATE_HOME if the home directory is read-only"
            ) from error
        me = os.getpid()
        owner = {"kind": "run", "run": run, "owner": me, "owner_start": start_ticks(me)}
        self.record(**owner)
        # The note is complete before anybody can read it, or not there.
        fresh = self.note.with_suffix(".tmp")
        fresh.write_text(json.dumps({**owner, "manifest": str(self.manifest.resolve())}) + "\n")
        fresh.replace(self.note)
        try:
            self._process = self._start()
        except BaseException:
            self._file.close()
            self.note.unlink()
            raise

    @property
    def pid(self) -> int:
        """Process id of the other side."""
        return self._process.pid

    def record(self, **entry: Any) -> None:
        """Add an entry to the manifest. It is with the kernel when this returns.

        The kinds: ``process`` (name, pid, start), ``starting`` (name), ``cgroup`` (path),
        ``remove`` (path of a directory made by ``leftovers.own``), ``docker``.
        """
        self._file.write(json.dumps(entry).encode() + b"\n")

    def record_process(self, name: str, pid: int) -> None:
        """Add a process that leads a group of its own."""
        self.record(kind="process", name=name, pid=pid, start=start_ticks(pid))

    def done(self) -> None:
        """Teardown is complete: the reaper has nothing to do. Safe to call twice."""
        if self._file.closed:
            return
        self.record(kind="done")
        self._file.close()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_DONE)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # somebody killed the reaper; the run has ended in good order without it
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.note.unlink(missing_ok=True)
        if self._log.exists() and self._log.stat().st_size == 0:
            self._log.unlink()

    def _start(self) -> subprocess.Popen[bytes]:
        log = open(self._log, "ab")  # noqa: SIM115 - passed on
        command = [sys.executable, "-m", "harness.reaper", self.run, str(self.manifest.resolve())]
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        with log:
            process = subprocess.Popen(
                [*command, str(self.note)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # A session of its own: Ctrl-C and a killed terminal must not reach it.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        assert process.stdout is not None
        with process.stdout:
            ready, _, _ = select.select([process.stdout], [], [], START_S)
            if not ready or process.stdout.read(len(_READY)) != _READY:
                process.kill()
                process.communicate()
                raise LaunchError(
                    f"the reaper did not start within {START_S:.0f} s; see {log.name}"
                )
        return process


def main(arguments: list[str] | None = None) -> int:
    """Wait for the owner's last word or its end; then undo if the word was not "done"."""
    parser = argparse.ArgumentParser(prog="python -m harness.reaper", description=__doc__)
    parser.add_argument("run")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("note", type=Path)
    options = parser.parse_args(arguments)
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    if _last_word() == _DONE:
        return 0
    # Whatever hangs (a dead engine, a stuck process), this process ends.
    signal.alarm(int(2 * UNDO_S))
    began = time.monotonic()
    result = undo(options.run, options.manifest, began + UNDO_S)
    sweep_ports()
    for line in (*result.removed, *(f"PROBLEM {p}" for p in result.problems)):
        sys.stderr.write(f"{line}\n")
    sys.stderr.write(f"undone in {time.monotonic() - began:.3f} s\n")
    if result.problems:
        return 1
    with open(options.manifest, "ab", buffering=0) as manifest:
        manifest.write(json.dumps({"kind": "reaped", "removed": result.removed}).encode() + b"\n")
    options.note.unlink(missing_ok=True)
    return 0


def _last_word() -> bytes:
    """What the owner said before its end of the pipe closed."""
    said = b""
    while chunk := os.read(sys.stdin.fileno(), 64):
        said += chunk
    return said


if __name__ == "__main__":
    sys.exit(main())
