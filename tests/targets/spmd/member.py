"""A process of a world, for tests: ``python -m tests.targets.spmd.member ADDRESS RANK SIZE ...``.

Takes ``steps`` steps on records of the rank's own and prints the digest of its state; then goes on
until a collective fails, and prints that.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from targets.diloco import codec
from targets.spmd.world import World, initial_state

BATCH, SEQUENCE, SEED = 2, 16, 5


def records(rank: int, step: int) -> np.ndarray:
    """uint8 [BATCH, SEQUENCE + 1]: what this rank trains on in this step."""
    draw = np.random.default_rng((SEED, rank, step))
    return draw.integers(0, 255, (BATCH, SEQUENCE + 1)).astype(np.uint8)


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(address: str, rank: int, size: int, steps: int, cache_dir: str) -> None:
    """Enter the world; see the module."""
    world = World("tiny", BATCH, SEQUENCE, cache_dir)
    world.meet(address, rank, size)
    world.prepare()
    # Only rank 0 has the state: the others must be given it.
    world.load(world.share(initial_state("tiny", SEED) if rank == 0 else None))
    say(f"start {codec.digest([world.snapshot()()])}")
    for step in range(steps):
        world.barrier()
        loss = world.step(step, 1e-3, 0.1, records(rank, step))
    flat = world.snapshot()()
    if rank == 0:
        np.save(os.path.join(cache_dir, "state.npy"), flat)
    say(f"state {codec.digest([flat])} {loss:.6f}")
    try:
        while True:
            world.barrier()
            time.sleep(0.01)
    except Exception as error:
        say(f"failed {type(error).__name__} {error}")
    os._exit(75)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
