"""The grace window: equation 3 and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.diloco.grace import Pace, window

MS = 1_000_000


def pace_of(step_ms: float, quorum_ms: float, sync_ms: float, tau: int = 2) -> Pace:
    pace = Pace(alpha=0.2, tau=tau)
    pace.saw_step(int(step_ms * MS))
    pace.saw_quorum(int(quorum_ms * MS))
    pace.saw_sync(int(sync_ms * MS))
    return pace


def test_gamma_times_the_slack() -> None:
    length, why = window(pace_of(100, 120, 20), gamma=0.5)
    assert length == 30 * MS  # 0.5 * (2 * 100 - (120 + 20))
    assert "gamma" in why


def test_at_most_one_step() -> None:
    length, why = window(pace_of(100, 0, 5), gamma=0.9)
    assert length == 100 * MS
    assert "one step" in why


def test_no_slack_no_grace() -> None:
    length, why = window(pace_of(100, 150, 60), gamma=0.9)
    assert length == 0
    assert "slack" in why


def test_no_grace_before_a_step_was_seen() -> None:
    assert window(Pace(0.2, 2), 0.9) == (0, "no grace: no step time is known yet")


def test_quorum_and_sync_count_as_nothing_until_seen() -> None:
    pace = Pace(0.2, 1)
    pace.saw_step(100 * MS)
    assert window(pace, 0.5)[0] == 50 * MS


def test_an_average_that_began_with_an_outlier_is_cut_down_by_the_next_step() -> None:
    pace = pace_of(4000, 10, 10)
    pace.saw_step(100 * MS)
    assert pace.step_ns == pytest.approx(340 * MS)  # 0.8 * 4 * 100 + 0.2 * 100


def test_averages_are_exponential() -> None:
    pace = pace_of(100, 10, 10)
    pace.saw_step(200 * MS)
    assert pace.step_ns == pytest.approx(120 * MS)  # 0.8 * 100 + 0.2 * 200
    pace.saw_sync(20 * MS)
    assert pace.sync_ns == pytest.approx(12 * MS)


def test_a_frozen_learners_step_does_not_open_windows_of_seconds() -> None:
    pace = pace_of(100, 10, 10)
    pace.saw_step(10_000 * MS)
    assert window(pace, 0.9)[0] <= 160 * MS  # not 0.2 * 10 s


def test_an_outage_is_soon_forgotten() -> None:
    pace = pace_of(100, 10, 10)
    pace.saw_quorum(60_000 * MS)
    for _ in range(5):
        pace.saw_quorum(10 * MS)
    assert window(pace, 0.9)[0] > 0


@given(
    st.lists(st.integers(0, 10**11), max_size=20),
    st.lists(st.integers(0, 10**11), max_size=20),
    st.lists(st.integers(0, 10**11), max_size=20),
    st.floats(0.01, 1),
    st.integers(1, 5),
)
def test_never_negative_never_longer_than_a_step(
    steps: list[int], quorums: list[int], syncs: list[int], gamma: float, tau: int
) -> None:
    pace = Pace(0.3, tau)
    for value in steps:
        pace.saw_step(value)
    for value in quorums:
        pace.saw_quorum(value)
    for value in syncs:
        pace.saw_sync(value)
    length, why = window(pace, gamma)
    assert 0 <= length <= (pace.step_ns or 0)
    assert why
