"""The vector clock: counters rise, and what was handed out never changes."""

from __future__ import annotations

from targets.diloco.vector import VectorClock


def test_counters_only_rise() -> None:
    clock = VectorClock()
    clock.advance("a", 3)
    clock.advance("a", 2)
    assert clock.of("a") == 3
    assert clock.of("b") == 0


def test_merge_takes_the_higher_of_each() -> None:
    clock = VectorClock()
    clock.advance("a", 3)
    clock.merge({"a": 1, "b": 5})
    clock.merge({"a": 4})
    assert clock.read() == {"a": 4, "b": 5}


def test_a_clock_that_was_sent_does_not_change() -> None:
    clock = VectorClock()
    clock.advance("a", 1)
    sent = clock.read()
    clock.advance("a", 2)
    clock.merge({"b": 1})
    assert sent == {"a": 1}
    again = clock.read()
    clock.merge({"b": 2, "c": 1})
    assert again == {"a": 2, "b": 1}


def test_no_copy_without_a_change() -> None:
    clock = VectorClock()
    clock.advance("a", 1)
    sent = clock.read()
    clock.merge({"a": 1})
    clock.advance("a", 1)
    assert clock.read() is sent
