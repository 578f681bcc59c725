"""Nobody has to hope for a seed with which anything happens at all."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands.run import prepare
from harness.draws import TRIES, with_seed
from harness.errors import SpecError
from harness.testing import validate_marker
from tests.harness.specs import spec_text

RARE = """
[[fault]]
kind = "kill"
where = "one"
[fault.schedule]
process = "poisson"
mean_gap_s = 12
"""
"""An arrival in the window of 8 s with about every second seed."""
NEVER = RARE.replace("12", "1e7")


def drawn(path: Path, seed: int | None) -> int:
    return prepare(str(path), seed).seed


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "rare.toml"
    path.write_text(spec_text(RARE))
    return path


def unlucky(spec: Path) -> int:
    """A seed that draws nothing."""
    for seed in range(100):
        try:
            drawn(spec, seed)
        except SpecError:
            return seed
    raise AssertionError("every seed draws an arrival")


def test_a_seed_that_was_given_is_refused(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = unlucky(spec)
    assert main(["run", str(spec), "--seed", str(seed)]) == 2
    said = capsys.readouterr().err
    assert f"f1.schedule: seed {seed} draws no arrival in the fault window" in said
    assert "another seed, a longer window or a smaller mean_gap_s helps" in said
    spec.write_text(spec_text(RARE, seed=seed))
    assert main(["run", str(spec)]) == 2


def test_a_seed_that_nobody_chose_is_replaced(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = unlucky(spec)
    monkeypatch.setattr(secrets, "randbelow", lambda _: seed)
    found = {drawn(spec, None) for _ in range(3)}
    assert len(found) == 1, "it follows from the first"
    assert found != {seed}
    assert drawn(spec, *found) in found

    other = spec.with_name("other.toml")
    other.write_text(spec.read_text())
    suite = spec.with_name("suite.toml")
    suite.write_text('title = "both"\ntogether = ["rare.toml", "other.toml"]\n')
    main(["run", str(suite), "--quiet", "--out", str(spec.parent / "out")])
    assert capsys.readouterr().out.count(f"seed {found.pop()}, run ") == 2


def test_a_marker_is_not_judged_by_a_seed_that_it_did_not_choose(tmp_path: Path) -> None:
    for number in range(10):  # about half of these draw nothing with any one seed
        fault = RARE.replace("[[fault]]", f'[[fault]]\nname = "n{number}"')
        (tmp_path / "rare.toml").write_text(spec_text(fault))
        validate_marker(pytest.mark.chaos("rare.toml").mark, tmp_path)


def test_what_no_seed_mends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "never.toml"
    path.write_text(spec_text(NEVER))
    with pytest.raises(SpecError, match=f"{TRIES - 1} other seeds were tried after it") as error:
        drawn(path, None)
    assert len(error.value.problems) == 2
    path.write_text(spec_text(NEVER.replace("poisson", "fixed")))
    with pytest.raises(
        SpecError, match="its first arrival is not before the fault window"
    ) as error:
        drawn(path, None)
    assert "seed" not in error.value.problems[0]


def test_other_mistakes_are_told_at_once() -> None:
    tried = []

    def check(seed: int) -> None:
        tried.append(seed)
        raise SpecError("spec", ["f1.schedule: seed 1 draws no arrival in the fault window", "x"])

    with pytest.raises(SpecError, match="2 problems"):
        with_seed(None, check, first=1)
    assert tried == [1]
