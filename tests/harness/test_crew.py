"""Acts that are due at once: who waits for whom, and what is told of them, in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from harness.clock import WallClock
from harness.crew import Crew, Done

LIMIT_S = 30.0


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(WallClock(), together=True)
    yield made
    made.close()


def held(gate: threading.Event, say: Callable[[], None] = lambda: None) -> Callable[[], str]:
    """An act that takes until the gate opens."""

    def act() -> str:
        say()
        assert gate.wait(LIMIT_S), f"the gate did not open within {LIMIT_S} s"
        return "slow"

    return act


def key(name: str) -> frozenset[str]:
    return frozenset({name})


def test_an_act_does_not_wait_for_another_one_s_key(crew: Crew) -> None:
    gate, quick = threading.Event(), threading.Event()
    told: list[Done] = []
    crew.ask(key("links"), held(gate), told.append)
    crew.ask(key("u"), quick.set, told.append)
    assert quick.wait(LIMIT_S), "the quick act waited for the slow one"
    gate.set()
    crew.settle()
    slow, fast = sorted(told, key=lambda done: done.result is None)
    assert (slow.result, fast.result) == ("slow", None)
    assert fast.t_ns <= slow.t_ns, "the quick one's end is its own, not when it was told"


def test_acts_with_a_key_in_common_are_done_in_order(crew: Crew) -> None:
    gate, began = threading.Event(), threading.Event()
    order: list[str] = []
    told: list[Done] = []
    crew.ask(frozenset({"u", "links"}), held(gate, began.set), told.append)
    crew.ask(key("links"), lambda: order.append("second"), told.append)
    crew.ask(key("u"), lambda: order.append("third"), told.append)
    crew.ask(frozenset({"u", "links"}), lambda: order.append("last"), told.append)
    free = threading.Event()
    crew.ask(key("v"), free.set, told.append)
    assert began.wait(LIMIT_S)
    assert free.wait(LIMIT_S)
    assert order == [], "they hold keys of an act that is not over"
    gate.set()
    crew.settle()
    assert sorted(order[:2]) == ["second", "third"]
    assert order[2:] == ["last"], "it was overtaken"


def test_an_act_s_error_is_its_own(crew: Crew) -> None:
    told: dict[str, Done] = {}

    def fail() -> None:
        raise KeyError("a bug of ours")

    crew.ask(key("u"), fail, lambda done: told.update(u=done))
    crew.ask(key("u"), lambda: "after it", lambda done: told.update(later=done))
    crew.settle()
    assert isinstance(told["u"].error, KeyError)
    assert (told["later"].result, told["later"].error) == ("after it", None)


def test_what_telling_raises_does_not_keep_the_others_news(crew: Crew) -> None:
    told: list[Done] = []

    def refuse(done: Done) -> None:
        raise OSError("journal full")

    crew.ask(key("u"), lambda: 1, refuse)
    crew.ask(key("u"), lambda: 2, told.append)
    with pytest.raises(OSError, match="journal full"):
        crew.settle()
    assert [done.result for done in told] == [2]


def test_nothing_is_told_before_it_is_asked_for(crew: Crew) -> None:
    """The journal has one writer: the thread that asks."""
    told: list[int] = []
    crew.ask(key("u"), lambda: 1, lambda done: told.append(threading.get_ident()))
    crew.close()
    assert told == []
    crew.tell()
    assert told == [threading.get_ident()]


def test_alone_each_act_is_over_and_told_at_once() -> None:
    order: list[str] = []
    crew = Crew(WallClock(), together=False)
    for name in ("a", "b"):
        crew.ask(key("u"), partial(order.append, name), lambda _done: order.append("told"))
    assert order == ["a", "told", "b", "told"]
    crew.close()
