"""Suites: experiments that are run one after the other with one seed, and judged together.

    title = "..."
    together = ["headline-decoupled", "headline-spmd"]   # names, or files beside this one
    [gate]
    goodput_ratio_min = 3.2                              # the first against the best of the others

With ``seeds = [1, 2, 3]`` every experiment is run with every seed and losses are compared at equal
tokens, with their spread. Groups say what is compared with what:

    [[group]]
    title = "..."
    arms = ["calm", "chaos"]          # the first is what the others are compared with
    tokens = "merged"                 # or "trained": at equal work, whatever became of it
    gap_max = { chaos = 0.01 }        # bound of the mean gap, as a share of the first one's loss

A member whose ``control`` names another member is compared with that one's run.

A file is a suite when it says ``together``. Built-in ones ship in ``harness/suites``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness import toml
from harness.errors import SpecError
from harness.spec_faults import describe
from harness.spec_parts import Integer, Number

KEPT = ".suite.toml"
"""A suite's directory keeps the suite as given under its name and this."""


class Group(BaseModel):
    """Arms whose losses are compared at one number of tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    title: Annotated[str, Field(min_length=1)]
    arms: Annotated[tuple[str, ...], Field(min_length=2)]
    """Folder names of members; the first is what the others are compared with."""
    tokens: Literal["merged", "trained"] = "merged"
    gap_max: dict[str, Number] = {}
    """Arm to how much larger its loss may be than the first one's, in the mean over the seeds."""


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    title: Annotated[str, Field(min_length=1)]
    description: str = ""
    together: Annotated[tuple[str, ...], Field(min_length=2)]
    seed: Integer | None = None
    seeds: tuple[Integer, ...] = ()
    group: tuple[Group, ...] = ()
    gate: dict[str, Number] = {}


@dataclass(frozen=True)
class Suite:
    """Experiments to run one after the other."""

    name: str
    title: str
    description: str
    together: tuple[str, ...]
    """Names or paths of the experiments; the first is compared with each of the others."""
    seed: int | None
    gate: Mapping[str, float]
    text: str
    base: Path | None
    """Paths are relative to this folder."""
    seeds: tuple[int, ...] = ()
    """Empty: one run of each."""
    groups: tuple[Group, ...] = ()

    def folders(self) -> tuple[str, ...]:
        """Name of each experiment's run directory below the suite's."""
        return tuple(Path(member).stem for member in self.together)

    def compared(self) -> tuple[Group, ...]:
        """The groups; all members are one where the suite names none."""
        return self.groups or (Group(title=self.title, arms=self.folders()),)


def names() -> tuple[str, ...]:
    """Names of the built-in suites, sorted."""
    folder = resources.files("harness") / "suites"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()))


def text(name: str) -> str:
    """A built-in suite as written; raises ``KeyError`` for an unknown name."""
    if name not in names():
        raise KeyError(name)
    return (resources.files("harness") / "suites" / f"{name}.toml").read_text("utf-8")


def find(name_or_path: str, gates: Mapping[str, Any]) -> Suite | None:
    """The suite of that name or in that file; None when it is none (but perhaps an experiment).

    Raises :class:`SpecError` with every mistake of a suite.
    """
    if name_or_path in names():
        return read(text(name_or_path), name_or_path, gates)
    path = Path(name_or_path)
    if not path.is_file():
        return None
    try:
        given = path.read_text(encoding="utf-8")
        if "together" not in toml.loads(given):
            return None
    except (OSError, ValueError):
        return None  # whoever reads it as an experiment says what is wrong
    return read(given, path.stem, gates, path.parent)


def read(given: str, name: str, gates: Mapping[str, Any], base: Path | None = None) -> Suite:
    """A suite from its text. Raises :class:`SpecError` with every mistake."""
    try:
        raw = toml.loads(given)
    except ValueError as error:
        raise SpecError(name, [f"not valid TOML: {error}"]) from error
    try:
        head = _Head.model_validate(raw)
    except ValidationError as error:
        raise SpecError(name, describe(error)) from error
    suite = Suite(
        name,
        head.title,
        head.description,
        head.together,
        head.seed,
        head.gate,
        given,
        base,
        head.seeds,
        head.group,
    )
    problems = [
        f"gate.{gate}: unknown gate of a suite (known: {', '.join(gates)})"
        for gate in head.gate
        if gate not in gates
    ]
    folders = suite.folders()
    problems += [
        f"together: {folder} is named twice; its runs would share a folder"
        for folder in dict.fromkeys(folders)
        if folders.count(folder) > 1
    ]
    problems += _of_groups(suite)
    if problems:
        raise SpecError(name, problems)
    return suite


def _of_groups(suite: Suite) -> list[str]:
    found = []
    if len(set(suite.seeds)) < len(suite.seeds):
        found.append("seeds: one is named twice")
    if suite.groups and not suite.seeds:
        found.append("group: needs seeds; one run of each shows no spread")
    for number, group in enumerate(suite.groups, 1):
        found += [
            f"group {number}: {arm} is no member (they are: {', '.join(suite.folders())})"
            for arm in group.arms
            if arm not in suite.folders()
        ]
        found += [
            f"group {number}: gap_max.{arm} is not compared with {group.arms[0]} there"
            for arm in group.gap_max
            if arm not in group.arms[1:]
        ]
    return found
