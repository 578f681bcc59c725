"""Whose mistake it was, as a type; the exit status follows from it.

ChaosError
├── SpecError          2  the experiment or the command line is wrong (all problems at once)
│   └── CapabilityError 2  a fault needs what the chosen runtime does not offer
├── HarnessError       4  our own machinery failed; never the target's failure
│   ├── LaunchError    4  a unit, proxy, container or port could not be had
│   ├── JournalError   4  a journal that cannot be read or written
│   └── ControlError   4  an action on a unit or link failed or missed its deadline
└── Interrupted      130  somebody asked us to stop (143 for SIGTERM)
"""

from __future__ import annotations

from collections.abc import Sequence


class ChaosError(Exception):
    """Root of everything this package raises on purpose."""

    exit_status: int = 4


class SpecError(ChaosError):
    """The author of an experiment or command line made one or more mistakes.

    ``problems`` holds every one of them; the message lists them all.
    """

    exit_status = 2

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{where}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  - {p}" for p in self.problems)]))


class CapabilityError(SpecError):
    """A fault needs a capability that the chosen runtime does not offer here."""


class HarnessError(ChaosError):
    """Our own machinery failed. Says what was tried, what was seen, and what to do."""


class LaunchError(HarnessError):
    """Something that a run needs could not be started."""


class JournalError(HarnessError):
    """A journal cannot be read or written."""


class ControlError(HarnessError):
    """An action on a unit or link failed, or did not end before its deadline."""


class FaultSkipped(Exception):
    """A fault found nothing it could act on (its victim is gone); the message says why."""


class Interrupted(ChaosError):
    """A signal asked the run to stop; everything is healed before this leaves the runner."""

    def __init__(self, signal_number: int, text: str = "") -> None:
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number
        super().__init__(text or f"interrupted by signal {signal_number}")
