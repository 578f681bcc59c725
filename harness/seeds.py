"""One integer seed into independent named random streams.

Streams are keyed by name, so adding a fault (a new name) does not move what the others draw.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A 64-bit seed for the stream called ``names``; stable across processes and hash seeds."""
    text = "\x1f".join([str(seed), *(str(n) for n in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def stream(seed: int, *names: str | int) -> random.Random:
    """A ``random.Random`` of its own for the stream called ``names``."""
    return random.Random(derive(seed, *names))


def array_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator (PCG64) of its own for the stream called ``names``."""
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))
