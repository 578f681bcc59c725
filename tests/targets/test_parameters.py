"""Reading parameters: strictly, and all mistakes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from targets import parameters


@dataclass(frozen=True, kw_only=True)
class Sample:
    count: Annotated[int, Ge(1)] = 1
    share: float = 0.5
    names: tuple[str, ...] = ()


def test_a_sound_table() -> None:
    found = parameters.read(Sample, {"share": 1, "names": ["a", "b"]})
    assert found == parameters.Found(Sample(share=1.0, names=("a", "b")), [], frozenset())
    assert type(found.value) is Sample
    assert type(found.value.share) is float
    assert parameters.plain(found.value) == {"count": 1, "share": 1.0, "names": ["a", "b"]}


def test_wrong_fields_get_their_defaults_and_are_named() -> None:
    found = parameters.read(Sample, {"count": 0, "share": 0.25, "names": ["a", 2], "shape": 1})
    assert found.value == Sample(share=0.25)
    assert found.wrong == {"count", "names"}
    assert found.problems == [
        "shape: unknown parameter (did you mean share?)",
        "count: Input should be greater than or equal to 1, not 0",
        "names[1]: Input should be a valid string, not 2",
    ]


def test_rules_about_a_wrong_field_are_left_out() -> None:
    found = parameters.read(Sample, {"count": 0})
    assert found.about(["count is larger than share", "share is odd"]) == ["share is odd"]


def test_long_values_are_cut() -> None:
    (problem,) = parameters.read(Sample, {"count": "x" * 500}).problems
    assert len(problem) < 120


def test_the_schema_forbids_other_names() -> None:
    schema = parameters.schema(Sample)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == {"count", "share", "names"}
