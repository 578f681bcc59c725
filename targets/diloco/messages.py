"""What learners and the syncer say to each other, and the jobs they give to their workers.

Arrays never appear here: a :class:`Payload` passes through the machines unopened. Only a worker
looks inside ``data``; the wire turns it into bytes and back, the simulator asks for ``nbytes``.
``clock`` is the sender's vector clock (paper section 3.3 / E.1): unit name to counter, the
syncer's entry being its global step and a learner's its local step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

Clock = dict[str, int]


@dataclass(frozen=True, slots=True)
class Payload:
    """One fragment's arrays. ``data`` is opaque to the machines and may be None in simulation."""

    dtype: str
    """f32, bf16 or int4: how the elements travel."""
    nbytes: int
    digest: str
    data: Any = field(default=None, compare=False)


# --- learner to syncer --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on every connection. ``versions`` is None for a learner without state."""

    incarnation: int
    layout: str
    """Digest of the parameter layout: names, shapes, dtypes, fragment assignment, seed."""
    step: int
    versions: tuple[int, ...] | None
    clock: Clock


@dataclass(frozen=True, slots=True)
class Report:
    """Metadata after every inner step (Algorithm 1, line 13)."""

    incarnation: int
    step: int
    c_steps: tuple[int, ...]
    c_tokens: tuple[int, ...]
    step_ns: int
    clock: Clock


@dataclass(frozen=True, slots=True)
class Push:
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


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent by both sides when nothing else was for a while; echoed once to measure round trips."""

    nonce: int
    echo: bool
    clock: Clock


# --- syncer to learner --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The syncer accepts a connection; with ``send_state`` every fragment follows."""

    incarnation: int
    """The syncer's own incarnation."""
    versions: tuple[int, ...]
    send_state: bool
    donors: tuple[str, ...]
    """Healthy learners whose inner state a newcomer may ask for; empty when there is none."""
    clock: Clock


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask a learner for one fragment (Algorithm 2, line 7)."""

    request: int
    fragment: int
    clock: Clock


@dataclass(frozen=True, slots=True)
class Fragment:
    """A committed fragment, stamped with the syncer's step (Algorithm 2, line 15)."""

    fragment: int
    version: int
    committed: int
    """The syncer's step at which this version was committed: t_s."""
    payload: Payload
    clock: Clock


@dataclass(frozen=True, slots=True)
class Refused:
    """The syncer will not work with this learner (another run, layout or an old incarnation)."""

    why: str
    clock: Clock


Message = Hello | Report | Push | Heartbeat | Welcome | Pull | Fragment | Refused

# --- jobs for workers ---------------------------------------------------------------------------
#
# Lane "main" runs one job after the other (training, adopting, merging); lane "io" runs beside it
# (reading a fragment of the last completed step's snapshot), so that a pull never waits for a step.


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One inner step. The result arrives when the step's (paced) time is over."""

    step: int
    paced: ClassVar[bool] = True
    """Tells drivers that the emulated chip's tuning (slow, hanging) applies to this job."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """``began_at_ns`` is on the clock of ``now_ns``; durations in ns."""

    tokens: int
    began_at_ns: int
    compute_ns: int
    nominal_ns: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Overwrite the fragment's parameters; the inner optimizer's state stays (paper D.1)."""

    fragment: int
    version: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class LoadAll:
    """Take all fragments as the learner's parameters, with fresh inner optimizer state."""

    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Digests of what the learner now holds: params, moments, step, learning rate."""

    digests: dict[str, str]


@dataclass(frozen=True, slots=True)
class Read:
    """Encode one fragment of the snapshot taken after the last completed main-lane job.

    The driver pins that snapshot when it carries out the effect, in the same critical section as
    ``handle``: the learner pairs the result with the counters it had at that instant. The result
    is a :class:`Payload`.
    """

    fragment: int
    request: int


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One learner's fragment with its weight c_tokens^2 / c_steps."""

    unit: str
    weight: float
    payload: Payload


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge ``inputs`` (sorted by unit) into version ``version``: delta, rule, outer step."""

    clock: int
    fragment: int
    version: int
    inputs: tuple[MergeInput, ...]


@dataclass(frozen=True, slots=True)
class MergeResult:
    """``poisoned`` names inputs that were left out, with the reason; then ``payload`` is the
    merge of the others, or None when fewer than ``quorum`` were left (nothing is committed)."""

    payload: Payload | None
    poisoned: dict[str, str]
    digest: str
    finite: bool
    rule: str


@dataclass(frozen=True, slots=True)
class ReadAll:
    """The syncer's current fragments, for a newcomer; ``peer`` says for whom."""

    peer: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Take the parameters and outer state of ``versions``, one per fragment; None is returned.

    The first job of a syncer that was there before. Its worker keeps a merge before the node
    saves the version, so after a death it may hold one merge more than the node knows of.
    """

    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllFragments:
    """Payloads in fragment order."""

    payloads: tuple[Payload, ...]


Job = TrainStep | Adopt | LoadAll | Read | Merge | ReadAll | Restore
