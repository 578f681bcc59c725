"""A seed for whoever names none: one with which the experiment is an experiment.

A random schedule may draw no arrival at all in its window. With a seed that somebody chose this is
refused; one that nobody chose is replaced, by seeds that follow from the first alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from harness.arrivals import NO_ARRIVAL
from harness.errors import SpecError
from harness.seeds import derive

TRIES = 20
"""Seeds tried. Even a window of a tenth of the mean gap draws an arrival in 86 % of so many."""
_SEEDS = 2**31

T = TypeVar("T")


def with_seed(given: int | None, check: Callable[[int], T], first: int | None = None) -> T:
    """What ``check`` makes of the seed ``given``; else of ``first`` (default: a fresh one), or of
    the first one after it that draws an arrival of every fault.

    Raises the :class:`SpecError` of ``check`` when it is about anything else, too, and one with
    the first seed's problems after :data:`TRIES` seeds.
    """
    if given is not None:
        return check(given)
    seed = first = secrets.randbelow(_SEEDS) if first is None else first
    problems: tuple[str, ...] = ()
    where = ""
    for number in range(1, TRIES + 1):
        try:
            return check(seed)
        except SpecError as error:
            if not all(NO_ARRIVAL in problem for problem in error.problems):
                raise
            where, problems = error.where, problems or error.problems
        seed = derive(first, "another seed", number) % _SEEDS
    raise SpecError(where, [*problems, f"{TRIES - 1} other seeds were tried after it, in vain"])
