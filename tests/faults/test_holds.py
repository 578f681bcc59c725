"""Overlapping faults: the first to end does not heal the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.base import LinkState, Resource, Tuning
from faults.holds import HEAL_ORDER, NEUTRAL, Holds, combine


class RecordingControl:
    """Remembers the last setting of every (unit, resource)."""

    def __init__(self) -> None:
        self.now: dict[tuple[str, str], Any] = {}
        self.broken: set[str] = set()

    def kill(self, unit: str) -> str:
        return ""

    def terminate(self, unit: str, grace_ns: int) -> str:
        return ""

    def apply(self, unit: str, resource: Resource, setting: Any) -> str:
        if unit in self.broken:
            raise RuntimeError("no such unit")
        self.now[unit, resource] = setting
        return f"{resource} set"


SETTINGS: dict[Resource, list[Any]] = {
    "frozen": [True],
    "cpu_share": [0.1, 0.5],
    "tuning": [Tuning(step_factor=2.0), Tuning(hang=True), Tuning(update="nan")],
    "link": [
        LinkState(silent_up=True),
        LinkState(latency_ms=30),
        LinkState(latency_ms=50),
        LinkState(bandwidth_kb_s=9),
        LinkState(refused=True),
    ],
    "network": [False],
    "absent": [0, 2_000_000_000],
}


def test_first_to_end_does_not_heal_the_others() -> None:
    control = RecordingControl()
    holds = Holds(control)
    holds.take("f1", "a", "link", LinkState(latency_ms=30))
    holds.take("f2", "a", "link", LinkState(latency_ms=50, silent_up=True))
    assert control.now["a", "link"] == LinkState(latency_ms=80, silent_up=True)
    note, still = holds.drop("f2", "a", "link")
    assert (note, still) == ("link set", ("f1",))
    assert control.now["a", "link"] == LinkState(latency_ms=30)
    assert holds.drop("f2", "a", "link") == ("", ("f1",))
    holds.drop("f1", "a", "link")
    assert control.now["a", "link"] == LinkState()
    assert holds.active() == ()


def test_healing_goes_on_past_a_unit_that_cannot_be_healed() -> None:
    control = RecordingControl()
    holds = Holds(control)
    for unit in ("a", "b", "c"):
        holds.take("f1", unit, "frozen", True)
    control.broken.add("b")
    assert holds.heal_all() == ["b frozen: no such unit"]
    assert control.now["a", "frozen"] is False
    assert control.now["c", "frozen"] is False
    assert holds.active() == (("b", "frozen"),)


@pytest.mark.parametrize("resource", list(NEUTRAL))
def test_no_hold_is_neutral_and_one_hold_is_itself(resource: Resource) -> None:
    assert combine(resource, []) == NEUTRAL[resource]
    for setting in SETTINGS[resource]:
        assert combine(resource, [setting]) == setting


def test_every_resource_has_its_place_in_healing() -> None:
    assert set(HEAL_ORDER) == set(NEUTRAL)
    assert HEAL_ORDER[0] == "frozen"


@given(st.data())
def test_any_order_of_takes_and_drops_ends_healthy(data: st.DataObject) -> None:
    control = RecordingControl()
    holds = Holds(control)
    model: dict[tuple[str, Resource], dict[str, Any]] = {}
    for _ in range(data.draw(st.integers(0, 25))):
        unit = data.draw(st.sampled_from(["a", "b"]))
        fault = data.draw(st.sampled_from(["f1", "f2", "f3"]))
        resource = data.draw(st.sampled_from(list(NEUTRAL)))
        held = model.setdefault((unit, resource), {})
        if data.draw(st.booleans()):
            held[fault] = data.draw(st.sampled_from(SETTINGS[resource]))
            holds.take(fault, unit, resource, held[fault])
        else:
            held.pop(fault, None)
            holds.drop(fault, unit, resource)
        for key, faults in model.items():
            if key in control.now:
                assert control.now[key] == combine(key[1], tuple(faults.values()))
    assert holds.heal_all() == []
    assert all(control.now[k] == NEUTRAL[k[1]] for k in control.now)  # type: ignore[index]


def test_what_stands_is_there_under_every_fault_and_after_it() -> None:
    control = RecordingControl()
    far = LinkState(latency_ms=40, bandwidth_kb_s=100)
    holds = Holds(control, {("a", "link"): far})
    holds.stand()
    assert control.now == {("a", "link"): far}
    holds.take("f1", "a", "link", LinkState(latency_ms=10))
    assert control.now["a", "link"] == LinkState(latency_ms=50, bandwidth_kb_s=100)
    holds.drop("f1", "a", "link")
    assert control.now["a", "link"] == far
    holds.take("f2", "a", "link", LinkState(refused=True))
    assert holds.heal_all() == []
    assert control.now["a", "link"] == far


def test_what_could_not_be_healed_is_still_held() -> None:
    control = RecordingControl()
    holds = Holds(control)
    holds.take("f1", "a", "frozen", True)
    control.broken.add("a")
    assert len(holds.heal_all()) == 1
    control.broken.clear()
    assert holds.active() == (("a", "frozen"),)
    assert holds.heal_all() == []
    assert control.now["a", "frozen"] is False
