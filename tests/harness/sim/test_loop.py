"""The event heap: order, time, and the guard against standing still."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import HarnessError
from harness.sim import loop as module
from harness.sim.loop import Loop


def test_entries_run_by_time_and_then_in_the_order_they_were_put_in() -> None:
    loop, seen = Loop(), []

    def say(now: int, word: str) -> None:
        seen.append((now, word))

    loop.at(20, say, "c")
    loop.at(10, say, "a")
    loop.at(10, say, "b")
    loop.run(100, [])
    assert seen == [(10, "a"), (10, "b"), (20, "c")]
    assert loop.now_ns() == 100


def test_it_stops_as_soon_as_something_is_seen() -> None:
    loop: Loop = Loop()
    out: list[Any] = []
    loop.at(10, lambda now, _: out.append(now))
    loop.at(20, lambda now, _: out.append(now))
    loop.run(100, out)
    assert (out, loop.now_ns(), loop.next_ns()) == ([10], 10, 20)


def test_the_past_means_now() -> None:
    loop, seen = Loop(), []
    loop.run(50, [])
    loop.at(10, lambda now, _: seen.append(now))
    loop.run(50, [])
    assert seen == [50]


def test_standing_still_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAME_INSTANT_MAX", 100)
    loop = Loop()

    def again(now: int, _: Any) -> None:
        loop.at(now, again)

    loop.at(5, again)
    with pytest.raises(HarnessError, match="stands still at 5 ns"):
        loop.run(10, [])
