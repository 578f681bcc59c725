"""Shrinking finds what matters, keeps the rest out, and knows when to stop."""

from __future__ import annotations

from typing import Any

import pytest

from harness.fuzz.act import perform
from harness.fuzz.campaign import Failure, minimal, search, trial
from harness.fuzz.draw import draw
from harness.fuzz.shrink import shrink
from harness.fuzz.write import to_toml
from reports.violations import judge
from tests.mutants import MUTANTS

Table = dict[str, Any]


def storm() -> Table:
    """A drawn experiment with many faults."""
    return next(t for t in map(draw, range(100)) if len(t["fault"]) >= 8)


def test_only_the_faults_that_matter_stay() -> None:
    table = storm()
    wanted = [table["fault"][2]["kind"], table["fault"][5]["kind"]]

    def fails(candidate: Table) -> bool:
        kinds = [f["kind"] for f in candidate["fault"]]
        return all(kinds.count(k) >= wanted.count(k) for k in wanted)

    small = shrink(table, fails, seed=1)
    assert sorted(f["kind"] for f in small["fault"]) == sorted(wanted)


def test_settings_that_do_not_matter_go() -> None:
    table = next(
        t
        for t in map(draw, range(500))
        if len(t["target"]["params"]) >= 11 and t["runtime_options"]
    )
    small = shrink(table, lambda _: True, seed=1)
    assert small["fault"] == []
    assert small["target"]["params"]["learners"] == 1
    assert small["runtime_options"].keys() <= {"step_jitter_ms"}


def test_the_whole_experiment_is_the_answer_when_no_part_fails() -> None:
    table = storm()
    assert shrink(table, lambda candidate: candidate == table, seed=1) == table


def test_it_stops_when_time_is_up() -> None:
    table = storm()
    calls = 0

    def fails(candidate: Table) -> bool:
        nonlocal calls
        calls += 1
        return True

    assert shrink(table, fails, seed=1, seconds=0.0) == table
    assert calls == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first-end-heals-all", "never-saved", "skipped-logged-as-done"])
def test_a_planted_bug_is_found_and_shrunk_to_three_faults_at_most(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)
        found = next((f for f in (trial(seed, judge) for seed in range(200)) if f), None)
        assert found is not None
        small = minimal(found, judge, seconds=60)
        assert small.check == found.check
        assert len(small.table["fault"]) <= 3, to_toml(small.table)
        again = judge(perform(small.table, small.seed))
        assert small.check in {v.check for v in again}
    assert small.check not in {v.check for v in judge(perform(small.table, small.seed))}


def complain(ran: Any) -> list[Any]:
    """A judge that dislikes every experiment with a kill that was executed."""
    kills = [e for e in ran.events if type(e).__name__ == "FaultExecuted" and e.kind == "kill"]
    return [Failure(0, {}, "no-kills", "somebody was killed")] if kills else []


def content(_ran: Any) -> list[Any]:
    """A judge that likes everything."""
    return []


def test_a_search_ends_at_the_first_failure() -> None:
    *_, last = search(complain, seeds=400, processes=2)
    assert last.failure is not None
    assert last.failure.check == "no-kills"
    assert last.seeds < 100
    assert trial(last.failure.seed, complain) is not None


def test_a_search_without_a_failure_tries_every_seed() -> None:
    *_, last = search(content, first=5, seeds=23, processes=1)
    assert (last.seeds, last.failure) == (23, None)


def test_a_search_ends_when_time_is_up() -> None:
    *_, last = search(content, seconds=0.0, processes=1)
    assert last.failure is None
    assert last.seeds >= 10
