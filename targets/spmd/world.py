"""One process's part of a world: JAX over several processes, gloo between them.

:func:`open_meeting_point` is the launcher's side: the coordination service at which the processes
of one world find each other. It lives in the launcher and not, as is usual, in the process of
rank 0: whoever holds it takes all others down at once by an abort inside JAX, before a worker can
say why it ends.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from targets.diloco import architecture, compiled
from targets.diloco.architecture import SIZES
from targets.diloco.trainers.base import Arrays
from targets.spmd.checkpoints import Flat

FOREVER_S = 1_000_000
"""JAX's own failure detection is not used: it aborts processes. The launcher notices the silent
ones, and gloo notices the dead."""

MEET_S = 60
"""How long the members of a world may take to meet."""

_SOURCES = (
    "targets.diloco.architecture",
    "targets.diloco.model",
    "targets.diloco.training",
    "targets.spmd.world",
)


class MeetingPoint(Protocol):
    """A running coordination service."""

    def shutdown(self) -> None:
        """End it."""
        ...


def open_meeting_point(host: str, size: int) -> tuple[str, MeetingPoint]:
    """(address, service) for ``size`` processes, on a free port of ``host``.

    Raises ``OSError`` when no port can be had.
    """
    from jaxlib import _jax  # the service without JAX itself, which takes seconds to import

    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    address = f"{host}:{port}"
    try:
        service: MeetingPoint = _jax.get_distributed_runtime_service(
            address, size, heartbeat_timeout=FOREVER_S, shutdown_timeout=1
        )
    except Exception as error:  # whatever the extension raises for a port that is taken
        raise OSError(f"no coordination service at {address}: {error}") from error
    return address, service


def start_jax() -> Any:
    """JAX on one CPU thread, with gloo for what goes between processes."""
    jax = compiled.start_jax()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    return jax


class World:
    """The replicated state, and the jitted programs over it.

    Every method that takes part in a collective blocks until all processes are in it, and raises
    whatever JAX raises when one of them is gone.
    """

    def __init__(self, model: str, batch: int, sequence: int, cache_dir: str) -> None:
        self._model = model
        self._arch = SIZES[model]
        self._batch = batch
        self._sequence = sequence
        self._cache_dir = cache_dir
        self._jax = start_jax()
        self._shapes = [t.shape for t in architecture.tensors(self._arch)]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.values = 3 * sum(self._sizes)
        """Values of the whole state: parameters and two moments."""
        self.took_ns = 0
        """What making the step program ready took."""
        self.source = ""
        self._rank = 0
        self._size = 0
        self._state: tuple[list[Any], list[Any], list[Any]] = ([], [], [])

    def meet(self, address: str, rank: int, size: int) -> None:
        """Become ``rank`` of ``size``, once in a process's life. Returns when all are there."""
        from jax._src import distributed  # the public call would run the service in rank 0
        from jaxlib import _jax

        client = _jax.get_distributed_runtime_client(
            address, rank, init_timeout=MEET_S, use_compression=True, heartbeat_timeout=FOREVER_S
        )
        client.connect()
        state = distributed.global_state
        state.client, state.coordinator_address = client, address
        state.process_id, state.num_processes = rank, size
        self._rank, self._size = rank, size
        sharding = self._jax.sharding
        mesh = sharding.Mesh(np.array(self._jax.devices()), ("workers",))
        self._mesh = mesh
        self._everywhere = sharding.NamedSharding(mesh, sharding.PartitionSpec())
        self._spread = sharding.NamedSharding(mesh, sharding.PartitionSpec("workers"))

    def prepare(self) -> None:
        """Make the programs ready: load them, or compile and keep them."""
        began_ns = time.monotonic_ns()
        leaves = [self._shape(s, np.float32, self._everywhere) for s in self._shapes]
        scalar = self._shape((), np.float32, self._everywhere)
        count = self._shape((), np.int32, self._everywhere)
        rows = (self._size * self._batch, self._sequence + 1)
        records = self._shape(rows, np.uint8, self._spread)
        program = self._obtain(
            f"spmd-{self._model}",
            self._make_step,
            (leaves, leaves, leaves, count, scalar, scalar, records),
            (leaves, leaves, leaves, scalar),
        )
        self._step = program.call
        self._meet_again = self._summed("barrier", 1)
        self.took_ns = time.monotonic_ns() - began_ns
        self.source = program.source

    def load(self, flat: Flat) -> None:
        """Take up a state; it must be the same one in every process."""
        parts = np.split(flat, np.cumsum(self._sizes * 3)[:-1])
        arrays = [p.reshape(s) for p, s in zip(parts, self._shapes * 3, strict=True)]
        third = len(self._shapes)
        put = [self._replicated(a) for a in arrays]
        self._state = put[:third], put[third : 2 * third], put[2 * third :]

    def share(self, flat: Flat | None) -> Flat:
        """Everybody gets the state of the one process that has one; the others pass None."""
        row = np.zeros(self.values, np.float32) if flat is None else flat
        return np.asarray(self._summed("share", self.values)(self._row(row)), np.float32)

    def barrier(self) -> None:
        """Wait until everybody is here."""
        self._jax.block_until_ready(self._meet_again(self._row(np.ones(1, np.float32))))

    def step(self, count: int, rate: float, decay: float, records: Any) -> float:
        """One step on this process's ``records`` (uint8 [batch, sequence + 1]); the mean loss."""
        jax = self._jax
        whole = (self._size * self._batch, self._sequence + 1)
        result = self._step(
            *self._state,
            self._replicated(np.int32(count)),
            self._replicated(np.float32(rate)),
            self._replicated(np.float32(decay)),
            jax.make_array_from_process_local_data(self._spread, records, whole),
        )
        # Errors of a collective surface here, before any of the state is replaced.
        params, first, second, loss = jax.block_until_ready(result)
        self._state = params, first, second
        return float(loss)

    def snapshot(self) -> Callable[[], Flat]:
        """The state as it is now, read when asked; arrays are never written to."""
        leaves = [leaf for part in self._state for leaf in part]
        return lambda: np.concatenate([np.asarray(a, np.float32).reshape(-1) for a in leaves])

    # --- programs -------------------------------------------------------------------------------

    def _make_step(self) -> Callable[..., Any]:
        import jax
        import jax.numpy as jnp

        from targets.diloco.training import inner_step

        spec = jax.sharding.PartitionSpec
        shapes, sizes = self._shapes, self._sizes

        def differentiate(mean_loss: Any, params: Any, records: Any) -> Any:
            def local(params: Any, records: Any) -> Any:
                # Told that they differ, or JAX would sum gradients tensor by tensor.
                mine = [jax.lax.pcast(p, ("workers",), to="varying") for p in params]
                loss, gradients = jax.value_and_grad(mean_loss)(mine, records)
                flat = jnp.concatenate([g.reshape(-1) for g in [*gradients, loss]])
                return jax.lax.pmean(flat, "workers")  # the one collective of a step

            # The mesh's devices are this world's; those of every world lower to the same code.
            flat = jax.shard_map(
                local, mesh=self._mesh, in_specs=(spec(), spec("workers")), out_specs=spec()
            )(params, records)
            ends = np.cumsum(sizes)
            parts = [
                flat[e - n : e].reshape(s) for e, n, s in zip(ends, sizes, shapes, strict=True)
            ]
            return flat[-1], parts

        step = inner_step(self._arch, differentiate)

        def everywhere(*arguments: Any) -> Any:
            return jax.lax.with_sharding_constraint(step(*arguments), self._everywhere)

        return everywhere

    def _summed(self, name: str, values: int) -> Callable[..., Any]:
        """Sum of one row of ``values`` from each process, in every process."""

        def make() -> Callable[..., Any]:
            import jax

            return lambda rows: jax.lax.with_sharding_constraint(rows.sum(axis=0), self._everywhere)

        rows = self._shape((self._size, values), np.float32, self._spread)
        result = self._shape((values,), np.float32, self._everywhere)
        return self._obtain(f"spmd-{name}", make, (rows,), result).call

    def _obtain(
        self, name: str, make: Callable[[], Any], arguments: Sequence[Any], results: Any
    ) -> compiled.Program:
        return compiled.obtain(
            name,
            make,
            arguments,
            results,
            parts=_parts(repr(self._arch), self._size),
            cache_dir=self._cache_dir,
            alone=False,
        )

    # --- arrays ---------------------------------------------------------------------------------

    def _shape(self, dims: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
        return self._jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)

    def _replicated(self, value: Any) -> Any:
        array = np.array(value)
        return self._jax.make_array_from_callback(
            array.shape, self._everywhere, lambda index: array[index]
        )

    def _row(self, values: Flat) -> Any:
        whole = (self._size, values.size)
        return self._jax.make_array_from_process_local_data(self._spread, values[None], whole)


def initial_state(model: str, seed: int) -> Flat:
    """The state before the first step: the initial parameters, moments of zero."""
    arrays: Arrays = architecture.initial(SIZES[model], seed)
    params = np.concatenate([np.asarray(a, np.float32).reshape(-1) for a in arrays])
    return np.concatenate([params, np.zeros(2 * params.size, np.float32)])


def _parts(arch: str, size: int) -> dict[str, str]:
    """Everything of ours that the programs are made from."""
    parts = {"architecture": arch, "size": str(size)}
    for module in _SOURCES:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        parts[module] = hashlib.blake2b(Path(spec.origin).read_bytes()).hexdigest()
    return parts | {package: version(package) for package in ("flax", "optax")}
