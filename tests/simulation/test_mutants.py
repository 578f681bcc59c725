"""Every planted bug is caught by a check that is named beforehand, and none without a bug."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from harness.fuzz.campaign import complaint
from harness.fuzz.draw import draw
from harness.fuzz.shrink import shrink, thinned
from reports.violations import Violation, judge
from targets.diloco.replay import follow
from targets.diloco.tape import build
from tests.mutants import MUTANTS, Mutant
from tests.simulation.audit import audited
from tests.simulation.helpers import fault

pytestmark = pytest.mark.slow

AT_LEAST = 25

FAULTS_MAX = 3
"""So many faults at most are left when an experiment that shows a bug was shrunk."""

EXTRA: dict[str, list[Any]] = {
    "kill": [fault("kill", "learner-0", 6), fault("kill", "learner-0", 16)],
    "syncer-kill": [fault("kill", "syncer", 8), fault("kill", "syncer", 18)],
    "syncer-crash": [fault("crash_loop", "syncer", 5, times=12, every_s=1.9)],
    "partition": [fault("partition", "learner-0", 5, 14)],
    "overlap": [fault("partition", "learner-0", 5, 14), fault("partition", "learner-0", 7, 3)],
    "pause": [fault("pause", "learner-0", 6, 7)],
    "double-kill": [fault("kill", "learner-0", 9), fault("kill", "learner-0", 9.02)],
    "lose_checkpoint": [fault("lose_checkpoint", "syncer", 8)],
    "corrupt_update": [fault("corrupt_update", "learner-0", 4, 20)],
}
"""What ``Mutant.must`` adds to a drawn experiment; ``slow-disk`` makes durable writes slow and
``evaluate`` has the parameters evaluated."""


def experiment(mutant: Mutant, seed: int) -> dict[str, Any]:
    """The drawn experiment, with what the mutant needs to show itself."""
    table = draw(seed)
    table["target"]["params"]["trainer"] = mutant.trainer
    for name in mutant.must:
        table["fault"] += EXTRA.get(name, [])
    if "evaluate" in mutant.must and mutant.trainer != "scripted":
        table["target"]["params"]["evaluate_every"] = 5
    if "slow-disk" in mutant.must:
        table["runtime_options"]["fsync_ms"] = [40.0, 80.0]
    return table


def look(
    mutant: Mutant, patch: pytest.MonkeyPatch, table: dict[str, Any], seed: int
) -> list[Violation]:
    """Every promise that the run breaks, also those that only these tests look at."""
    seen: list[Violation] = []

    def judged(ran: Any) -> list[Violation]:
        seen.extend(judge(ran))
        replayed = "replay" in mutant.checks
        if replayed and (found := follow(build(enumerate(ran.events, 1))).difference):
            seen.append(Violation("replay", found))
        return seen

    with audited(patch) as audit:
        first = complaint(table, seed, judged, audit="determinism" in mutant.checks)
    if first is not None and not seen:
        seen.append(Violation(*first))
    return [*seen, *audit]


def hunt(mutant: Mutant, patch: pytest.MonkeyPatch) -> tuple[int, list[Violation]]:
    """(seeds that were needed, what the last one showed)."""
    for seed in range(mutant.seeds):
        found = look(mutant, patch, experiment(mutant, seed), seed)
        if found:
            return seed + 1, found
    return mutant.seeds, []


def shrunk(
    mutant: Mutant, patch: pytest.MonkeyPatch, seed: int, *, seconds: float
) -> dict[str, Any]:
    """A part of the experiment of ``seed`` in which a named check still speaks, with as few faults
    as the fuzzer's shrinking gets to; once those are few enough, what else is in it stays."""

    def fails(table: dict[str, Any]) -> bool:
        return any(v.check in mutant.checks for v in look(mutant, patch, table, seed))

    table = thinned(experiment(mutant, seed), fails)
    if len(table["fault"]) > FAULTS_MAX:
        table = shrink(table, fails, seed=seed, seconds=seconds)
    return table


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= AT_LEAST


@pytest.mark.parametrize("name", MUTANTS)
def test_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)
        seeds, found = hunt(mutant, monkeypatch)
    names = {v.check for v in found}
    assert names & mutant.checks, f"{mutant.bug}: after {seeds} seeds {found[:5]}"


@pytest.mark.parametrize("name", ["grace-ignores-stalls", "version-reused", "merges-what-came"])
def test_shrunk_to_few_faults(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample; ``python -m tests.mutant_table`` looks at all of them."""
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)
        seeds, _ = hunt(mutant, monkeypatch)
        table = shrunk(mutant, monkeypatch, seeds - 1, seconds=120.0)
        left = {v.check for v in look(mutant, monkeypatch, table, seeds - 1)}
    assert len(table["fault"]) <= FAULTS_MAX
    assert left & mutant.checks


@pytest.mark.parametrize("name", sorted({m.must for m in MUTANTS.values()}))
def test_the_same_experiments_are_clean_without_a_bug(
    name: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for trainer in ("scripted", "quadratic"):
        sound = Mutant("none", "no bug", frozenset(), lambda patch: None, trainer, 6, name)
        seeds, found = hunt(sound, monkeypatch)
        assert found == [], f"seed {seeds - 1}"


class _Fits(pytest.MonkeyPatch):
    """Notes what is put in the place of a function and cannot be called as that one is."""

    def __init__(self) -> None:
        super().__init__()
        self.misfits: list[str] = []

    def setattr(self, target: Any, name: Any, *rest: Any, **how: Any) -> None:  # type: ignore[override]
        if isinstance(name, str) and rest and inspect.isfunction(getattr(target, name, None)):
            asked = inspect.signature(getattr(target, name)).parameters.values()
            by_place = [p for p in asked if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            try:
                inspect.signature(rest[0]).bind(*by_place)
            except TypeError as error:
                self.misfits.append(f"{name}: {error}")
        super().setattr(target, name, *rest, **how)


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_planted_can_be_called_as_what_it_replaces(name: str) -> None:
    """A planted bug that dies of a TypeError is another bug than the one in the table."""
    with _Fits.context() as patch:
        assert isinstance(patch, _Fits)
        MUTANTS[name].plant(patch)
        assert patch.misfits == []
