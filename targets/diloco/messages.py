"""What learners and the syncer say to each other, and the jobs they give to their workers.

Arrays never appear here: a :class:`Payload` passes through the machines unopened. Only a worker
looks inside ``data``; the wire turns it into bytes and back, the simulator asks for ``nbytes``.
``clock`` is the sender's vector clock (paper section 3.3 / E.1): unit name to counter, the
syncer's entry being its global step and a learner's its local step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from targets.diloco.evaluation import Evaluate
from targets.diloco.wiretypes import CHANGES

Clock = dict[str, int]


class Payload(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One fragment's arrays. ``data`` is opaque to the machines and may be None in simulation.

    Equality and hash leave ``data`` out: the digest speaks for it.
    """

    dtype: str
    """f32, bf16 or int4: how the elements travel."""
    nbytes: int
    digest: str
    data: Any = None
    tampered: str = ""
    """The fault that spoilt this payload, as its maker says; it does not travel."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not Payload:
            return NotImplemented
        return (self.dtype, self.nbytes, self.digest) == (other.dtype, other.nbytes, other.digest)

    def __hash__(self) -> int:
        return hash((self.dtype, self.nbytes, self.digest))

    @property
    def relative(self) -> bool:
        """Whether this is the change since an anchor (see ``targets.diloco.wiretypes``)."""
        return self.dtype in CHANGES


# --- learner to syncer --------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, gc=False):
    """First message on every connection. ``versions`` is None for a learner without state."""

    incarnation: int
    layout: str
    """Digest of the parameter layout: names, shapes, dtypes, fragment assignment, seed."""
    step: int
    versions: tuple[int, ...] | None
    clock: Clock


class Report(msgspec.Struct, frozen=True, gc=False):
    """Metadata after every inner step (Algorithm 1, line 13)."""

    incarnation: int
    step: int
    c_steps: tuple[int, ...]
    c_tokens: tuple[int, ...]
    step_ns: int
    clock: Clock


class Push(msgspec.Struct, frozen=True, gc=False):
    """Answer to a :class:`Pull`: the fragment after local step ``step``.

    Covers the local steps ``since_step`` (excluded) to ``step`` (included), which began from
    version ``base_version`` of the fragment.
    """

    incarnation: int
    request: int
    """The ``request`` of the pull that this answers."""
    fragment: int
    since_step: int
    step: int
    c_steps: int
    c_tokens: int
    base_version: int
    base_clock: int
    payload: Payload
    clock: Clock


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """Sent by both sides when nothing else was for a while; echoed once to measure round trips."""

    nonce: int
    echo: bool
    clock: Clock


class NeedState(msgspec.Struct, frozen=True, gc=False):
    """Who has no state asks for every fragment: a learner the syncer, when no peer could give it
    its own, and a syncer whose disk is lost a learner (``targets.diloco.rescue``)."""

    why: str
    clock: Clock


class PartSaved(msgspec.Struct, frozen=True, gc=False):
    """The learner's part of the snapshot of global step ``marker`` is durable, or why there is
    none (then ``why`` is not empty and the rest means nothing)."""

    marker: int
    step: int
    nbytes: int
    digest: str
    """Of the whole part, as its store names it."""
    why: str
    clock: Clock


# --- syncer to learner --------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, gc=False):
    """The syncer accepts a connection; with ``send_state`` every fragment follows, to a newcomer
    without it the one committed last, as the first that bears a stamp (paper E.3.2)."""

    incarnation: int
    """The syncer's own incarnation."""
    versions: tuple[int, ...]
    send_state: bool
    donors: tuple[str, ...]
    """Healthy learners whose inner state a newcomer may ask for; empty when there is none."""
    clock: Clock


class Pull(msgspec.Struct, frozen=True, gc=False):
    """Ask a learner for one fragment (Algorithm 2, line 7)."""

    request: int
    fragment: int
    clock: Clock


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """A committed fragment, stamped with the syncer's step (Algorithm 2, line 15)."""

    fragment: int
    version: int
    committed: int
    """The syncer's step at which this version was committed: t_s."""
    payload: Payload
    clock: Clock


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The syncer will not work with this learner (another run, layout or an old incarnation)."""

    why: str
    clock: Clock


class SnapshotsKept(msgspec.Struct, frozen=True, gc=False):
    """Of all snapshots up to ``upto`` only ``markers`` are complete and worth keeping."""

    markers: tuple[int, ...]
    upto: int
    clock: Clock


# --- between learners, for recovery only (paper E.3) --------------------------------------------


class StateRequest(msgspec.Struct, frozen=True, gc=False):
    """A newcomer asks a healthy peer for its state once that has seen ``stamp`` itself (t_s).

    Answered by :class:`StateOffer` and all parts, or by :class:`Refused`.
    """

    incarnation: int
    layout: str
    stamp: int
    clock: Clock


class StateOffer(msgspec.Struct, frozen=True, gc=False):
    """The donor's state after one of its local steps; its parts follow in order."""

    incarnation: int
    step: int
    """The donor's local step t_m."""
    trained: int
    """Inner steps behind the replica: its learning rate and the order of its data."""
    moments: int
    """Inner steps that the moments have seen."""
    versions: tuple[int, ...]
    committed: tuple[int, ...]
    digests: tuple[str, ...]
    """``name=digest`` of params, moments, step and learning rate."""
    clock: Clock


class StatePart(msgspec.Struct, frozen=True, gc=False):
    """One fragment's parameters, first or second moments (``number`` = 3 * fragment + which)."""

    number: int
    fragment: int
    payload: Payload
    clock: Clock


class StateAck(msgspec.Struct, frozen=True, gc=False):
    """So many parts have come; the donor sends a few beyond that and no more."""

    received: int
    clock: Clock


Message = (
    Hello
    | Report
    | Push
    | Heartbeat
    | NeedState
    | Welcome
    | Pull
    | Fragment
    | Refused
    | StateRequest
    | StateOffer
    | StatePart
    | StateAck
    | PartSaved
    | SnapshotsKept
)

STATE_KINDS = 3
"""Parts per fragment of a replica's state: parameters, first moments, second moments."""

# --- jobs for workers ---------------------------------------------------------------------------
#
# Lane "main" runs one job after the other (training, adopting, merging); lane "io" runs beside it
# (reading a fragment of the last completed step's snapshot), so that a pull never waits for a step.


class TrainStep(msgspec.Struct, frozen=True, gc=False):
    """One inner step. The result arrives when the step's (paced) time is over."""

    step: int
    paced: ClassVar[bool] = True
    """Tells drivers that the emulated chip's tuning (slow, hanging) applies to this job."""


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """``began_at_ns`` is on the clock of ``now_ns``; durations in ns."""

    tokens: int
    began_at_ns: int
    compute_ns: int
    nominal_ns: int
    loss: float | None = None


class Adopt(msgspec.Struct, frozen=True, gc=False):
    """Overwrite the fragment's parameters; the inner optimizer's state stays (paper D.1)."""

    fragment: int
    version: int
    payload: Payload


class LoadAll(msgspec.Struct, frozen=True, gc=False):
    """Take all fragments as the learner's parameters, with fresh inner optimizer state."""

    payloads: tuple[Payload, ...]


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """Digests of what the learner now holds: params, moments, step, learning rate."""

    digests: dict[str, str]


class Read(msgspec.Struct, frozen=True, gc=False):
    """Encode one fragment of the snapshot taken after the last completed main-lane job.

    The driver pins that snapshot when it carries out the effect, in the same critical section as
    ``handle``: the learner pairs the result with the counters it had at that instant. The result
    is a :class:`Payload`.
    """

    fragment: int
    request: int


# A donor's three jobs run in lane "donor", so that pulls in lane "io" do not wait for them.


class CopyState(msgspec.Struct, frozen=True, gc=False):
    """Keep the replica's state after the last completed main-lane job, under ``transfer``.

    Pinned like :class:`Read`. The result is a :class:`StateCopy`.
    """

    transfer: str


class StateCopy(msgspec.Struct, frozen=True, gc=False):
    """What was pinned; counters as in :class:`StateOffer`."""

    trained: int
    moments: int
    digests: dict[str, str]


class ReadState(msgspec.Struct, frozen=True, gc=False):
    """Encode one part of what was kept as float32; the result is a :class:`Payload`."""

    transfer: str
    number: int


class DropState(msgspec.Struct, frozen=True, gc=False):
    """Forget what was kept; None is returned."""

    transfer: str


class LoadState(msgspec.Struct, frozen=True, gc=False):
    """Take a donor's whole state: parameters, moments, counters. The result is :class:`Loaded`.

    ``payloads`` are in the order of :class:`StatePart` numbers.
    """

    payloads: tuple[Payload, ...]
    trained: int
    moments: int


# Jobs of checkpoints run in lane "checkpoint": nothing that is waited for may wait for a disk.


class KeepPart(msgspec.Struct, frozen=True, gc=False):
    """Write the unit's part of the snapshot of global step ``marker``.

    Pinned like :class:`Read`: the arrays as they are when the node asks, and ``state`` what the
    node knew then (JSON values). The result is a :class:`PartKept`.
    """

    marker: int
    incarnation: int
    state: dict[str, Any]


class PartKept(msgspec.Struct, frozen=True, gc=False):
    """The part is durable. ``digest`` is of all of it, ``digests`` of what is in it by name."""

    nbytes: int
    digest: str
    digests: dict[str, str]


class SealSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Make the checkpoint of ``marker`` a complete one, or with no ``members`` give it up; drop
    what is older than the complete ones worth keeping. The result is the tuple of their markers.
    """

    marker: int
    members: dict[str, str] | None
    """Unit to the digest of its part."""
    omitted: dict[str, str] = {}
    in_flight: tuple[tuple[str, Any], ...] = ()
    """(Learner, message) in the order of arrival."""


class PruneParts(msgspec.Struct, frozen=True, gc=False):
    """Drop the learner's parts up to marker ``upto`` but for ``keep``."""

    keep: tuple[int, ...]
    upto: int


class MergeInput(msgspec.Struct, frozen=True, gc=False):
    """One learner's fragment with its weight c_tokens^2 / c_steps."""

    unit: str
    weight: float
    payload: Payload
    base_version: int = 0
    """The version that the fragment builds upon, which a change is a change of."""


class Merge(msgspec.Struct, frozen=True, gc=False):
    """Merge ``inputs`` (sorted by unit) into version ``version``: delta, rule, outer step."""

    clock: int
    fragment: int
    version: int
    inputs: tuple[MergeInput, ...]


class MergeResult(msgspec.Struct, frozen=True, gc=False):
    """``poisoned`` names inputs that were left out, with the reason; then ``payload`` is the
    merge of the others, or None when fewer than ``quorum`` were left (nothing is committed)."""

    payload: Payload | None
    poisoned: dict[str, str]
    digest: str
    finite: bool
    rule: str


class ReadAll(msgspec.Struct, frozen=True, gc=False):
    """The syncer's current fragments, for a newcomer; ``peer`` says for whom."""

    peer: str


class Restore(msgspec.Struct, frozen=True, gc=False):
    """Take the parameters and outer state of ``versions``, one per fragment.

    The first job of a syncer that was there before. Its worker keeps a merge before the node
    saves the version, so after a death it may hold one merge more than the node knows of. The
    result is None, or a :class:`Restored` when some version was damaged.
    """

    versions: tuple[int, ...]


class Restored(msgspec.Struct, frozen=True, gc=False):
    """What is held after a :class:`Restore`; ``damaged`` has the reason for each fragment of which
    only the version before was good."""

    versions: tuple[int, ...]
    damaged: dict[int, str]


class Recommit(msgspec.Struct, frozen=True, gc=False):
    """Make what is held of the fragment its version ``version``, durably.

    Nobody must ever take the lost version for it. The result is a :class:`Recommitted`. With a
    ``payload`` that is what the fragment becomes, without any momentum.
    """

    fragment: int
    version: int
    payload: Payload | None = None


class Recommitted(msgspec.Struct, frozen=True, gc=False):
    """The whole fragment, for everybody, and the digest of its parameters."""

    payload: Payload
    digest: str


class AllFragments(msgspec.Struct, frozen=True, gc=False):
    """Payloads in fragment order."""

    payloads: tuple[Payload, ...]


Job = (
    TrainStep
    | Adopt
    | LoadAll
    | LoadState
    | Read
    | CopyState
    | ReadState
    | DropState
    | KeepPart
    | PruneParts
    | SealSnapshot
    | Merge
    | ReadAll
    | Restore
    | Recommit
    | Evaluate
)
