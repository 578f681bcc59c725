"""A link's liveness: when to speak, when to give up, what a round trip is."""

from __future__ import annotations

from targets.diloco.liveness import NEVER, Link
from targets.diloco.params import DilocoParams

MS = 1_000_000
PARAMS = DilocoParams(heartbeat_ms=250, silence_ms_max=1500)


def opened(at_ms: int = 0) -> Link:
    link = Link("peer", PARAMS)
    link.opened(at_ms * MS)
    return link


def test_a_link_that_is_down_wants_nothing() -> None:
    link = Link("peer", PARAMS)
    assert link.due_ns() == NEVER
    assert link.check(10**12) == ("fine", "no link")


def test_speaks_after_a_heartbeat_without_sending() -> None:
    link = opened()
    assert link.due_ns() == 250 * MS
    assert link.check(249 * MS)[0] == "fine"
    assert link.check(250 * MS) == ("speak", "said nothing for a heartbeat's time")
    link.sent_ns = 200 * MS
    assert link.check(449 * MS)[0] == "fine"


def test_measures_the_round_trip_once_a_second_also_under_traffic() -> None:
    link = opened()
    link.heard_ns = link.sent_ns = 999 * MS
    assert link.check(999 * MS)[0] == "fine"
    assert link.check(1000 * MS) == ("speak", "round trip not measured for a second")
    link.probe(1000 * MS)
    assert link.check(1001 * MS)[0] == "fine"


def test_silence_beyond_the_bound_is_said_with_both_numbers() -> None:
    link = opened()
    link.sent_ns = 1400 * MS
    assert link.check(1499 * MS)[0] != "silent"
    assert link.check(1501 * MS) == ("silent", "heard nothing for 1501 ms (bound 1500 ms)")


def test_round_trip_of_the_newest_heartbeat_only_and_once_a_second() -> None:
    link = opened()
    old = link.probe(0)
    new = link.probe(100 * MS)
    assert link.echoed(old, 150 * MS) is None
    assert link.echoed(new, 130 * MS) == 30 * MS
    again = link.probe(300 * MS)
    assert link.echoed(again, 310 * MS) is None
    later = link.probe(1200 * MS)
    assert link.echoed(later, 1205 * MS) == 5 * MS
