"""How a search ends early: signals to the one process, and nothing that outlives it.

A search is a process with workers. Whoever stops it means all of them, however he does it: a
terminal signals the whole group, ``kill`` the first process alone, and SIGKILL asks nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType

from harness.errors import Interrupted

STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals that ask a search to stop."""


class _Stopped(BaseException):
    """Goes through everything, the simulated run and the shrinking that are under way included:
    those answer a ``KeyboardInterrupt`` themselves, by going on with the next run."""


@contextmanager
def stoppable() -> Iterator[None]:
    """The first of :data:`STOPS` that comes meanwhile leaves this with :class:`Interrupted`; a
    second one acts as it did before. One that is ignored (``nohup``) stays so.

    Does nothing outside the main thread, where Python cannot install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    before = {n: old for n, old in before.items() if old not in (signal.SIG_IGN, None)}
    heard: list[int] = []

    def restore() -> None:
        for number, old in before.items():
            signal.signal(number, old)

    def handler(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        restore()
        raise _Stopped

    for number in before:
        signal.signal(number, handler)
    try:
        yield
    except _Stopped:
        raise Interrupted(heard[0]) from None
    finally:
        restore()


@contextmanager
def deaf() -> Iterator[None]:
    """This process hears :data:`STOPS` only afterwards; one that it begins meanwhile, never."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """For a worker, first of all: end as soon as the process that began it is gone, or at once if
    it is gone already."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    # The other end is held by the parent alone, and the kernel closes it whatever the parent dies
    # of.
    wait([sentinel])
    os._exit(1)
