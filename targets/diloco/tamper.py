"""The update faults that are the protocol's affair: pushes that are stale or sent twice.

Wrong payloads are made by the worker (``targets.diloco.poison``); here whole messages are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from faults.base import Tuning
from targets.diloco.messages import Push
from targets.live import Transport


class TamperedTransport:
    """A transport whose pushes are tampered with while the tuning says so.

    ``duplicate`` sends each push twice. ``stale`` lets the first push of each fragment pass and
    then sends it again and again in place of every later one, as an answer to their pulls, and
    says that it was computed from the initial version: older than any bound once a run is steady.
    """

    def __init__(self, inner: Transport, tuning: Callable[[], Tuning]) -> None:
        self._inner = inner
        self._tuning = tuning
        self._first: dict[int, Push] = {}

    def start(self) -> None:
        """See ``Transport``."""
        self._inner.start()

    def send(self, peer: str, message: Any) -> None:
        """See ``Transport``."""
        if not isinstance(message, Push) or message.c_steps == 0:
            self._inner.send(peer, message)
            return
        update = self._tuning().update
        if update == "stale":
            first = self._first.setdefault(message.fragment, message)
            if first is not message:
                message = msgspec.structs.replace(
                    first,
                    incarnation=message.incarnation,
                    request=message.request,
                    clock=message.clock,
                    base_version=0,
                    base_clock=0,
                )
        else:
            self._first.clear()
        self._inner.send(peer, message)
        if update == "duplicate":
            self._inner.send(peer, message)

    def dial(self, peer: str) -> None:
        """Passed on; recovery is not tampered with."""
        inner: Any = self._inner
        inner.dial(peer)

    def disconnect(self, peer: str, why: str) -> None:
        """See ``Transport``."""
        self._inner.disconnect(peer, why)

    def close(self) -> None:
        """See ``Transport``."""
        self._inner.close()
