"""Spec and tables into live objects. Every mistake that is left comes out in one error."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness.runtimes
import targets
from faults.base import LinkState, Resource
from faults.select import Candidate, select
from faults.traits import PROXY
from harness.errors import CapabilityError, LaunchError, SpecError
from harness.events import ControlMeasured
from harness.plan import Plan, Planned, make
from harness.runtimes.base import RunContext, Runtime
from harness.spec import NS, Draft, Spec
from harness.spec_parts import Links
from targets.base import Target


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs, checked against each other."""

    spec: Spec
    seed: int
    run: str
    target: Target
    runtime: Runtime
    plan: Plan
    planned: tuple[Planned, ...]
    repeat: str
    """The command that repeats the run."""
    standing: Mapping[tuple[str, Resource], Any] = field(default_factory=dict)
    """What is set before steady state and stays: shaped links."""
    control: ControlMeasured | None = None
    """What the control, run before, has to say."""
    notes: tuple[str, ...] = ()
    """Facts about the request that its values alone do not show."""


@dataclass(frozen=True)
class Checked:
    """A spec found sound as far as can be told without a runtime."""

    spec: Spec
    target: Target
    planned: tuple[Planned, ...]
    seed: int


def check(
    draft: Draft,
    seed: int,
    overrides: Mapping[str, Any] | None = None,
    *,
    target_seed: int | None = None,
) -> Checked:
    """Create the target and draw the plan; raises one :class:`SpecError` naming every problem.

    ``overrides`` replaces target parameters, as ``--set`` does. ``target_seed`` is for a target
    that stands already; else the run's seed is also the target's.
    """
    problems: list[str] = []
    target = None
    if draft.target is not None:
        params = {**draft.target.params, **(overrides or {})}
        own_seed = seed if target_seed is None else target_seed
        target = _target(draft.target.name, params, own_seed, problems)
    planned: list[Planned] = []
    units = _units(draft, target, seed)
    if units and draft.head is not None:
        if draft.head.links is not None and target is not None:
            problems += _unknown_groups(draft.head.links, target)
        planned, found = make(draft.faults, units, seed, draft.head.duration_s)
        problems += found
    for place, where in draft.aims.items() if units else ():
        _, found = select(where, units, random.Random(0))
        problems += [f"f{place + 1}.{problem}" for problem in found]
    spec = draft.finished(problems)
    if target is None:  # finished() raises before this whenever the target has a problem
        raise SpecError(draft.name, ["target: cannot be created"])
    return Checked(spec, target, tuple(planned), seed)


def _units(draft: Draft, target: Target | None, seed: int) -> list[Candidate]:
    """The units that faults may hit. With mistakes among the target's parameters, those of the
    target with only its number of learners, so that a wrong ``where`` is named in the same error.
    """
    if target is None and draft.target is not None and draft.target.name in targets.TARGETS:
        count = draft.target.params.get("learners")
        groups = draft.target.params.get("groups")
        known = {k: v for k, v in (("learners", count), ("groups", groups)) if v is not None}
        target = _target(draft.target.name, known, seed, [])
    return [] if target is None else candidates(target)


def candidates(target: Target) -> list[Candidate]:
    """The target's units as fault selection sees them."""
    units = target.units()
    found = [Candidate(u.info.name, u.info.role, u.info.group, u.traits) for u in units]
    if any(u.links for u in units):  # ours, and hit only by what is meant for it
        found.append(Candidate("proxy", "proxy", "", PROXY))
    return found


def compose(
    checked: Checked,
    *,
    run: str,
    directory: Path,
    runtime: str | None = None,
    make_runtime: Callable[[RunContext], Runtime] | None = None,
    given: str | None = None,
    repeat_with: Sequence[str] = (),
    resume: Path | None = None,
) -> Experiment:
    """Bring a checked spec and its runtime together.

    ``given`` is the spec as the command line named it, ``repeat_with`` further arguments that a
    repeated run needs. ``resume`` is the directory of a run to go on from.

    Raises :class:`CapabilityError` when a fault needs what the runtime does not offer here, and
    :class:`LaunchError` when the runtime itself cannot be had.
    """
    spec = checked.spec
    name = runtime or spec.head.runtime
    # Options are a runtime's own; those of the spec's runtime mean nothing to another one.
    options = spec.head.runtime_options if name == spec.head.runtime else {}
    context = RunContext(run, checked.seed, directory, options)
    try:
        live = (make_runtime or harness.runtimes.load(name))(context)
    except ImportError as error:
        raise LaunchError(f"runtime {name} cannot be loaded: {error}") from error
    standing = shaped(checked)
    lacking = missing(checked.planned, live)
    if standing and "link" not in live.offers:
        lacking.append(f"[links] needs link, which runtime {live.name} does not offer here")
    if resume is not None and not getattr(live, "keeps_checkpoints", False):
        lacking.append(f"resuming needs a runtime that keeps checkpoints; {live.name} does not")
    if lacking:
        raise CapabilityError(spec.name, lacking)
    # Before there is a run directory: an engine that is not there leaves no trace of a run.
    reach: Callable[[], None] | None = getattr(live, "reach", None)
    if reach is not None:
        reach()
    notes = cautions(checked.target)
    if resume is not None:
        notes += resumed(checked.target, resume)
    elif spec.head.resume is not None:
        notes += [f"begins anew: no run was given to go on from ({spec.head.resume})"]
    plan = Plan(
        checked.planned, round(spec.head.duration_s * NS), round(spec.head.quiet_tail_s * NS)
    )
    command = ["diloco-chaos", "run", given or spec.name, "--runtime", live.name]
    command += ["--seed", str(checked.seed), *repeat_with]
    return Experiment(
        spec,
        checked.seed,
        run,
        checked.target,
        live,
        plan,
        checked.planned,
        shlex.join(command),
        standing,
        notes=tuple(notes),
    )


def cautions(target: Target) -> list[str]:
    """What ``target`` itself has to say about its parameters, which do not stop a run; by name."""
    said: Callable[[], list[str]] | None = getattr(target, "cautions", None)
    return [] if said is None else said()


def resumed(target: Target, directory: Path) -> list[str]:
    """Let ``target`` go on from the run in ``directory``; what is worth knowing about that.

    Raises :class:`SpecError` naming every reason why it cannot.
    """
    resume: Callable[[Path], list[str]] | None = getattr(target, "resume", None)
    if resume is None:
        raise SpecError("resume", [f"target {target.name} has no checkpoints to go on from"])
    if not directory.is_dir():
        raise SpecError("resume", [f"{directory} is no directory"])
    return resume(directory)


def shaped(checked: Checked) -> dict[tuple[str, Resource], LinkState]:
    """The links of the spec's ``[links]``, by the unit that dials them."""
    links = checked.spec.head.links
    if links is None:
        return {}
    standing: dict[tuple[str, Resource], LinkState] = {}
    for unit in checked.target.units():
        if unit.links:
            shape = links.of(unit.info.group)
            standing[unit.name, "link"] = LinkState(
                latency_ms=shape.latency_ms or 0.0, bandwidth_kb_s=shape.kb_s
            )
    return standing


def _unknown_groups(links: Links, target: Target) -> list[str]:
    known = sorted({u.info.group for u in target.units() if u.links})
    return [
        f"links.groups.{group}: no unit of this group dials another (groups: {', '.join(known)})"
        for group in links.groups
        if group not in known
    ]


def missing(planned: Sequence[Planned], runtime: Runtime) -> list[str]:
    """One sentence for each kind of fault that ``runtime`` cannot carry out here."""
    out = {}
    for item in planned:
        for need in sorted(item.needs - runtime.offers):
            out[item.kind, need] = (
                f"fault {item.kind} needs {need}, which runtime {runtime.name} does not offer "
                f"here (it offers: {', '.join(sorted(runtime.offers))})"
            )
    return list(out.values())


def _target(name: str, params: Mapping[str, Any], seed: int, problems: list[str]) -> Target | None:
    if name not in targets.TARGETS:
        known = ", ".join(targets.TARGETS)
        problems.append(f"target.name: unknown target {name!r} (known: {known})")
        return None
    try:
        return targets.load(name)(params, seed)
    except SpecError as error:
        problems += [f"target.params: {p}" for p in error.problems]
        return None
