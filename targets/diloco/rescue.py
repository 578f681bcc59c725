"""When the syncer's disk gave nothing back: its state is taken from the learners.

The paper's syncer does not die; ours may, and its disk may die with it. A syncer that has lived
before and finds nothing saved must not begin anew: learners hold versions that it would commit a
second time. So it listens first. Once every learner was heard, or :func:`wait_ns` after the first
one, each fragment is taken from a learner that holds the newest version of it, as that learner has
it now: the version and what it trained since. The result is a version of its own (``RolledBack``)
beyond :data:`EPOCH`, so above whatever a learner holds that is away, and everybody adopts it.
What was trained on older versions counts for nothing from then on (``Committed.floor``): no step
gets into a fragment twice. The outer momentum is lost and begins at zero.

Where everybody was heard and holds the initial version, nothing was lost: a learner that began
anew and holds none may have had one.
Sans-IO, as the nodes that use it: :class:`Rescue` in the syncer, :class:`Handing` in a learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from targets.base import Effect, Send, Work
from targets.diloco.liveness import NEVER
from targets.diloco.messages import (
    STATE_KINDS,
    Clock,
    CopyState,
    DropState,
    Fragment,
    Payload,
    ReadState,
)
from targets.diloco.params import DilocoParams
from targets.diloco.recovery import LANE

EPOCH = 1_000_000
"""Versions after a rescue begin at the next multiple of this that no earlier life of the syncer can
have begun at. It is more merges of one fragment than a learner is away for."""

ANSWER_NS = 30_000_000_000
"""How long a learner may take to hand everything over; slow links need their time."""

WHY = "the syncer's disk gave nothing back"


def wait_ns(params: DilocoParams) -> int:
    """How long the others may take to be heard after the first: a link that broke with the syncer
    is noticed and dialled again within this."""
    return 2 * params.silence_ms_max * 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """Where a fragment comes from. ``donor`` is empty for the initial parameters."""

    donor: str
    held: int
    version: int
    """What it becomes."""


class Rescue:
    """The syncer's side: who was heard, who is asked for what, and by when."""

    def __init__(self, params: DilocoParams) -> None:
        self.active = False
        self.owed: dict[int, Found] = {}
        """Fragments that were asked for and are not here."""
        self._params = params
        self._here: dict[str, tuple[int, ...] | None] = {}
        self._first: tuple[int, ...] = ()
        self._highest: list[int] = []
        self._lives = 0
        """Of the syncer, before this one: each may have been rescued too, and nobody is left who
        would know."""
        self._decided = False
        self._until = NEVER

    def begin(
        self, first: Sequence[int], incarnation: int, beyond: Sequence[int] | None = None
    ) -> None:
        """Nothing was saved although an earlier life was here; ``first`` are the versions of the
        parameters with which this life began, ``incarnation`` is the syncer's own, ``beyond`` are
        versions that an earlier run had reached."""
        self.active = True
        self._lives = incarnation - 1
        self._first = tuple(first)
        self._highest = list(beyond if beyond is not None else first)

    def due_ns(self) -> int:
        """When :meth:`decide` or :meth:`anew` should be called, whoever was heard."""
        return self._until if self.active else NEVER

    def heard(self, name: str, versions: tuple[int, ...] | None, now: int) -> bool:
        """A learner said hello; None when it holds no state. Whether to call :meth:`anew`."""
        self._here[name] = versions
        if versions is not None:
            self._highest = [max(pair) for pair in zip(self._highest, versions, strict=True)]
        if self._decided:
            return any(not found.donor for found in self.owed.values())
        # Those without state have nobody to train on: whoever has some is well worth waiting for.
        limit = ANSWER_NS if versions is None else wait_ns(self._params)
        self._until = min(self._until, now + limit)
        return False

    def gone(self, name: str) -> bool:
        """Its link is lost; whether it owed something, so that others must be asked."""
        self._here.pop(name, None)
        if not self._here and not self._decided:
            self._until = NEVER  # whoever comes first now is the first
        return any(found.donor == name for found in self.owed.values())

    def ready(self, now: int) -> bool:
        """Whether to decide now."""
        if self._decided or not self._here:
            return False
        return len(self._here) == self._params.learners or now >= self._until

    def decide(self, now: int) -> Mapping[int, Found]:
        """Where each fragment comes from; empty when nothing was lost. Call when :meth:`ready`."""
        self._decided = True
        everybody = len(self._here) == self._params.learners
        stateless = any(versions is None for versions in self._here.values())
        if everybody and not stateless and tuple(self._highest) == self._first:
            self._settle()
            return {}
        found = {p: self._found(p) for p in range(self._params.fragments)}
        self.owed = {p: f for p, f in found.items() if f.donor}
        self._until = now + ANSWER_NS
        self._settle()
        return found

    def anew(self, now: int) -> Mapping[int, Found]:
        """Ask others for what will not come: its donor is gone, or did not answer in time.

        What nobody that is here holds is waited for once more, and then is the initial one: with
        no ``donor`` and not in :attr:`owed`.
        """
        late = now >= self._until
        if late:
            for found in self.owed.values():
                self._here.pop(found.donor, None)
        lost = {p: f for p, f in self.owed.items() if f.donor not in self._here}
        wanted = {p: self._found(p) for p in lost}
        given_up = {p for p, f in wanted.items() if late and not f.donor and not lost[p].donor}
        self.owed = {p: f for p, f in {**self.owed, **wanted}.items() if p not in given_up}
        whole = all(found.donor for found in self.owed.values())
        self._until = now + (ANSWER_NS if whole else wait_ns(self._params))
        self._settle()
        return wanted

    def came(self, sender: str, fragment: Fragment) -> Found | None:
        """What becomes of a fragment that a learner sent; None for one that nobody asked it for."""
        found = self.owed.get(fragment.fragment)
        if found is None or found.donor != sender:
            return None
        del self.owed[fragment.fragment]
        self._settle()
        return Found(sender, fragment.version, found.version)

    def _settle(self) -> None:
        if not self.owed:
            self.active, self._until = False, NEVER

    def _found(self, p: int) -> Found:
        version = max(self._highest[p] // EPOCH + 1, self._lives) * EPOCH
        first = self._first[p]
        here = [(name, v[p]) for name, v in sorted(self._here.items()) if v is not None]
        held = {name: has for name, has in here if has > first}
        if not held:
            return Found("", first, version)
        newest = max(held.values())
        return Found(next(n for n, v in held.items() if v == newest), newest, version)


class Handing:
    """The learner's side: all that it holds, fragment by fragment, as after its last step."""

    def __init__(self, syncer: str) -> None:
        self._syncer = syncer
        self._count = 0
        self._versions: tuple[int, ...] = ()
        self._committed: tuple[int, ...] = ()

    def owns(self, job: CopyState | ReadState | DropState) -> bool:
        """Whether a job belongs to this and not to a newcomer's recovery."""
        return job.transfer.startswith(_PREFIX)

    def asked(self, versions: tuple[int, ...], committed: tuple[int, ...]) -> list[Effect]:
        """The syncer needs what the learner holds: pinned now, with the counters of now."""
        out: list[Effect] = []
        if self._count:
            out.append(Work(DropState(self._transfer), lane=LANE))
        self._count += 1
        self._versions, self._committed = versions, committed
        return [*out, Work(CopyState(self._transfer), lane=LANE)]

    def copied(self, job: CopyState) -> list[Effect]:
        """It is pinned: read the parameters, one fragment after the other."""
        if job.transfer != self._transfer:
            return []
        numbers = (STATE_KINDS * p for p in range(len(self._versions)))
        return [Work(ReadState(self._transfer, number), lane=LANE) for number in numbers]

    def part(self, job: ReadState, payload: Payload, clock: Clock) -> list[Effect]:
        """A fragment was read: send it; after the last one nothing is kept."""
        if job.transfer != self._transfer:
            return []
        p = job.number // STATE_KINDS
        message = Fragment(p, self._versions[p], self._committed[p], payload, clock)
        out: list[Effect] = [Send(self._syncer, message)]
        if p == len(self._versions) - 1:
            out.append(Work(DropState(self._transfer), lane=LANE))
        return out

    @property
    def _transfer(self) -> str:
        return f"{_PREFIX}{self._count}"


_PREFIX = "rescue/"
"""No unit is called so, and recoveries begin with the name of one."""
