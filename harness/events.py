"""Every event a journal may hold, and how it becomes one JSON line.

One line is one event: ``{"event": "step", "t_ns": ..., ...}``. Rules of this file:

* ``t_ns`` and every field whose name ends in ``_at_ns`` are instants: integer nanoseconds since
  the run began (host monotonic clock, or virtual time in the simulated runtime). Every other
  ``*_ns`` field is a duration.
* Units print the same lines on standard output with *absolute* monotonic instants; the runtime
  moves them onto the run's clock with :func:`rebase`.
* Simulated journals hold no wall-clock value, host name, path or process id of the host.
* A line of an unknown kind is kept as :class:`Unknown`, never refused: an older report still
  reads a newer journal.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

SCHEMA = 1
"""Number of the journal's schema, as its first line says it."""


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="event",
    tag=_tag,
    omit_defaults=True,
    gc=False,
):
    """What every event has: the instant at which it became true.

    Events hold plain values and are never part of a cycle: the collector need not look at them,
    which is a third of the time of reading a long journal.
    """

    t_ns: int


class UnitInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unit as the spec allocates it. ``role`` is learner, syncer or proxy."""

    name: str
    role: str
    group: str = ""
    speed: float = 1.0
    """Emulated chip speed; 0.5 takes twice the nominal step time."""
    tokens_per_step: int = 0
    step_time_ns: int = 0
    """Nominal duration of one inner step at this unit's speed; 0 when not paced."""


# --- the run, written by the runner -------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True):
    """First line of every journal. Holds all that a report needs to know about the request."""

    schema: int
    run: str
    experiment: str
    seed: int
    runtime: str
    target: str
    proxy: str
    """Which proxy carried the links: toxiproxy VERSION, embedded, simulated or none."""
    units: tuple[UnitInfo, ...]
    spec: dict[str, Any]
    """The resolved spec (also in spec.resolved.json)."""
    params: dict[str, Any]
    """The target's resolved parameters, defaults filled in."""
    fragments: tuple[int, ...] = ()
    """Parameters in each fragment (elements); empty for targets without fragments."""
    commit: str = ""
    started_at: str = ""
    host_fingerprint: str = ""
    repeat: str = ""
    """The command that repeats this run."""
    target_seed: int | None = None
    """Seed of a target that stood before the run; None: the run's own."""
    notes: tuple[str, ...] = ()
    """Facts about the request that its values alone do not show (where a trace came from)."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One evaluation of another run; see :class:`Evaluated`."""

    tokens: int
    loss: float
    accuracy: float | None = None


class ControlMeasured(Event, frozen=True, kw_only=True):
    """What this run's loss is compared with: the evaluations of a run that was done before it."""

    name: str
    run: str
    outcome: str
    """Its verdict."""
    conclusive: bool
    points: tuple[Measured, ...]
    """In order of tokens."""
    ended_finite: bool = True
    """False when the loss of its last evaluation was not finite, so that it measures nothing."""


class SteadyState(Event, frozen=True, kw_only=True):
    """The baseline was met; the measuring window begins at this instant."""

    why: str


class BaselineUnmet(Event, frozen=True, kw_only=True):
    """Steady state was not reached before its deadline; no fault is executed."""

    why: str


class FaultPlanned(Event, frozen=True, kw_only=True):
    """One fault on one unit, as drawn from the spec. ``planned_at_ns`` is set once it is known.

    For a schedule by progress (``at_step``) the instant is the one at which the step was seen.
    """

    fault: str
    kind: str
    unit: str
    planned_at_ns: int
    for_ns: int | None = None
    params: dict[str, Any] = {}


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting setting that a fault puts on one resource of one unit (see faults.holds)."""

    unit: str
    resource: str
    value: Any


class FaultAsked(Event, frozen=True, kw_only=True):
    """Intent, journalled before anything is done. ``holds`` is all that undo needs."""

    fault: str
    kind: str
    unit: str
    holds: tuple[Hold, ...] = ()


class FaultExecuted(Event, frozen=True, kw_only=True):
    """The action returned. Says nothing about whether it had an effect."""

    fault: str
    kind: str
    unit: str
    note: str = ""


class FaultSkipped(Event, frozen=True, kw_only=True):
    """The fault was not carried out, and why."""

    fault: str
    kind: str
    unit: str
    why: str


class FaultEnded(Event, frozen=True, kw_only=True):
    """The fault's holds were released. ``still_held`` names other faults on the same resource."""

    fault: str
    kind: str
    unit: str
    note: str = ""
    still_held: tuple[str, ...] = ()


class UnitSpawned(Event, frozen=True, kw_only=True):
    """A process or container of the unit runs; ``by`` says who started it.

    ``by`` is harness (first start), supervisor, policy (the engine's restart policy) or
    orchestrator.
    """

    unit: str
    by: str
    pid: int = 0


class UnitExited(Event, frozen=True, kw_only=True):
    """A process of the unit ended. ``signal`` is set when a signal ended it."""

    unit: str
    pid: int = 0
    code: int | None = None
    signal: int | None = None
    oom: bool = False


class WindowEnded(Event, frozen=True, kw_only=True):
    """The fault window is over; what follows is the quiet tail after healing everything."""


class TailEnded(Event, frozen=True, kw_only=True):
    """The quiet tail is over; the measuring window ends at this instant."""


class ProxyChanged(Event, frozen=True, kw_only=True):
    """A fact about the proxy that carries the links (died, restarted, recreated a link)."""

    what: str
    unit: str = ""


class HarnessFailed(Event, frozen=True, kw_only=True):
    """Our own machinery failed. The verdict can only be harness-error."""

    where: str
    why: str


class ResidueFound(Event, frozen=True, kw_only=True):
    """What was still there after teardown; all empty when nothing was left behind."""

    containers: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    toxics: tuple[str, ...] = ()


class RunEnded(Event, frozen=True, kw_only=True):
    """Last line of a complete journal. ``status``: completed, interrupted or error."""

    status: str
    why: str = ""


class Replayed(Event, frozen=True, kw_only=True):
    """What replaying a journal's tape found; the one line of ``replay.jsonl`` beside it.

    Figures count what was compared with the tape. ``t_ns`` is the last instant that was followed.
    """

    journal: str
    """SHA-256 of the journal that was replayed, in hex."""
    merges: int
    steps: int
    joins: int
    difference: str = ""
    """The first difference in the journal's order, both values named; empty: bit-equal."""
    difference_line: int = 0
    unfollowed: tuple[str, ...] = ()
    """What kept parts of the tape from being followed."""
    cut: bool = False
    """The journal ends early; it was followed up to there and lacks nothing before."""
    until: int | None = None
    """The global step after which merges were left out, where that was asked for."""
    host: str = ""
    """What differs between the host of the run and that of the replay."""
    wall_ns: int = 0
    held_bytes_max: int = 0
    """Most bytes of fragments in flight at a time."""
    memory_bytes_max: int = 0
    """Peak resident size of the replaying process."""


# --- units, written by the units themselves -----------------------------------------------------


class UnitStarted(Event, frozen=True, kw_only=True):
    """First line of every life of a unit; incarnations count up from 1 and never repeat."""

    unit: str
    incarnation: int
    role: str
    pid: int = 0


class UnitReady(Event, frozen=True, kw_only=True):
    """Imports and compilation are done; state transfer (if any) follows."""

    unit: str
    incarnation: int
    import_ns: int = 0
    compile_ns: int = 0


class Joined(Event, frozen=True, kw_only=True):
    """A learner holds state it may train on. ``source``: initial, syncer or a donor's name."""

    unit: str
    incarnation: int
    source: str
    clock: int
    """The syncer's step t_s that stamps the state."""
    step: int
    """The learner's local step counter after joining."""
    inner: str = "fresh"
    """fresh, or the donor whose inner optimizer state was copied."""
    digests: dict[str, str] = {}
    donor_digests: dict[str, str] = {}
    nbytes: int = 0
    versions: tuple[int, ...] = ()
    """Version of each fragment that the state builds on; empty in journals that do not say."""
    donor_step: int = 0
    """The donor's own local step at the copy, which ``step`` is not where learners wait."""


class StateCopied(Event, frozen=True, kw_only=True):
    """A donor pinned its state for ``peer``: after everything that it wrote before this line."""

    unit: str
    incarnation: int
    peer: str
    peer_incarnation: int
    step: int


class Tampered(Event, frozen=True, kw_only=True):
    """A fault spoilt the payload of ``fragment`` that the learner read after local step ``step``.

    Written when such a push is sent. ``update`` is the fault's own word for it, or empty: the
    fragment was read again after the same step, and this time nothing was spoilt.
    """

    unit: str
    incarnation: int
    fragment: int
    step: int
    update: str


class Step(Event, frozen=True, kw_only=True):
    """One inner step; it ended at ``t_ns`` and began at ``began_at_ns``."""

    unit: str
    incarnation: int
    step: int
    """The learner's local step t_m, counting from 1 after a fresh join."""
    began_at_ns: int
    tokens: int
    compute_ns: int = 0
    nominal_ns: int = 0
    """What the step takes when nothing slows it (the emulated chip's own speed)."""
    clock: int = 0
    """The global step t as last told by the syncer."""
    loss: float | None = None


class Waited(Event, frozen=True, kw_only=True):
    """The learner was blocked on a barrier or merge from ``began_at_ns`` to ``t_ns``."""

    unit: str
    incarnation: int
    began_at_ns: int
    why: str


class Adopted(Event, frozen=True, kw_only=True):
    """A learner overwrote a fragment; its counters for it restart after local step ``step``."""

    unit: str
    incarnation: int
    fragment: int
    version: int
    clock: int
    step: int


class Contribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One learner's part in a merge: local steps ``since_step`` (excluded) to ``step``."""

    unit: str
    incarnation: int
    since_step: int
    step: int
    c_steps: int
    c_tokens: int
    weight: float
    base_version: int
    base_clock: int
    """The syncer's step at which ``base_version`` was committed (0 for the initial one)."""
    pull_ns: int = 0


class Merged(Event, frozen=True, kw_only=True):
    """The syncer committed version ``version`` of ``fragment`` at global step ``clock``."""

    unit: str
    incarnation: int
    clock: int
    fragment: int
    version: int
    quorum: int
    contributions: tuple[Contribution, ...]
    excluded: dict[str, str] = {}
    """Learner to reason, for each learner that is known but had no part."""
    reason: str = ""
    quorum_ns: int = 0
    grace_ns: int = 0
    """How long the grace window was held open."""
    grace_limit_ns: int = 0
    sync_ns: int = 0
    digest: str = ""
    finite: bool = True
    rule: str = ""
    """avg or rda, as applied to this fragment's tensors."""
    bytes_in: int = 0
    """Payload and framing received by this incarnation of the syncer so far, all links."""
    bytes_out: int = 0


class LastMerged(Event, frozen=True, kw_only=True):
    """A restarted syncer repeats its last life's last merge, whose own line may have died with it.

    Counts only where the journal lacks that :class:`Merged`, which :meth:`merged` gives back.
    """

    unit: str
    incarnation: int
    life: int
    """The life that committed it."""
    ago_ns: int
    """How long ago it was committed."""
    clock: int
    fragment: int
    version: int
    quorum: int
    contributions: tuple[Contribution, ...]
    excluded: dict[str, str] = {}
    reason: str = ""
    digest: str = ""
    rule: str = ""

    def merged(self) -> Merged:
        """The line that was lost, at its own instant."""
        return Merged(
            t_ns=self.t_ns - self.ago_ns,
            unit=self.unit,
            incarnation=self.life,
            clock=self.clock,
            fragment=self.fragment,
            version=self.version,
            quorum=self.quorum,
            contributions=self.contributions,
            excluded=self.excluded,
            reason=self.reason,
            digest=self.digest,
            rule=self.rule,
        )


class Evaluated(Event, frozen=True, kw_only=True):
    """The global parameters judged on data that no learner trains on.

    ``tokens`` are exactly those that these parameters have learned from: merged ones, each counted
    by the parameter share of the fragments into which it was merged, or those of all steps that
    were not rolled back. Journalled when the answer is there; ``clock`` says of which instant.
    """

    unit: str
    incarnation: int
    clock: int
    """The global step after which the parameters were like that."""
    tokens: int
    steps: int
    """Inner steps of the learner that is furthest ahead, as last reported."""
    loss: float | None
    """Mean cross-entropy in nats per token, or the trainer's own loss; None: it was not finite,
    which JSON has no number for."""
    accuracy: float | None = None
    """Share of next tokens that were the likeliest ones."""
    floor: float | None = None
    """The least loss that can be had, where it is known."""
    records: int = 0
    """Held-out records behind the figures; 0 where they are exact."""


class Checkpointed(Event, frozen=True, kw_only=True):
    """A unit's part of the snapshot of global step ``marker`` is durable.

    What the part holds, so that a cut can be judged without opening it: for a learner its own
    counters at the instant of the cut, for the syncer what was merged by then.
    """

    unit: str
    incarnation: int
    marker: int
    step: int
    """A learner's local step, the syncer's global one."""
    nbytes: int
    took_ns: int
    """From the cut until the part was durable; training went on meanwhile."""
    digests: dict[str, str] = {}
    versions: tuple[int, ...] = ()
    since: tuple[int, ...] = ()
    """A learner's: local step after which its counters of each fragment began."""
    merged_through: dict[str, tuple[int, ...]] = {}
    """The syncer's: learner to the last local step merged into each fragment."""
    lives: dict[str, int] = {}
    """The syncer's: learner to the incarnation that ``merged_through`` is about."""


class SnapshotComplete(Event, frozen=True, kw_only=True):
    """Every learner that is still there returned the marker, and its part is durable."""

    unit: str
    incarnation: int
    marker: int
    members: dict[str, int]
    """Learner to the incarnation whose part belongs to the checkpoint."""
    omitted: dict[str, str] = {}
    """Learner to why it has no part; it goes through recovery on resume."""
    in_flight: dict[str, int] = {}
    """Learner to its messages from before its own cut that came after the syncer's."""
    took_ns: int = 0


class Resumed(Event, frozen=True, kw_only=True):
    """A unit goes on from its part of an earlier run's checkpoint. The fields as in
    :class:`Checkpointed`; what they count goes on in the present run."""

    unit: str
    incarnation: int
    run: str
    """The earlier run."""
    marker: int
    step: int
    digests: dict[str, str] = {}
    versions: tuple[int, ...] = ()
    since: tuple[int, ...] = ()
    merged_through: dict[str, tuple[int, ...]] = {}
    """The syncer's: of each learner's first life here, which goes on from a part."""
    in_flight: dict[str, int] = {}
    """The syncer's: learner to how many recorded messages are replayed once it is back."""


class RolledBack(Event, frozen=True, kw_only=True):
    """A restarted syncer found its newest state of ``fragment`` damaged and took the one before.

    That is committed as ``version``, which nobody has seen before; ``before`` is the newest that
    the syncer knew of. Versions in between that learners had are lost.
    """

    unit: str
    incarnation: int
    fragment: int
    version: int
    before: int
    clock: int
    digest: str = ""
    why: str = ""
    donor: str = ""
    """The learner whose parameters it holds, where the disk gave nothing back."""
    emptied: bool = False
    """The disk gave nothing back, of any fragment."""


class UpdateRefused(Event, frozen=True, kw_only=True):
    """The syncer refused a contribution; ``why`` begins with one word for the kind.

    The kinds: stale, duplicate, late, non-finite, outlier, truncated, checksum, layout, fenced.
    """

    unit: str
    incarnation: int
    sender: str
    sender_incarnation: int
    fragment: int
    step: int
    why: str


class WorldFormed(Event, frozen=True, kw_only=True):
    """``members`` train together from now on, each of their steps being one step of them all.

    They go on from local step ``step``: whatever any learner did beyond it is rolled back.
    """

    unit: str
    incarnation: int
    world: int
    members: tuple[str, ...]
    step: int
    why: str = ""


class WorldEnded(Event, frozen=True, kw_only=True):
    """The members of ``world`` stop together, because of one unit where it is known which."""

    unit: str
    incarnation: int
    world: int
    because: str
    """The unit that broke it, or for whose sake it is formed anew; empty when not known."""
    why: str
    planned: bool = False
    """In good order, at a checkpoint: nothing is rolled back."""


class LinkUp(Event, frozen=True, kw_only=True):
    """``unit`` regards its link to ``peer`` as working from now on."""

    unit: str
    incarnation: int
    peer: str


class LinkDown(Event, frozen=True, kw_only=True):
    """``unit`` noticed that its link to ``peer`` is broken or silent."""

    unit: str
    incarnation: int
    peer: str
    why: str


class Heard(Event, frozen=True, kw_only=True):
    """Round trip of a heartbeat as measured by ``unit`` towards ``peer`` (at most one a second)."""

    unit: str
    incarnation: int
    peer: str
    rtt_ns: int


class UnitNote(Event, frozen=True, kw_only=True):
    """Anything else worth keeping, as a kind and a sentence."""

    unit: str
    incarnation: int
    what: str
    detail: str = ""


class UnitEnded(Event, frozen=True, kw_only=True):
    """The unit is about to exit by its own decision (asked to stop, or a fatal error)."""

    unit: str
    incarnation: int
    why: str


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a kind this version does not know, kept whole."""

    t_ns: int
    kind: str
    fields: dict[str, Any]


def _all_events(root: type[Event]) -> tuple[type[Event], ...]:
    return tuple(root.__subclasses__())


KINDS: dict[str, type[Event]] = {_tag(kind.__name__): kind for kind in _all_events(Event)}
"""Event name to class; the one visible table."""

AnyEvent: TypeAlias = Event | Unknown

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    # A run-time union of every class above; mypy cannot see it, KINDS is its readable form.
    __import__("typing").Union[tuple(KINDS.values())]
)


def encode(event: AnyEvent) -> bytes:
    """One event as one JSON line, newline included. Equal events give equal bytes."""
    if isinstance(event, Unknown):
        return _encoder.encode({"event": event.kind, "t_ns": event.t_ns, **event.fields}) + b"\n"
    return _encoder.encode(event) + b"\n"


def decode(line: bytes | str) -> AnyEvent:
    """The event in one line.

    Raises ``ValueError`` for a line that is no JSON object with ``event`` and ``t_ns``, or whose
    known kind has wrong fields. An unknown kind comes back as :class:`Unknown`.
    """
    try:
        return _decoded(line)
    except RecursionError as error:
        # Nobody writes such a line by accident; whoever reads a journal must survive it all the
        # same.
        raise ValueError("not an event line: nested too deeply") from error


def _decoded(line: bytes | str) -> AnyEvent:
    try:
        event: Event = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raw = msgspec.json.decode(line)
        if isinstance(raw, dict) and isinstance(raw.get("event"), str):
            kind = raw.pop("event")
            t_ns = raw.pop("t_ns", None)
            if kind not in KINDS and type(t_ns) is int:
                return Unknown(t_ns=t_ns, kind=kind, fields=raw)
        raise ValueError(f"not an event line: {error}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"not an event line: {error}") from error
    return event


def rebase(event: AnyEvent, epoch_ns: int) -> AnyEvent:
    """The same event with every instant moved so that ``epoch_ns`` becomes 0."""
    if isinstance(event, Unknown):
        fields = {
            k: v - epoch_ns if k.endswith("_at_ns") and isinstance(v, int) else v
            for k, v in event.fields.items()
        }
        return Unknown(t_ns=event.t_ns - epoch_ns, kind=event.kind, fields=fields)
    moved = {"t_ns": event.t_ns - epoch_ns}
    for name in event.__struct_fields__:
        if name.endswith("_at_ns"):
            moved[name] = getattr(event, name) - epoch_ns
    return msgspec.structs.replace(event, **moved)
