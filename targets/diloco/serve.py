"""A real unit of the Decoupled DiLoCo target: ``python -m targets.diloco.serve CONFIG.json``.

Builds the node, its worker and its end of the gRPC link from the config that the runtime wrote;
:mod:`targets.live` runs them. Heavy modules are imported inside ``build``, after the unit's first
line is out, so that the journal shows how long importing took. The syncer imports no JAX.

Optional entries of ``UnitConfig.config``: ``tls`` = ``{"ca": PATH, "cert": PATH, "key": PATH}``.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from targets.bytecode import keep_bytecode
from targets.live import Parts, Unit, main

if TYPE_CHECKING:
    from targets.diloco.keeping import Keeper
    from targets.diloco.params import DilocoParams
    from targets.diloco.transport import Identity, Tls

SYNCER = "syncer"
"""Name of the unit that learners dial."""


def build(unit: Unit) -> Parts:
    """The parts of the unit that ``unit.config`` describes.

    Raises ``ValueError`` for a role, name or parameter that does not fit, ``OSError`` for an
    address that cannot be had (once the transport is made).
    """
    config = unit.config
    keep_bytecode(config.cache_dir)
    if config.role == "syncer":
        return _syncer(unit)
    if config.role == "learner":
        return _learner(unit)
    raise ValueError(f"a diloco unit is a learner or a syncer, not {config.role!r}")


def _syncer(unit: Unit) -> Parts:
    began_ns = time.monotonic_ns()
    from targets.diloco.resuming import fill_store, part_told, seam_told
    from targets.diloco.syncer import Syncer
    from targets.diloco.transport import Listener
    from targets.diloco.wire import Limits
    from targets.diloco.work import disk_store, layout_of, syncer_worker

    config = unit.config
    params = _params(config.params)
    layout = layout_of(params)
    learners = [params.learner_name(i) for i in range(params.learners)]
    told = config.config.get("resume", {})
    # What later lives go on from is durable by then.
    part = part_told(told) if unit.incarnation == 1 else None
    seam = seam_told(told, part) if part is not None else None
    digest = layout.digest(config.seed)
    node = Syncer(config.unit, params, learners, digest, layout.elements, seam)
    imported_ns = time.monotonic_ns()
    store = disk_store(params, config.seed, Path(config.state_dir))
    if part is not None:
        fill_store(store, part)
    worker: Any = syncer_worker(params, config.seed, store=store, cache_dir=config.cache_dir)
    worker.keeper = _keeper(unit, digest)

    def transport(sink: Any) -> Listener:
        limits = Limits.of_elements(layout.elements)
        listener = Listener(_me(unit, params), limits, sink, config.listen, learners, _tls(unit))
        traffic = listener.traffic
        node.traffic = lambda: (traffic.bytes_in, traffic.bytes_out)
        return listener

    ready_ns = time.monotonic_ns()
    return Parts(node, worker, transport, imported_ns - began_ns, ready_ns - imported_ns)


def _learner(unit: Unit) -> Parts:
    began_ns = time.monotonic_ns()
    from targets.diloco.accelerator import Pacer, StopSleeper
    from targets.diloco.checkpointing import Resuming
    from targets.diloco.early import EarlySink
    from targets.diloco.learner import Learner
    from targets.diloco.peers import LearnerLinks
    from targets.diloco.resuming import part_told
    from targets.diloco.tamper import TamperedTransport
    from targets.diloco.wire import Limits
    from targets.diloco.work import layout_of, learner_worker

    config = unit.config
    params = _params(config.params)
    number = _number(config.unit, params)
    donors = params.donors(number)
    for peer in (SYNCER, *donors):
        if peer not in config.peers:
            raise ValueError(f"{config.unit} was told no address of {peer!r}")
    layout = layout_of(params)
    told = config.config.get("resume", {})
    # Later lives recover from a peer: what this part holds may be merged by then.
    part = part_told(told) if unit.incarnation == 1 else None
    lives = told.get("lives", {}).get(config.unit, 0)
    digest = layout.digest(config.seed)
    node = Learner(
        config.unit,
        params,
        SYNCER,
        digest,
        donors,
        resuming=Resuming(part) if part is not None else None,
        lives_before=lives,
    )
    pacer = Pacer(
        params.step_ns(number), time.monotonic_ns, StopSleeper(unit.stopping), unit.tuning
    )
    worker: Any = learner_worker(
        params,
        number,
        config.seed,
        life=unit.incarnation + lives,
        cache_dir=config.cache_dir,
        pacing=pacer,
        tuning=unit.tuning,
    )
    worker.keeper = _keeper(unit, digest)
    imported_ns = time.monotonic_ns()
    trainer = getattr(worker, "trainer", None)
    opener = getattr(worker, "opener", None)
    if trainer is not None:
        trainer.warm()

    def transport(sink: Any) -> TamperedTransport:
        links = LearnerLinks(
            _me(unit, params),
            Limits.of_elements(layout.elements),
            sink if opener is None else EarlySink(sink, opener),
            SYNCER,
            config.peers,
            config.listen if params.recovery == "peer" else "",
            [params.learner_name(i) for i in range(params.learners)],
            _tls(unit),
        )
        return TamperedTransport(links, unit.tuning)

    ready_ns = time.monotonic_ns()
    return Parts(node, worker, transport, imported_ns - began_ns, ready_ns - imported_ns)


def _params(values: dict[str, Any]) -> DilocoParams:
    import msgspec

    from targets.diloco.params import DilocoParams

    # The composer validated them; this brings JSON's lists back into tuples, and does not let a
    # misspelt name pass for a default.
    if unknown := values.keys() - {field.name for field in fields(DilocoParams)}:
        raise ValueError(f"unknown parameters: {', '.join(sorted(unknown))}")
    params = msgspec.convert(values, DilocoParams)
    if problems := params.problems():
        raise ValueError("; ".join(problems))
    return params


def _keeper(unit: Unit, layout: str) -> Keeper:
    from targets.diloco.checkpoints import FileCheckpoints
    from targets.diloco.keeping import Keeper

    config = unit.config
    folder = config.checkpoint_dir or str(Path(config.state_dir) / "checkpoints")
    store = FileCheckpoints(Path(folder), config.run, layout)
    return Keeper(store, config.unit, config.role, config.run, layout)


def _number(name: str, params: DilocoParams) -> int:
    for number in range(params.learners):
        if params.learner_name(number) == name:
            return number
    raise ValueError(f"{name!r} is none of the {params.learners} learners")


def _me(unit: Unit, params: DilocoParams) -> Identity:
    from targets.diloco.transport import ANSWER_TIMEOUT_MS, Identity, ping_timeout_ms

    config = unit.config
    patience_ms = ping_timeout_ms(params.silence_ms_max)
    answer_ms = max(patience_ms, ANSWER_TIMEOUT_MS)
    return Identity(config.run, config.unit, unit.incarnation, config.token, patience_ms, answer_ms)


def _tls(unit: Unit) -> Tls | None:
    from targets.diloco.transport import Tls

    files = unit.config.config.get("tls")
    return None if files is None else Tls(*(Path(files[name]) for name in ("ca", "cert", "key")))


if __name__ == "__main__":
    # Before NumPy is imported. Idle OpenBLAS workers disturb the merge kernels, and gRPC's own
    # log lines about broken links say what the journal says better.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main(sys.argv, build)
