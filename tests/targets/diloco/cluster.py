"""Real units as child processes on loopback, without a runtime around them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.base import Tuning
from harness.events import AnyEvent, decode
from targets.unit_config import UnitConfig, write_unit_config


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Cluster:
    """A syncer and its learners; events are re-read from the files that hold their stdout."""

    def __init__(self, home: Path, params: dict[str, Any]) -> None:
        self.home = home
        self.params = params
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.addresses = {unit: _free_address() for unit in ("syncer", *self.learners())}

    def learners(self) -> list[str]:
        return [f"learner-{i}" for i in range(self.params["learners"])]

    def start(self, unit: str, /, **changes: Any) -> None:
        """Start (another life of) ``unit``; its output is appended to what is there."""
        place = self.home / unit
        place.mkdir(exist_ok=True)
        syncer = unit == "syncer"
        values: dict[str, Any] = {
            "run": "run-1",
            "token": "t",
            "unit": unit,
            "role": "syncer" if syncer else "learner",
            "target": "diloco",
            "seed": 7,
            "params": self.params,
            "listen": self.addresses[unit],
            "peers": {} if syncer else {u: a for u, a in self.addresses.items() if u != unit},
            "state_dir": str(place / "state"),
            "control_file": str(place / "control.json"),
            "cache_dir": str(self.home / "cache"),
        }
        path = place / "config.json"
        write_unit_config(path, UnitConfig(**{**values, **changes}))
        with open(place / "out", "ab") as out, open(place / "log", "ab") as log:
            self.processes[unit] = subprocess.Popen(
                [sys.executable, "-m", "targets.diloco.serve", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                # The tests may run before the package is installed.
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            )

    def tune(self, unit: str, tuning: Tuning) -> None:
        path = self.home / unit / "control.json"
        path.with_suffix(".tmp").write_text(json.dumps(asdict(tuning)))
        path.with_suffix(".tmp").rename(path)

    def events(self, unit: str, kind: type[Any] | None = None) -> list[Any]:
        """Events of the unit so far, of one kind if given. Every whole line must be one."""
        lines = (self.home / unit / "out").read_bytes().split(b"\n")[:-1]
        events: list[AnyEvent] = [decode(line) for line in lines]
        return [e for e in events if kind is None or isinstance(e, kind)]

    def log(self, unit: str) -> str:
        return (self.home / unit / "log").read_text()

    def until(self, what: str, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        """Poll; fails at the deadline, or as soon as a unit has died, with the ends of the logs."""
        limit = time.monotonic() + timeout_s
        while not condition():
            dead = {n: p.returncode for n, p in self.processes.items() if p.poll() is not None}
            if dead or time.monotonic() > limit:
                logs = "\n".join(f"--- {n}\n{self.log(n)[-2000:]}" for n in self.processes)
                raise AssertionError(f"not within {timeout_s} s: {what}; ended: {dead}\n{logs}")
            time.sleep(0.02)

    def stop(self, unit: str, number: int = signal.SIGTERM, timeout_s: float = 10.0) -> int:
        """Signal the unit; its exit code."""
        self.processes[unit].send_signal(number)
        return self.wait(unit, timeout_s)

    def wait(self, unit: str, timeout_s: float = 30.0) -> int:
        """The exit code of a unit that ends by itself."""
        code = self.processes[unit].wait(timeout_s)
        del self.processes[unit]
        return code


@contextmanager
def cluster(home: Path, units: tuple[str, ...] | None = None, **params: Any) -> Iterator[Cluster]:
    """A cluster with ``units`` (all) started; whatever still runs at the end is killed."""
    defaults = {"learners": 2, "fragments": 3, "sync_every": 3, "trainer": "quadratic"}
    found = Cluster(home, {**defaults, "step_time_s": 0.02, **params})
    try:
        for unit in ("syncer", *found.learners()) if units is None else units:
            found.start(unit)
        yield found
    finally:
        for process in found.processes.values():
            process.kill()
            process.wait()
