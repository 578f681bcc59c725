"""Who is hit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from faults.select import Candidate, alike, left_out, select

UNITS = [
    Candidate("syncer", "syncer"),
    *(Candidate(f"learner-{i}", "learner", f"region-{i % 2}") for i in range(5)),
]


def names(where: Any, seed: int = 0) -> tuple[str, ...]:
    hit, problems = select(where, UNITS, random.Random(seed))
    assert problems == []
    return hit


def test_words_count_learners_only() -> None:
    assert len(names("one")) == 1
    assert len(names("minority")) == 2
    assert len(names("majority")) == 3
    assert names("all") == tuple(f"learner-{i}" for i in range(5))


@pytest.mark.parametrize(("size", "minority"), [(2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
def test_a_minority_is_the_most_that_is_no_majority(size: int, minority: int) -> None:
    units = [Candidate(f"l{i}", "learner") for i in range(size)]
    small, _ = select("minority", units, random.Random(1))
    large, _ = select("majority", units, random.Random(1))
    assert len(small) == minority
    assert len(small) * 2 <= size < len(large) * 2
    assert len(large) == len(small) + 1 or size % 2 == 1


def test_names_roles_groups_and_lists() -> None:
    assert names("learner-3") == ("learner-3",)
    assert names("syncer") == ("syncer",)
    assert names("region-1") == ("learner-1", "learner-3")
    assert names(["learner-4", "learner-0"]) == ("learner-0", "learner-4")
    assert names({"group": "region-0", "count": 2})[0] in ("learner-0", "learner-2")
    assert names({"role": "syncer"}) == ("syncer",)
    assert len(names({"count": "majority"})) == 3


def test_a_draw_depends_on_the_seed_and_on_nothing_else() -> None:
    assert names("one", 7) == names("one", 7)
    assert {names("one", seed) for seed in range(50)} == {(f"learner-{i}",) for i in range(5)}


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("learner-9", "'learner-9' matches no unit"),
        (["learner-0", "ghost"], "'ghost' matches no unit"),
        ([], "an empty list hits nobody"),
        ({"group": "mars"}, "matches no unit"),
        ({"count": 6}, "6 of 5 units is impossible"),
        ({"count": 0}, "0 of 5 units is impossible"),
        ({"count": "some"}, "expected a number or one of"),
        ({"colour": "red"}, "unknown key"),
    ],
)
def test_what_matches_nobody_is_a_mistake(where: Any, part: str) -> None:
    hit, problems = select(where, UNITS, random.Random(0))
    assert hit == ()
    assert len(problems) == 1
    assert part in problems[0]


def test_a_minority_of_one_is_nobody() -> None:
    hit, problems = select("minority", [Candidate("only", "learner")], random.Random(0))
    assert hit == ()
    assert problems == ["where: 'minority' of 1 unit is impossible"]


TOLD = [
    Candidate("syncer", "syncer", "", frozenset({"durable", "link"})),
    *(
        Candidate(f"learner-{i}", "learner", "region-0", frozenset({"steps", "updates", "link"}))
        for i in range(3)
    ),
]


@pytest.mark.parametrize("where", ["one", "all", {"count": "one"}, {"count": "all"}])
def test_words_draw_among_those_to_which_the_fault_applies(where: Any) -> None:
    assert select(where, TOLD, random.Random(0), ["torn_write"]) == (("syncer",), [])
    hit, problems = select(where, TOLD, random.Random(0), ["straggle"])
    assert problems == []
    assert set(hit) <= {"learner-0", "learner-1", "learner-2"}


@pytest.mark.parametrize(
    ("where", "kinds", "says"),
    [
        (
            "syncer",
            ["straggle"],
            "where: syncer: straggle cannot apply: it takes no training steps",
        ),
        (
            "learner-1",
            ["disk_full"],
            "learner-1: disk_full cannot apply: it keeps no durable state",
        ),
        (
            ["syncer", "learner-0"],
            ["corrupt_update"],
            "syncer: corrupt_update cannot apply: it push",
        ),
        ("learner", ["torn_write"], "learner-0, learner-1, learner-2: torn_write cannot apply"),
        ({"group": "region-0"}, ["lose_checkpoint"], "learner-0, learner-1, learner-2: lose_check"),
        ({"names": ["syncer"]}, ["hang", "kill"], "syncer: hang cannot apply"),
        ("one", ["disk_full", "hang"], "learner-0, learner-1, learner-2: disk_full cannot apply"),
    ],
)
def test_who_is_named_and_cannot_be_hit_is_a_problem(
    where: Any, kinds: list[str], says: str
) -> None:
    hit, problems = select(where, TOLD, random.Random(0), kinds)
    assert hit == ()
    assert len(problems) == 1
    assert says in problems[0]


def test_of_units_that_do_not_say_everything_is_believed() -> None:
    assert select("syncer", UNITS, random.Random(0), ["straggle"]) == (("syncer",), [])


def test_what_applies_to_all_is_drawn_as_ever() -> None:
    """A fault without demands draws the same victims whether or not units say what they have."""
    silent = [Candidate(u.name, u.role, u.group) for u in TOLD]
    for seed in range(20):
        one = select("one", TOLD, random.Random(seed), ["kill"])
        assert one == select("one", silent, random.Random(seed), ["kill"])


def test_the_proxy_is_hit_by_nothing_but_its_own_fault() -> None:
    units = [*TOLD, Candidate("proxy", "proxy", "", frozenset({"proxy"}))]
    assert select("one", units, random.Random(0), ["kill_proxy"]) == (("proxy",), [])
    assert select("proxy", units, random.Random(0), ["kill_proxy"]) == (("proxy",), [])
    for kind in ("kill", "pause", "partition"):
        hit, (problem,) = select("proxy", units, random.Random(0), [kind])
        assert hit == ()
        assert problem.startswith(f"where: proxy: {kind} cannot apply")
        drawn, _ = select("all", units, random.Random(0), [kind])
        assert "proxy" not in drawn
    assert select("learner-0", units, random.Random(0), ["kill_proxy"])[1] != []


@pytest.mark.parametrize(
    ("where", "kinds", "out", "left"),
    [
        ("all", ["lose_checkpoint"], [0, 1, 2], ("syncer",)),
        ("minority", ["torn_write"], [0, 1, 2], ("syncer",)),
        ({"count": "majority"}, ["disk_full"], [0, 1, 2], ("syncer",)),
        ("all", ["kill_proxy"], [0, 1, 2], ("proxy",)),
    ],
)
def test_those_of_several_that_cannot_be_hit_are_told(
    where: Any, kinds: list[str], out: list[int], left: tuple[str, ...]
) -> None:
    units = [*TOLD, Candidate("proxy", "proxy", "", frozenset({"proxy"}))]
    reasons, hit = left_out(where, units, kinds)
    assert list(reasons) == [f"learner-{i}" for i in out]
    assert hit == left
    assert alike(reasons).startswith("learner-0, learner-1, learner-2: ")
    assert set(select(where, units, random.Random(0), kinds)[0]) <= set(left)


@pytest.mark.parametrize(
    ("where", "kinds"),
    [
        ("all", ["kill"]),
        ("all", ["straggle"]),
        ("one", ["lose_checkpoint"]),
        ({"count": 1}, ["lose_checkpoint"]),
        (["syncer"], ["lose_checkpoint"]),
        ("syncer", ["lose_checkpoint"]),
        ("nobody", ["lose_checkpoint"]),
    ],
)
def test_where_nobody_is_left_out_nothing_is_told(where: Any, kinds: list[str]) -> None:
    assert left_out(where, TOLD, kinds) == ({}, ())


def test_some_of_a_group_are_left_out() -> None:
    mixed = [
        Candidate("a", "learner", "g", frozenset({"steps", "durable"})),
        Candidate("b", "learner", "g", frozenset({"steps"})),
        Candidate("c", "learner", "h", frozenset({"steps"})),
    ]
    reasons, left = left_out("g", mixed, ["torn_write"])
    assert (list(reasons), left) == (["b"], ("a",))
    assert select("g", mixed, random.Random(0), ["torn_write"])[0] == ("a",)
