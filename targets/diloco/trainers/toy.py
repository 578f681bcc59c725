"""The parameter tensors that the ``scripted`` and ``quadratic`` trainers share.

A quarter of ``scripted_elements`` is the embedding; the rest is in up to 48 tensors of three
different sizes, so that bin-packing has something to do and a default of 24 fragments fits.
"""

from __future__ import annotations

from itertools import accumulate

from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Tensor

BLOCKS_MAX = 48


def tensors(params: DilocoParams) -> tuple[Tensor, ...]:
    """One embedding and the blocks; their elements sum to ``scripted_elements`` exactly."""
    embedding = max(1, params.scripted_elements // 4)
    rest = params.scripted_elements - embedding
    shares = [1 + i % 3 for i in range(min(BLOCKS_MAX, rest))]
    whole = sum(shares)
    ends = [rest * share // whole for share in accumulate(shares)]
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    blocks = [Tensor(f"block-{i:02d}", (size,)) for i, size in enumerate(sizes) if size]
    return (Tensor("embedding", (embedding,), embedding=True), *blocks)


def tokens_per_step(params: DilocoParams, learner: int) -> int:
    """Sequences times bytes per sequence, as for the real trainer."""
    return params.batch_of(learner) * params.sequence
