"""Admission of pushes and the quorum: each decision with its reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace as change

from targets.diloco.admission import REFUSALS, Expected, admit, quorum, refusal
from targets.diloco.messages import Payload, Push

WANT = Expected(
    incarnation=2,
    request=7,
    fragment=1,
    step=50,
    version=5,
    committed=40,
    merged_through=10,
    stale_limit=20,
    elements=8,
)
PUSH = Push(
    incarnation=2,
    request=7,
    fragment=1,
    since_step=10,
    step=14,
    c_steps=4,
    c_tokens=400,
    base_version=5,
    base_clock=40,
    payload=Payload("f32", 32, "d"),
    clock={},
)


def test_a_sound_push_is_admitted() -> None:
    assert admit(PUSH, WANT) == (True, "admitted")


def test_an_older_base_within_the_bound_is_admitted() -> None:
    assert admit(change(PUSH, base_version=3, base_clock=30), WANT)[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"incarnation": 1}, "fenced: from life 1, the learner lives 2"),
        ({"request": 6}, "late: answers request 6, open is 7"),
        ({"fragment": 0}, "layout: holds fragment 0, asked for 1"),
        ({"since_step": 9, "c_steps": 5}, "duplicate: covers local steps after 9, those up to 10"),
        ({"base_version": 6}, "fenced: builds on version 6"),
        ({"base_clock": 39}, "fenced: builds on version 5 of step 39, .* of step 40"),
        # Old content was most likely merged long ago; how old it is says more.
        (
            {"since_step": 9, "c_steps": 5, "base_version": 1, "base_clock": 29},
            "stale: its base is 21 steps old",
        ),
        ({"base_version": 1, "base_clock": 29}, "stale: its base is 21 steps old, .* is 20"),
        ({"c_steps": 3}, "layout: counters disagree"),
        ({"c_tokens": 0}, "layout: counters disagree"),
        ({"payload": Payload("f32", 31, "d")}, "truncated: 31 bytes of f32, .* has 32"),
        ({"payload": Payload("bf16", 32, "d")}, "truncated: 32 bytes of bf16, .* has 16"),
    ],
)
def test_refusals_name_their_kind_and_numbers(changes: dict[str, Any], why: str) -> None:
    admitted, said = admit(change(PUSH, **changes), WANT)
    assert not admitted
    assert re.match(why, said)
    assert said.split(":")[0] in REFUSALS


def test_size_is_not_judged_when_it_is_not_known() -> None:
    assert admit(change(PUSH, payload=Payload("f32", 1, "d")), change(WANT, elements=None))[0]


def test_quorum_counts_and_says() -> None:
    assert quorum(2, 4, 2, 9) == (True, "2 of 4 learners reported in step 9, quorum 2")
    reached, why = quorum(1, 4, 2, 9)
    assert not reached
    assert why == "step 9 waits for its quorum: 1 of 4 learners reported, 2 needed"


def test_a_workers_reason_gets_its_kind() -> None:
    assert refusal("3 NaN values") == "non-finite: 3 NaN values"
    assert refusal("truncated: 3 of 4 bytes") == "truncated: 3 of 4 bytes"
