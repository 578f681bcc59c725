"""The members of a suite are checked together, before the first one runs: no hour of running
before the second one's misspelt name shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands import control, resuming, together
from harness.commands import replay as replaying
from harness.compose import Checked
from harness.errors import SpecError
from harness.suite import Suite

ONE_RUNS = ("control", "resume")
"""Options that name another run: they are one experiment's, and members have words of their own."""


def checked(suite: Suite, options: argparse.Namespace, seed: int) -> dict[str, Checked]:
    """Each member by its folder, with the options of the command line.

    Raises one :class:`SpecError` that names the mistakes of all members: those of their specs and
    of their controls, what could not be replayed, and members that wait for each other.
    """
    from harness.commands.run import parse_settings

    taken = [
        f"--{name}: is of one experiment; a suite's members say themselves what theirs is"
        for name in ONE_RUNS
        if getattr(options, name) is not None
    ]
    if taken:
        raise SpecError(suite.name, taken)
    settings = parse_settings(options.set)  # once: a mistake in there is not the members' own
    found: dict[str, Checked] = {}
    problems: list[str] = []
    for member, folder in zip(suite.together, suite.folders(), strict=True):
        try:
            found[folder] = _one(suite, together.member(suite, member), seed, settings, options)
        except SpecError as error:
            problems += [f"{folder}: {p}" for p in error.problems]
    for member, folder in zip(suite.together, suite.folders(), strict=True):
        if folder not in found:
            continue
        other = together.controlling(suite, together.member(suite, member))
        if other in found:
            problems += [f"{folder}: {p}" for p in control.unlike(found[folder], found[other])]
    if problems:
        raise SpecError(suite.name, problems)
    together.in_order(suite)
    return found


def _one(
    suite: Suite, spec: str, seed: int, settings: dict[str, object], options: argparse.Namespace
) -> Checked:
    from harness.commands.run import prepare

    found = prepare(spec, seed, overrides=settings)
    if options.replay:
        replaying.possible(found.target, resuming.directory(spec, None))
    if options.attach is None and together.controlling(suite, spec) is None:
        base = Path(spec).parent if Path(spec).is_file() else None
        control.prepare(found, base=base, overrides=settings)
    return found
