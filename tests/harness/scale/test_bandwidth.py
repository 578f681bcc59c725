"""The bandwidth model against closed forms, and against the paper's table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scale import bandwidth
from harness.scale.bandwidth import Link, display, paper_cells, required_gbit_s, utilization

FIVE_B = Link("data-parallel", 5e9, 1.0, 8, 16)


def test_all_sixty_cells_print_as_the_paper_does() -> None:
    cells = paper_cells()
    assert len(cells) == 60
    assert [(c.case, c.row, c.target) for c in cells if not c.equal] == []
    headline = {c.row: c.ours for c in cells if c.case == "c" and c.target == 0.95}
    assert headline["data-parallel bf16"] == pytest.approx(198.37, abs=0.01)
    assert headline["decoupled int4"] == pytest.approx(0.8445, abs=0.001)


def test_training_settings_need_more_than_the_table_says() -> None:
    cell = next(
        c for c in paper_cells() if (c.case, c.row, c.target) == ("c", "decoupled int4", 0.95)
    )
    assert cell.at_training_settings == pytest.approx(1.38, abs=0.01)


@given(st.floats(0.3, 0.985), st.sampled_from([2, 8]), st.sampled_from([1.0, 5.0]))
def test_data_parallel_agrees_with_its_closed_form(
    target: float, sites: int, step_s: float
) -> None:
    link = replace(FIVE_B, datacenters=sites, step_s=step_s)
    wanted = link.ring_bits / (step_s * (1 / target - 1 + 2 / 3 * (1 - 1 / link.buckets))) / 1e9
    assert utilization(link, wanted) == pytest.approx(target, abs=1e-6)


@given(st.sampled_from([0.5, 0.75, 0.9, 0.95]), st.sampled_from([4, 16]))
def test_decoupled_agrees_with_its_closed_form(target: float, bits: int) -> None:
    link = replace(FIVE_B, method="decoupled", bits=bits, sync_every=100, fragments=20, tau=2)
    wanted = link.ring_bits / (link.step_s * (20 * 2 + 100 * (1 / target - 1))) / 1e9
    assert utilization(link, wanted, steps=20_000) == pytest.approx(target, abs=0.01)


@pytest.mark.parametrize("method", bandwidth.METHODS)
@given(low=st.floats(0.05, 50), factor=st.floats(1.01, 50))
def test_more_bandwidth_never_hurts(method: bandwidth.Method, low: float, factor: float) -> None:
    link = replace(FIVE_B, method=method)
    assert (
        0 < utilization(link, low, 200) <= utilization(link, low * factor, 200) + 1e-9 <= 1 + 1e-9
    )


def test_the_order_of_the_methods() -> None:
    needed = [required_gbit_s(replace(FIVE_B, method=m), 0.9) for m in bandwidth.METHODS]
    assert None not in needed
    assert needed[0] > needed[1] > needed[3]  # type: ignore[operator]


def test_what_cannot_be_reached_is_none() -> None:
    assert required_gbit_s(replace(FIVE_B, parameters=1e16), 0.99) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("parameters", 0), ("step_s", -1), ("datacenters", 1), ("bits", 0), ("tau", 0)],
)
def test_impossible_values_are_named(field: str, value: float) -> None:
    problems = replace(FIVE_B, **{field: value}).problems()  # type: ignore[arg-type]
    assert len(problems) == 1
    assert field in problems[0]


def test_numbers_print_as_in_the_paper() -> None:
    assert [display(v) for v in (0.8445, 3.35, 198.37, 9.5)] == ["0.84", "3.4", "198", "9.5"]
