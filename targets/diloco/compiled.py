"""Starting JAX on one CPU thread, and keeping compiled functions from one life to the next.

A learner that was killed should train again in a second or two, with other learners busy on the
same cores. Compiling is the smaller part of that: importing Flax and tracing the model cost more.
So the finished executable is kept in ``cache_dir`` under a key made of everything that went into
it; who finds it there neither imports the model nor traces it. JAX's own persistent compilation
cache saves the compilation only, so it is not used.

An entry is only as trustworthy as the folder: loading one runs machine code, so entries of other
users are ignored. Entries that are torn, do not load or do not run are compiled anew and replaced.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)

Revive = Callable[[bytes, Sequence[Any], Any], Callable[..., Any]]
"""(serialized executable, arguments, results) to something that runs."""

_MAGIC = b"DLCX2\n"
_XLA_FLAGS = (
    "--xla_cpu_multi_thread_eigen=false",
    "intra_op_parallelism_threads=1",
)


def start_jax() -> Any:
    """Import JAX for one CPU thread, with strict type promotion, and return it.

    The thread settings take effect only when JAX was not used in this process before.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if "jax" not in sys.modules:
        have = os.environ.get("XLA_FLAGS", "")
        missing = [flag for flag in _XLA_FLAGS if flag.split("=")[0] not in have]
        os.environ["XLA_FLAGS"] = " ".join([*have.split(), *missing])
        # The size of XLA's thread pools, which no flag sets.
        os.environ.setdefault("NPROC", "1")
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    # A step is waited for anyway; without a dispatch thread it runs where it is called.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return jax


@dataclass(frozen=True)
class Program:
    """A function ready to run. ``source`` is ``cache`` or ``compiled``."""

    call: Callable[..., Any]
    source: str
    took_ns: int
    why: str = ""
    """Why an entry of the cache could not be used or made; empty when all is well."""


def obtain(
    name: str,
    make: Callable[[], Callable[..., Any]],
    arguments: Sequence[Any],
    results: Any,
    *,
    parts: Mapping[str, str],
    cache_dir: str = "",
    alone: bool = True,
) -> Program:
    """``make()`` compiled for ``arguments``, from the cache when it is there.

    ``arguments`` are positional ``jax.ShapeDtypeStruct`` trees and ``results`` is any tree shaped
    like what the function returns. ``parts`` is whatever else the program depends on (sizes,
    digests of the sources); JAX's version, flags and the processor are added here. Several
    processes that miss at the same time wait for the first one instead of all compiling.

    A program that is not ``alone`` runs on the devices of several processes at once, which may
    share one entry. It is not tried out when it is loaded: that would need all of them.
    """
    began_ns = time.monotonic_ns()
    if cache_dir:
        path = Path(cache_dir) / f"{name}-{_key(name, arguments, parts)}.xla"
        revive = _revive if alone else _load_on_all
        call, source, why = _kept(path, make, arguments, results, revive)
    else:
        call, source, why = _compile(make, arguments), "compiled", ""
    if why:
        _log.warning("%s", why)
    return Program(call, source, time.monotonic_ns() - began_ns, why)


def _kept(
    path: Path,
    make: Callable[[], Callable[..., Any]],
    arguments: Sequence[Any],
    results: Any,
    revive: Revive,
) -> tuple[Any, str, str]:
    """(callable, source, why the cache was of no use)."""
    call, why = _load(path, arguments, results, revive)
    if call is not None:
        return call, "cache", ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            # Somebody else may have compiled it while this process waited for the lock.
            call, why_again = _load(path, arguments, results, revive)
            if call is not None:
                return call, "cache", why
            call = _compile(make, arguments)
            kept = _store(path, call, arguments, results, revive)
            return call, "compiled", kept or why_again
    except OSError as error:
        return _compile(make, arguments), "compiled", f"no compiled code can be kept: {error}"


def _compile(make: Callable[[], Callable[..., Any]], arguments: Sequence[Any]) -> Any:
    """Compile without JAX's own cache, should the user's environment have switched it on.

    What comes out of that cache cannot be serialized again: it would load and then fail to run.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    lowered = jax.jit(make()).lower(*arguments)
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it remembers whether it is on
    try:
        return lowered.compile()
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _key(name: str, arguments: Sequence[Any], parts: Mapping[str, str]) -> str:
    text = repr(
        (
            name,
            arguments,
            sorted(parts.items()),
            [(package, version(package)) for package in ("jax", "jaxlib")],
            platform.python_version(),
            os.environ.get("XLA_FLAGS", ""),
            _processor(),
        )
    )
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@cache
def _processor() -> str:
    """What the processor can do: code made for another one may end in an illegal instruction."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({ln for ln in info.splitlines() if ln.startswith(wanted)}))


def _load(path: Path, arguments: Sequence[Any], results: Any, revive: Revive) -> tuple[Any, str]:
    """(callable or None, why an entry that exists was of no use)."""
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            data = file.read()
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path.name} cannot be read: {error}"
    if owner not in (0, os.geteuid()):
        return None, f"{path.name} belongs to another user"
    head = len(_MAGIC) + hashlib.sha256().digest_size
    body = data[head:]
    if data[:head] != _MAGIC + hashlib.sha256(body).digest():
        return None, f"{path.name} is torn or of another format"
    try:
        return revive(body, arguments, results), ""
    except Exception as error:  # whatever XLA dislikes about it, compiling anew is the cure
        return None, f"{path.name} does not work here: {error}"


def _revive(body: bytes, arguments: Sequence[Any], results: Any) -> Callable[..., Any]:
    """Load and run it once, on zeros: there are executables that load and then fail to run."""
    import jax
    from jax.experimental import serialize_executable

    loaded: Callable[..., Any] = serialize_executable.deserialize_and_load(
        body,
        jax.tree.structure((tuple(arguments), {})),
        jax.tree.structure(results),
        execution_devices=jax.devices()[:1],
    )
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tuple(arguments))
    jax.block_until_ready(loaded(*zeros))
    return loaded


def _load_on_all(body: bytes, arguments: Sequence[Any], results: Any) -> Callable[..., Any]:
    """Load it for the devices of every process that runs it."""
    import jax
    from jax.experimental import serialize_executable

    loaded: Callable[..., Any] = serialize_executable.deserialize_and_load(
        body, jax.tree.structure((tuple(arguments), {})), jax.tree.structure(results)
    )
    return loaded


def _store(
    path: Path, compiled: Any, arguments: Sequence[Any], results: Any, revive: Revive
) -> str:
    """Put the entry there whole or not at all; why not, or nothing."""
    from jax.experimental import serialize_executable

    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        body, _, _ = serialize_executable.serialize(compiled)
        revive(body, arguments, results)  # no later life should have to find out
        temporary.write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
        temporary.replace(path)
    except Exception as error:  # the program in hand is good; only later starts are slower
        temporary.unlink(missing_ok=True)
        return f"{path.name} cannot be kept: {error}"
    return ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclusive between processes; the kernel releases it when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
