"""Bad input gets one clear error that names all problems."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness import catalogue
from harness.__main__ import main
from harness.compose import check
from harness.errors import SpecError
from harness.spec import json_schema, read_file, read_text
from reports.gate import GATES

GOOD = """
title = "one dies"
duration_s = 10
[target]
name = "diloco"
params = { learners = 3, trainer = "scripted", fragments = 4, sync_every = 4 }
[[fault]]
kind = "kill"
where = "learner-1"
at_s = 2
[gate]
goodput_min = 0.5
"""


def problems(text: str) -> list[str]:
    """Everything that is said to be wrong with a spec."""
    try:
        check(read_text(text, "t", gates=GATES), seed=1)
    except SpecError as error:
        raised = error
    else:
        return []
    assert raised.exit_status == 2
    assert all(p in str(raised) for p in raised.problems)
    return list(raised.problems)


def test_a_good_spec_has_no_problem_and_keeps_its_values() -> None:
    checked = check(read_text(GOOD, "t", gates=GATES), seed=1)
    assert [(p.fault, p.kind, p.unit, p.at_ns) for p in checked.planned] == [
        ("f1", "kill", "learner-1", 2_000_000_000)
    ]
    assert checked.spec.resolved()["gate"] == {"goodput_min": 0.5}
    assert json.loads(json.dumps(checked.spec.resolved())) == checked.spec.resolved()


def test_five_mistakes_are_five_lines() -> None:
    bad = (
        GOOD.replace("duration_s = 10", 'duration_s = "10"')
        .replace("learners = 3", "learners = 3, quorum = 9")
        .replace('kind = "kill"', 'kind = "kil"')
        .replace("goodput_min = 0.5", "goodput_min = true")
        .replace('title = "one dies"', 'title = "one dies"\ncolour = "red"')
    )
    found = problems(bad)
    assert len(found) == 5
    for part in ("duration_s", "quorum is 9", "'kil'", "goodput_min", "colour"):
        assert sum(part in p for p in found) == 1, part


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("duration_s = 10", "duration_s = -1", "duration_s"),
        ("duration_s = 10", "duration_s = nan", "duration_s"),
        ("duration_s = 10", "duration_s = true", "expected a number, got True"),
        ('name = "diloco"', 'name = "dilocoo"', "unknown target 'dilocoo'"),
        ("learners = 3", "learners = 0", "learners"),
        ("learners = 3", 'learners = "3x"', "learners"),
        ("learners = 3", "learners = 3, colour = 1", "colour"),
        ("fragments = 4", "fragments = 5", "fragments"),
        ("at_s = 2", "at_s = 2\nat_step = 3", "exactly one of"),
        ("at_s = 2", "", "exactly one of"),
        ("at_s = 2", "at_s = 99", "outside the fault window"),
        ("at_s = 2", "at_s = 2\nfor_s = 3", "takes no for_s"),
        ('"learner-1"', '"learner-7"', "matches no unit"),
        ("goodput_min = 0.5", "goodput_min = 80", "between 0 and 1"),
        ("goodput_min = 0.5", 'goodput_min = "high"', "a gate needs a number"),
        ("goodput_min = 0.5", "speed_min = 0.5", "unknown gate"),
        ("goodput_min = 0.5", "healing_max_s = nan", "a finite number from 0 on"),
        ("goodput_min = 0.5", "overrun_max = inf", "a finite number from 0 on"),
        ("goodput_min = 0.5", "healing_max_s = -5", "a finite number from 0 on"),
        ('where = "learner-1"', "where = 7", "expected a name, a list of names or a table"),
        ('where = "learner-1"', "where = [1, 2]", "expected a name, a list of names or a table"),
        ("at_s = 2", 'on = { event = "unit_exploded" }', "which is no journal event"),
        ("goodput_min = 0.5", "goodput_min =", "not valid TOML"),
    ],
)
def test_each_mistake_is_named(old: str, new: str, part: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new))
    assert len(found) == 1, found
    assert part in found[0]


def test_an_unknown_kind_hides_no_other_mistake_of_its_fault() -> None:
    bad = GOOD.replace('kind = "kill"', 'kind = "kil"').replace("at_s = 2", "at_s = 99")
    found = problems(bad.replace('"learner-1"', '"learner-7"'))
    assert len(found) == 3
    for part in ("f1.kind: unknown fault 'kil'", "f1.at_s: 99 lies outside", "f1.where: "):
        assert sum(p.startswith(part) for p in found) == 1, part
    both = bad.replace('"learner-1"', '["learner-1", "learner-7"]')
    assert sum("'learner-7' matches no unit" in p for p in problems(both)) == 1


def test_a_fault_keeps_its_place_behind_one_that_cannot_be_read() -> None:
    second = '[[fault]]\nkind = "kill"\nat_s = 3\nwhere = "learner-8"\n'
    bad = GOOD.replace('kind = "kill"', 'kind = "kil"').replace("[gate]", f"{second}[gate]")
    found = problems(bad)
    assert len(found) == 2
    assert found[1].startswith("f2.where: 'learner-8' matches no unit")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_file(tmp_path / "no.toml", gates=GATES)
    with pytest.raises(SpecError, match="no built-in experiment"):
        catalogue.find("no-such-thing", gates=GATES)


CALM = {"noop", "wan-decoupled", "wan-lockstep", "resume-first"}
"""Those that show what the machinery, distance or a checkpoint costs without any fault."""

FAULTY_QUALITY = {"quality-chaos", "quality-known-chaos"}
"""Those of the quality experiments that have faults; the others are what they are compared with."""


@pytest.mark.parametrize("name", catalogue.names())
def test_built_in_experiments_are_sound(name: str) -> None:
    draft = catalogue.find(name, gates=GATES)
    assert draft.problems == ()
    checked = check(draft, seed=3)
    calm = name in CALM or (name.startswith("quality-") and name not in FAULTY_QUALITY)
    assert (checked.planned != ()) == (not calm)


def test_the_schema_names_every_fault_and_gate() -> None:
    schema = json_schema(GATES, {"diloco": {"type": "object"}})
    kinds = {f["title"] for f in schema["properties"]["fault"]["items"]["oneOf"]}
    assert {"kill", "partition", "straggle"} <= kinds
    assert set(schema["properties"]["gate"]["properties"]) == set(GATES)


def test_every_reference_of_the_schema_leads_somewhere() -> None:
    schema = json_schema(GATES, {"diloco": {"type": "object"}})
    references = re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema))
    assert "Links" in references
    assert set(references) <= set(schema["$defs"])


# Core, applicator, validation, metadata and format vocabularies of JSON Schema 2020-12.
KEYWORDS = """
    $schema $id $ref $anchor $dynamicRef $dynamicAnchor
    $vocabulary $comment $defs allOf anyOf oneOf
    not if then else dependentSchemas prefixItems
    items contains properties patternProperties additionalProperties propertyNames
    unevaluatedItems unevaluatedProperties type enum const multipleOf
    maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength
    pattern maxItems minItems uniqueItems maxContains minContains
    maxProperties minProperties required dependentRequired title description
    default deprecated readOnly writeOnly examples format
    contentEncoding contentMediaType contentSchema
"""


def unknown_keywords(schema: object, path: str = "#") -> list[str]:
    """Where a schema has keywords that JSON Schema lacks."""
    if isinstance(schema, list):
        return [u for i, part in enumerate(schema) for u in unknown_keywords(part, f"{path}/{i}")]
    if not isinstance(schema, dict):
        return []
    found = [f"{path}/{key}" for key in schema if key not in KEYWORDS.split()]
    for key, value in schema.items():
        here = f"{path}/{key}"
        if key in ("properties", "patternProperties", "$defs", "dependentSchemas"):
            for name, part in value.items():
                found += unknown_keywords(part, f"{here}/{name}")
        elif key not in ("default", "const", "enum", "examples"):
            found += unknown_keywords(value, here)
    return found


def test_the_schema_has_no_keyword_that_json_schema_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert unknown_keywords(schema) == []
    assert unknown_keywords({"properties": {"ge": {"ge": 1}}}) == ["#/properties/ge/ge"]
    bounds = schema["properties"]["duration_s"]
    assert (bounds["exclusiveMinimum"], bounds["maximum"]) == (0, 1e7)
    latency = schema["$defs"]["Links"]["properties"]["latency_ms"]["anyOf"][0]
    assert (latency["minimum"], latency["maximum"]) == (0, 60_000)
