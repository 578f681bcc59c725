"""Every member of the family keeps the family's promises, whatever it does."""

from __future__ import annotations

import typing

import pytest

import faults
from faults.base import Capability, Deed, LinkState, Param, Tuning, read_params
from faults.holds import NEUTRAL

EXAMPLE: dict[str, object] = {float: 3.0, int: 3, str: "x", bool: True}  # type: ignore[dict-item]


def filled(kind: str) -> dict[str, object]:
    """Parameters with which the fault can be planned."""
    fault = faults.load(kind)
    return {n: EXAMPLE[p.type] for n, p in fault.params.items() if p.default is None}  # type: ignore[index]


@pytest.mark.parametrize("kind", list(faults.FAULTS))
def test_member_keeps_the_contract(kind: str) -> None:
    fault = faults.load(kind)
    values, problems = read_params(fault, filled(kind))
    deed = fault.deed(values)
    assert problems == []
    assert fault.kind == kind
    assert fault.summary.endswith(".")
    assert fault.needs <= set(typing.get_args(Capability))
    assert fault.lasting == bool(deed.holds), "a lasting fault holds something, an act does not"
    assert not (deed.action and deed.holds)
    for resource, setting in deed.holds.items():
        assert setting != NEUTRAL[resource], "a hold that changes nothing is no fault"
    assert (kind == "noop") == (deed == Deed())


@pytest.mark.parametrize("kind", list(faults.FAULTS))
def test_unknown_parameter_is_refused_by_name(kind: str) -> None:
    _, problems = read_params(faults.load(kind), {**filled(kind), "colour": 1})
    assert len(problems) == 1
    assert "colour" in problems[0]


def test_all_mistakes_in_one_go() -> None:
    _, problems = read_params(faults.load("straggle"), {"spike_on_s": -1, "spike_off_s": "long"})
    assert [p.split(":")[0] for p in problems] == ["factor", "spike_on_s", "spike_off_s"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5, "5", True, None])
def test_impossible_latency_is_refused(value: object) -> None:
    # The real proxy accepts a latency of -5 without a word.
    _, problems = read_params(faults.load("latency"), {"latency_ms": value})
    assert problems != []


def test_settings_say_what_the_names_promise() -> None:
    def deed(kind: str, **params: object) -> Deed:
        fault = faults.load(kind)
        values, problems = read_params(fault, params)
        assert problems == []
        return fault.deed(values)

    assert deed("partition").holds["link"] == LinkState(silent_up=True, silent_down=True)
    assert deed("partition_oneway", direction="down").holds["link"] == LinkState(silent_down=True)
    assert deed("partition_oneway").holds["link"] == LinkState(silent_up=True)
    assert deed("refuse").holds["link"] == LinkState(refused=True)
    assert deed("stall").holds["link"] == LinkState(stalled=True)
    assert deed("hang").holds["tuning"] == Tuning(hang=True)
    assert deed("straggle", factor=3).holds["tuning"] == Tuning(step_factor=3.0)
    assert deed("corrupt_update", how="inf").holds["tuning"] == Tuning(update="inf")
    assert deed("terminate", grace_s=1.5).grace_ns == 1_500_000_000
    assert deed("crash_loop", times=3, every_s=2).repeats == (0, 2_000_000_000, 4_000_000_000)
    assert deed("flap", down_s=1, up_s=2).pulses == (1_000_000_000, 2_000_000_000)


def test_a_choice_is_one_of_the_choices() -> None:
    param = Param(str, "a", "letter", choices=("a", "b"))
    assert param.choices == ("a", "b")
    _, problems = read_params(faults.load("partition_oneway"), {"direction": "sideways"})
    assert problems == ["direction: expected one of up, down, got 'sideways'"]
