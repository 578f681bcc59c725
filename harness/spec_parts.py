"""The parts of an experiment spec as typed values; :mod:`harness.spec` reads them.

Bounds that one field alone can break are here; rules over several fields are in
:mod:`harness.spec_faults`, so that one mistake does not hide another.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harness.events import KINDS
from harness.tracefile import Trace


def _number(value: Any) -> Any:
    # TOML has booleans and strings of its own; pydantic would quietly turn both into numbers.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r}")
    return value


# Bounds stand before the validator: behind it, pydantic writes them into the JSON schema by names
# of its own (``ge``), which no editor knows.
Seconds = Annotated[float, Field(ge=0, le=1e7), BeforeValidator(_number)]
Duration = Annotated[float, Field(gt=0, le=1e7), BeforeValidator(_number)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_number)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]


def _where(value: Any) -> Any:
    # One sentence instead of one for each kind of value that it is not.
    names = isinstance(value, list) and all(isinstance(v, str) for v in value)
    if not (names or isinstance(value, str | dict)):
        raise ValueError(f"expected a name, a list of names or a table, got {value!r}")
    return value


Where = Annotated[str | list[str] | dict[str, Any], BeforeValidator(_where)]


def _event(value: Any) -> Any:
    if value not in KINDS:
        raise ValueError(f"got {value!r}, which is no journal event (they are: {', '.join(KINDS)})")
    return value


def _control(value: Any) -> Any:
    if not isinstance(value, bool | str) or value == "":
        raise ValueError(f"expected true, or the name of an experiment or file, got {value!r}")
    return value


class Part(BaseModel):
    """Root of every part: no unknown keys, no infinities, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class LinkShape(Part):
    """What a long way does to a link, each way."""

    latency_ms: Annotated[float, Field(ge=0, le=60_000), BeforeValidator(_number)] | None = None
    kb_s: Annotated[float, Field(ge=1, le=1e9), BeforeValidator(_number)] | None = None
    """Kilobytes (1000 bytes) per second; nothing: unlimited."""


class Links(LinkShape):
    """Links of every unit that dials another, as they are throughout the run."""

    groups: dict[str, LinkShape] = {}
    """Other values for the units of a group."""

    def of(self, group: str) -> LinkShape:
        """The shape of the links of a unit of ``group``."""
        own = self.groups.get(group, LinkShape())
        return LinkShape(
            latency_ms=self.latency_ms if own.latency_ms is None else own.latency_ms,
            kb_s=self.kb_s if own.kb_s is None else own.kb_s,
        )


class Head(Part):
    """Everything at the top level but target, faults and gate."""

    title: Annotated[str, Field(min_length=1)]
    description: str = ""
    runtime: Literal["process", "docker", "simulated"] = "process"
    duration_s: Duration
    """The fault window, from steady state on; then everything is healed."""
    quiet_tail_s: Seconds = 10.0
    """After healing; recovery is judged here."""
    baseline_s_max: Seconds = 120.0
    """Steady state must be reached within this, or no fault is executed."""
    heal_s_max: Seconds = 30.0
    """Every unit that came back must contribute again within this (check 11)."""
    seed: Integer | None = None
    links: Links | None = None
    """No fault: how far apart the units are, from before steady state to the end."""
    control: Annotated[bool | str | None, BeforeValidator(_control)] = None
    """What the loss is compared with at equal tokens (check 13): true for this experiment without
    its faults, or the name or file of another one. It is run first."""
    resume: Annotated[str, Field(min_length=1)] | None = None
    """Go on from the newest complete checkpoint of the run in this directory, beside the spec; in a
    suite, the name of the member to go on from."""
    tags: tuple[str, ...] = ()
    runtime_options: dict[str, Any] = {}


class TargetPart(Part):
    """What is broken: a name from the table of targets, and its parameters."""

    name: str
    params: dict[str, Any] = {}


class Schedule(Part):
    """Arrivals of a repeated fault, drawn from the fault's own random stream or recorded."""

    process: Literal["fixed", "poisson", "weibull", "trace"]
    mean_gap_s: Duration | None = None
    """All but trace."""
    shape: Annotated[float, Field(gt=0, le=20), BeforeValidator(_number)] = 0.7
    """Weibull only; below 1 arrivals cluster (LANL's failure data)."""
    file: str | None = None
    """Trace only: a CSV file beside the spec, or a built-in trace by name."""
    compress: Annotated[float, Field(gt=0, le=1e9), BeforeValidator(_number)] = 1.0
    """Trace only: recorded time passes this many times as fast."""
    length_s: Duration | None = None
    """Trace only: how long the recording is claimed to be, uncompressed; checked."""
    from_s: Seconds = 0.0
    until_s: Seconds | None = None
    at_most: Count | None = None
    offenders: Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)] = 0.0
    """Chance that an arrival hits whom an earlier one hit, rather than a fresh draw."""


class Repair(Part):
    """How long each arrival of a lasting fault lasts, drawn from the fault's own stream."""

    process: Literal["lognormal"] = "lognormal"
    median_s: Duration
    sigma: Annotated[float, Field(ge=0, le=5), BeforeValidator(_number)] = 1.0
    """Of the logarithm; 0 always gives the median."""


class OnEvent(Part):
    """Start when a journal event of this kind is seen after steady state."""

    event: Annotated[str, BeforeValidator(_event)]
    unit: str | None = None
    fault: str | None = None
    after_s: Seconds = 0.0


class FollowUp(Part):
    """A second act on the same victims."""

    kind: str
    after_s: Seconds = 0.0
    for_s: Duration | None = None
    params: dict[str, Any] = {}


class Component(Part):
    """One row of a mix: what breaks, how often, and which fault that is."""

    component: Annotated[str, Field(min_length=1)]
    count: Count
    kind: str
    where: Where | None = None
    """None: whatever the fault that has this mix says."""
    for_s: Duration | None = None
    repair: Repair | None = None
    then: FollowUp | None = None
    params: dict[str, Any] = {}


class FaultPart(Part):
    """One ``[[fault]]``; its kind's own parameters are in ``params``."""

    kind: str
    """``mix`` when every arrival draws its kind from ``mix``."""
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)] | None = None
    """Its name in the journal and of its random streams, instead of its place in the spec."""
    where: Where = "one"
    at_s: Seconds | None = None
    at_step: Whole | None = None
    on: OnEvent | None = None
    schedule: Schedule | None = None
    for_s: Duration | None = None
    repair: Repair | None = None
    mix: tuple[Component, ...] | None = None
    params: dict[str, Any] = {}
    trace: Annotated[Trace | None, Field(exclude=True)] = None
    """What ``schedule.file`` holds; put there by the reader, no key of a spec."""
