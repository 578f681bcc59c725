"""Python's bytecode, kept where a restarted unit finds it again."""

from __future__ import annotations

import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path


def keep_bytecode(cache_dir: str, witness: str = "jax") -> bool:
    """Keep bytecode in ``cache_dir`` if nobody else keeps it; True when it is kept there now.

    Importing JAX from source takes about four times as long as from bytecode. Where bytecode is
    not written beside the sources (``PYTHONDONTWRITEBYTECODE``, as many container images set it)
    and the installer did not put it there either, every restart would pay for that again. The
    package ``witness`` stands for all others: it is looked at, not imported.

    Call it first thing in a unit's own process, since it moves all later imports of the process.
    """
    spec = find_spec(witness)
    if not cache_dir or spec is None or spec.origin is None or sys.pycache_prefix is not None:
        return False
    if not sys.dont_write_bytecode or Path(cache_from_source(spec.origin)).exists():
        return False
    sys.pycache_prefix = str(Path(cache_dir) / "bytecode")
    sys.dont_write_bytecode = False
    return True
