"""How parameters split into fragments, and which fragment is due at which global step.

Paper appendix C, "balanced tensor": the embedding has a fragment of its own, every other tensor
goes, largest first, into the fragment that is smallest so far (the largest fragment is then at
most 4/3 of the best possible one, Graham 1969). Whole tensors only; plain integers, no arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace


def assign(sizes: Sequence[tuple[str, int, bool]], fragments: int) -> tuple[tuple[int, ...], ...]:
    """Tensor indices of each fragment, ascending inside a fragment.

    ``sizes`` holds (name, elements, is_embedding) for every tensor. Embedding tensors form
    fragment 0 when there is more than one fragment. Raises ``ValueError`` when there are more
    fragments than tensors to fill them, naming both numbers.
    """
    if fragments < 1:
        raise ValueError(f"fragments is {fragments}: at least one is needed")
    embedding = [i for i, (_, _, is_embedding) in enumerate(sizes) if is_embedding]
    rest = [i for i, (_, _, is_embedding) in enumerate(sizes) if not is_embedding]
    if fragments == 1 or not embedding:
        embedding, rest = [], list(range(len(sizes)))
    bins = fragments - bool(embedding)
    if len(rest) < bins:
        raise ValueError(
            f"fragments is {fragments} but the model has only {len(sizes)} tensors"
            + (f", {len(embedding)} of them in the embedding's fragment" if embedding else "")
            + f"; use at most {len(rest) + bool(embedding)}"
        )
    filled = _balanced(rest, [elements for _, elements, _ in sizes], bins)
    return (tuple(embedding), *filled) if embedding else filled


def _balanced(tensors: list[int], elements: list[int], bins: int) -> tuple[tuple[int, ...], ...]:
    """Greedy number partitioning; ties go to the earlier tensor and the earlier bin."""
    content: list[list[int]] = [[] for _ in range(bins)]
    # (elements, tensors, bin), the smallest first: the second entry fills empty bins first should
    # a tensor have no element.
    loads = [(0, 0, number) for number in range(bins)]
    for tensor in sorted(tensors, key=lambda i: (-elements[i], i)):
        load, held, smallest = loads[0]
        content[smallest].append(tensor)
        heapreplace(loads, (load + elements[tensor], held + 1, smallest))
    return tuple(tuple(sorted(indices)) for indices in content)


def offsets(fragments: int, sync_every: int) -> tuple[int, ...]:
    """t_p of every fragment, spread evenly over 0 .. ``sync_every`` - 1 and all distinct.

    Raises ``ValueError`` when there are more fragments than steps in a cycle.
    """
    if not 1 <= fragments <= sync_every:
        raise ValueError(
            f"{fragments} fragments cannot have distinct offsets in {sync_every} steps"
        )
    return tuple(p * sync_every // fragments for p in range(fragments))


def schedule(fragments: int, sync_every: int) -> tuple[int | None, ...]:
    """The fragment that is due at each global step modulo ``sync_every``; None where none is."""
    table: list[int | None] = [None] * sync_every
    for fragment, offset in enumerate(offsets(fragments, sync_every)):
        table[offset] = fragment
    return tuple(table)


def due(clock: int, fragments: int, sync_every: int) -> int | None:
    """The fragment that is due at global step ``clock`` (``clock`` mod H == t_p), if any."""
    return schedule(fragments, sync_every)[clock % sync_every]
