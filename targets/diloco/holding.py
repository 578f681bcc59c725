"""What a learner holds, in numbers: the versions its fragments build on, and their counters.

Arrays are the worker's. Counters change when a job of the main lane is done, so these numbers and
the worker's snapshot are always of the same instant (paper, Algorithm 1: t_m, c_steps, c_tokens).
"""

from __future__ import annotations

from typing import NamedTuple

from targets.diloco.checkpointing import Counters
from targets.diloco.messages import Fragment, StateOffer


class Counted(NamedTuple):
    """Counters of one fragment at one instant."""

    since_step: int
    step: int
    c_tokens: int
    base_version: int
    base_clock: int


class Holding:
    """The counters of ``fragments`` fragments."""

    def __init__(self, fragments: int) -> None:
        self.joined = False
        """Whether there is a state: until then the rest says nothing."""
        self.step = 0
        """Local steps completed: t_m."""
        self.versions = [0] * fragments
        """Version of each fragment that the parameters build on."""
        self.committed = [0] * fragments
        """Global step at which that version was committed."""
        self.since = [0] * fragments
        """Local step at which each fragment was adopted; its counters run from there."""
        self.tokens = 0
        self.tokens_at = [0] * fragments
        """``tokens`` when each fragment was adopted."""

    # --- Algorithm 1 ----------------------------------------------------------------------------

    def trained(self, step: int, tokens: int) -> None:
        """Local step ``step`` is done; it took in ``tokens`` tokens."""
        self.step = step
        self.tokens += tokens

    def restart(self, f: Fragment) -> None:
        """The fragment was adopted: its counters run from here."""
        p = f.fragment
        self.versions[p] = f.version
        self.committed[p] = f.committed
        self.since[p] = self.step
        self.tokens_at[p] = self.tokens

    def of(self, p: int) -> Counted:
        """What a push of fragment ``p`` says if it is pulled now."""
        return Counted(
            self.since[p],
            self.step,
            self.tokens - self.tokens_at[p],
            self.versions[p],
            self.committed[p],
        )

    def c_steps(self) -> tuple[int, ...]:
        """Per fragment, the local steps since it was adopted."""
        return tuple([self.step - since for since in self.since])

    def c_tokens(self) -> tuple[int, ...]:
        """Per fragment, the tokens since it was adopted."""
        return tuple([self.tokens - at for at in self.tokens_at])

    # --- a state that comes as a whole ----------------------------------------------------------

    def take(self, offer: StateOffer, step: int) -> None:
        """A donor's state is loaded; local steps are counted on from ``step``."""
        self.joined = True
        self.step = step
        self.versions, self.committed = list(offer.versions), list(offer.committed)
        self.since = [step] * len(offer.versions)

    def counters(self, life: int) -> Counters:
        """What a checkpoint's part says; ``life`` is that of the data."""
        return Counters(
            step=self.step,
            versions=tuple(self.versions),
            committed=tuple(self.committed),
            since=tuple(self.since),
            tokens=self.c_tokens(),
            life=life,
        )

    def resume(self, counters: Counters) -> None:
        """An earlier run's part is loaded."""
        self.joined = True
        self.step = counters.step
        self.versions, self.committed = list(counters.versions), list(counters.committed)
        self.since = list(counters.since)
        self.tokens = max(counters.tokens)
        self.tokens_at = [self.tokens - tokens for tokens in counters.tokens]
