"""A real unit of the SPMD target: ``python -m targets.spmd.serve CONFIG.json``.

Heavy modules are imported inside ``build``, after the unit's first line is out, so that the
journal shows how long importing took. The launcher imports no JAX, only the extension that holds
the coordination service.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from targets.bytecode import keep_bytecode
from targets.live import Parts, Unit, main

if TYPE_CHECKING:
    from targets.spmd.channel import Card
    from targets.spmd.params import SpmdParams

LAUNCHER = "launcher"


def build(unit: Unit) -> Parts:
    """The parts of the unit that ``unit.config`` describes.

    Raises ``ValueError`` for a role, name or parameter that does not fit.
    """
    config = unit.config
    keep_bytecode(config.cache_dir)
    if config.role == "syncer":
        return _launcher(unit)
    if config.role == "learner":
        return _worker(unit)
    raise ValueError(f"an spmd unit is a worker or the launcher, not a {config.role!r}")


def _launcher(unit: Unit) -> Parts:
    began_ns = time.monotonic_ns()
    from targets.spmd.channel import Listener
    from targets.spmd.launcher import Launcher
    from targets.spmd.work import LauncherWorker

    config = unit.config
    params = _params(config.params)
    node = Launcher(config.unit, params)
    worker = LauncherWorker(_reachable(config.listen.rpartition(":")[0]))
    ready_ns = time.monotonic_ns()
    return Parts(
        node,
        worker,
        lambda sink: Listener(_card(unit), sink, config.listen, params.names()),
        ready_ns - began_ns,
    )


def _worker(unit: Unit) -> Parts:
    began_ns = time.monotonic_ns()
    from targets.diloco.accelerator import Pacer, StopSleeper
    from targets.spmd.channel import Dialer
    from targets.spmd.checkpoints import Checkpoints
    from targets.spmd.work import SpmdWorker
    from targets.spmd.worker import Worker

    config = unit.config
    params = _params(config.params)
    if config.unit not in params.names():
        raise ValueError(f"{config.unit!r} is none of the {params.workers} workers")
    address = config.peers.get(LAUNCHER)
    if address is None:
        raise ValueError(f"{config.unit} was told no address of {LAUNCHER!r}")
    sleeper = StopSleeper(unit.stopping)
    pacer = Pacer(params.step_ns, time.monotonic_ns, sleeper, unit.tuning)
    worker = SpmdWorker(
        params,
        params.names().index(config.unit),
        config.seed,
        Checkpoints(Path(config.state_dir) / "checkpoints"),
        pacer,
        config.cache_dir,
    )
    node = Worker(config.unit, params)
    ready_ns = time.monotonic_ns()
    return Parts(
        node,
        worker,
        lambda sink: Dialer(_card(unit), sink, LAUNCHER, address),
        ready_ns - began_ns,
    )


def _params(values: dict[str, Any]) -> SpmdParams:
    import msgspec

    from targets.spmd.params import SpmdParams

    # The composer validated them; a misspelt name must not pass for a default.
    if unknown := values.keys() - {field.name for field in fields(SpmdParams)}:
        raise ValueError(f"unknown parameters: {', '.join(sorted(unknown))}")
    params = msgspec.convert(values, SpmdParams)
    if problems := params.problems():
        raise ValueError("; ".join(problems))
    return params


def _card(unit: Unit) -> Card:
    from targets.spmd.channel import Card

    config = unit.config
    return Card(run=config.run, unit=config.unit, incarnation=unit.incarnation, token=config.token)


def _reachable(host: str) -> str:
    """An address at which the workers reach this process: its own, where it listens on all."""
    return socket.gethostbyname(socket.gethostname()) if host in ("", "0.0.0.0", "::") else host


if __name__ == "__main__":
    # Before NumPy is imported, and before the extension starts to log.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main(sys.argv, build)
