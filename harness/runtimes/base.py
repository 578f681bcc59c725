"""Where units live. A runtime hosts a target's units, reports events, and offers controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from faults.base import Capability, Control
from harness.clock import Clock
from harness.events import AnyEvent, ResidueFound
from targets.base import Target


@dataclass(frozen=True)
class RunContext:
    """What a runtime is told about the run it serves."""

    run: str
    """Run id; labels everything that the runtime creates."""
    seed: int
    directory: Path
    """The run directory; units write logs below ``units/``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Runtime options of the spec's ``[runtime_options]`` table and of the command line."""


class Runtime(Control, Protocol):
    """Life cycle: ``open``, many ``poll`` and control calls, ``close``, ``residue``."""

    @property
    def name(self) -> str:
        """The runtime's name in the table of runtimes."""
        ...

    @property
    def clock(self) -> Clock:
        """The run's clock; there before ``open``."""
        ...

    @property
    def offers(self) -> frozenset[Capability]:
        """What faults may ask of this runtime on this machine; there before ``open``."""
        ...

    @property
    def proxy(self) -> str:
        """Which proxy carries the links: ``toxiproxy 2.12.0``, ``embedded``, ``simulated``."""
        ...

    def open(self, target: Target) -> None:
        """Start everything; raises ``LaunchError`` with what, where and what to do."""
        ...

    def poll(self, until_ns: int) -> list[AnyEvent]:
        """Events that became known, oldest first. Returns as soon as there is one, at the
        latest at ``until_ns`` (the clock then stands at or after it, also when idle)."""
        ...

    def alive(self, unit: str) -> bool:
        """Whether a process of the unit runs now (a frozen one does)."""
        ...

    def close(self) -> None:
        """Thaw, heal, stop and remove everything; safe to call twice and after a failed open.
        Events still on their way are returned by one more ``poll``."""
        ...

    def residue(self, t_ns: int) -> ResidueFound:
        """What of this run is still there after ``close``."""
        ...


@contextmanager
def opened(runtime: Runtime, target: Target) -> Iterator[Runtime]:
    """Open a runtime and close it whatever happens, also when opening fails half way."""
    try:
        runtime.open(target)
        yield runtime
    finally:
        runtime.close()
