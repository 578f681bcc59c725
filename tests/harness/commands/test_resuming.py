"""``run --resume DIR``, the spec's ``resume``, and suites whose members go on from others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands import resuming
from harness.commands.run import prepare
from harness.compose import compose
from harness.errors import CapabilityError
from harness.events import Resumed, RunStarted
from harness.journal import read_journal
from harness.runtimes.simulated import SimulatedRuntime

HEAD = """
title = "{title}"
runtime = "simulated"
duration_s = 8
quiet_tail_s = 4
{more}
[target]
name = "{target}"
params = {{ {params} }}
"""
PARAMS = (
    'learners = 3, fragments = 4, sync_every = 4, trainer = "quadratic", '
    "step_time_s = 0.1, scripted_elements = 64, checkpoint_every = 12"
)


def spec(
    folder: Path, name: str, more: str = "", params: str = PARAMS, target: str = "diloco"
) -> str:
    path = folder / f"{name}.toml"
    path.write_text(HEAD.format(title=name, more=more, params=params, target=target))
    return str(path)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints; not to be changed."""
    folder = tmp_path_factory.mktemp("earlier")
    out = folder / "run"
    assert main(["run", spec(folder, "first"), "--seed", "9", "--quiet", "--out", str(out)]) == 0
    return out


def resumed(out: Path) -> list[Resumed]:
    return [e for e in read_journal(out / "journal.jsonl").events if isinstance(e, Resumed)]


def test_a_run_goes_on_with_the_earlier_ones_seed(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    told = ["run", spec(tmp_path, "second"), "--resume", str(earlier), "--out", str(out)]
    assert main([*told, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "seed 9, run " in text
    assert f"--resume {earlier}" in text
    assert "goes on from global step" in text
    assert {r.unit for r in resumed(out)} == {"syncer", "learner-0", "learner-1", "learner-2"}
    started = read_journal(out / "journal.jsonl").events[0]
    assert isinstance(started, RunStarted)
    # Every simulated run has the same id, so its seed says which one it was.
    step = started.notes[0].removeprefix("goes on from global step ")
    assert step.endswith(" of the simulated run with seed 9")
    # What goes on has checkpoints of its own.
    assert (out / "checkpoints" / "syncer").is_dir()


def test_the_spec_may_name_it(earlier: Path, tmp_path: Path) -> None:
    shutil.copytree(earlier, tmp_path / "there")
    path = spec(tmp_path, "second", 'resume = "there"')
    assert resuming.directory(path, None) == tmp_path / "there"
    assert resuming.directory(path, Path("elsewhere")) == Path("elsewhere")
    assert main(["run", path, "--quiet", "--out", str(tmp_path / "out")]) == 0
    assert resumed(tmp_path / "out")


def refused(capsys: pytest.CaptureFixture[str], *told: str) -> str:
    """What is said of a command line that is refused before anything is written."""
    out = Path(told[-1])
    assert main(["run", *told[:-1], "--out", str(out), "--quiet"]) == 2
    assert not out.exists()
    return capsys.readouterr().err


def test_every_reason_against_is_named_before_anything_starts(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = spec(tmp_path, "second"), str(tmp_path / "out")
    said = refused(capsys, path, "--resume", str(earlier), "--seed", "10", out)
    assert said.count("another parameter layout or seed") == 2
    assert f"the run in {earlier} has seed 9, this one 10: leave --seed out" in said
    said = refused(capsys, path, "--resume", str(tmp_path / "nowhere"), out)
    assert "is no directory" in said
    assert "leave --seed out" not in said
    said = refused(capsys, path, "--resume", str(tmp_path), out)
    assert "no complete checkpoint: there is none" in said
    counter = spec(tmp_path, "counter", params="", target="counter")
    assert "has no checkpoints to go on from" in refused(
        capsys, counter, "--resume", str(earlier), out
    )


def test_what_would_make_parts_another_state_is_refused(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It went on, and the checks then blamed the learners for what the spec had changed."""
    other = PARAMS.replace('"quadratic"', '"scripted", inner_lr = 0.5, warmup_steps = 1')
    path = spec(tmp_path, "second", params=other)
    said = refused(capsys, path, "--resume", str(earlier), str(tmp_path / "out"))
    assert "3 problems" in said
    assert "trainer was 'quadratic' and is 'scripted' here" in said
    assert "inner_lr was 0.003 and is 0.5 here" in said
    assert "warmup_steps was 20 and is 1 here" in said


def test_damage_of_the_syncers_parts_is_an_error_and_a_learners_is_told(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = shutil.copytree(earlier, tmp_path / "there")
    path, out = spec(tmp_path, "second"), tmp_path / "out"
    for file in (there / "checkpoints" / "learner-1").glob("*/part.json"):
        file.write_bytes(file.read_bytes()[:50])
    assert main(["run", path, "--resume", str(there), "--out", str(out), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "note: learner-1's part is not used" in text
    assert "part.json is damaged" in text
    assert {r.unit for r in resumed(out)} == {"syncer", "learner-0", "learner-2"}
    for file in (there / "checkpoints" / "syncer").glob("*/fragment-002.safetensors"):
        file.unlink()
    said = refused(capsys, path, "--resume", str(there), str(tmp_path / "again"))
    assert said.count("fragment-002.safetensors is missing") == 2


def suite(folder: Path, gate: float = 1.5) -> str:
    spec(folder, "first")
    spec(folder, "second", 'resume = "first"')
    path = folder / "both.toml"
    path.write_text(
        'title = "both"\ntogether = ["second.toml", "first.toml"]\nseed = 9\n'
        f"[gate]\nloss_seam_max = {gate}\n"
    )
    return str(path)


def test_a_member_goes_on_from_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = suite(tmp_path), tmp_path / "out"
    text = Path(path).read_text()
    Path(path).write_text(
        text.replace('"second.toml", "first.toml"', '"first.toml", "second.toml"')
    )
    assert main(["run", path, "--quiet", "--out", str(out)]) == 0
    assert "gate seam: 0 " in capsys.readouterr().out
    assert resumed(out / "second")
    assert main(["gate", str(out)]) == 0
    gates = {g["name"]: g for g in json.loads((out / "suite.json").read_text())["gates"]}
    assert gates["seam"]["ok"]
    assert 0.5 < gates["loss_seam_max"]["value"] < 1.5


def test_who_goes_on_is_run_after_whom_it_goes_on_from(tmp_path: Path) -> None:
    out = tmp_path / "out"
    main(["run", suite(tmp_path), "--quiet", "--json", "--out", str(out)])
    assert resumed(out / "second")


def test_a_seam_that_does_not_hold_fails_the_suite(tmp_path: Path) -> None:
    """The second run's journal says that it went on from elsewhere."""
    out = tmp_path / "out"
    path = suite(tmp_path)
    main(["run", path, "--quiet", "--json", "--out", str(out)])
    journal = out / "second" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert any('"event":"resumed"' in line for line in lines)
    journal.write_text("".join(line for line in lines if '"event":"resumed"' not in line))
    assert main(["gate", str(out)]) == 1


def test_seeds_are_found_only_in_runs(earlier: Path, tmp_path: Path) -> None:
    assert resuming.seed_of(earlier) == 9
    assert resuming.seed_of(None) is None
    assert resuming.seed_of(tmp_path) is None
    (tmp_path / "spec.resolved.json").write_text('{"seed": "x"}')
    assert resuming.seed_of(tmp_path) is None


def test_who_is_given_no_earlier_run_begins_anew_and_says_so(tmp_path: Path) -> None:
    """As the pytest plugin and a twin do with a spec that asks for one."""
    checked = prepare(spec(tmp_path, "second", 'resume = "first"'), 9)
    experiment = compose(checked, run="x", directory=tmp_path / "out")
    assert experiment.notes == ("begins anew: no run was given to go on from (first)",)


def test_a_runtime_that_keeps_no_checkpoints_is_refused(earlier: Path, tmp_path: Path) -> None:
    class Forgetful(SimulatedRuntime):
        keeps_checkpoints = False

    checked = prepare(spec(tmp_path, "second"), 9)
    with pytest.raises(CapabilityError, match="keeps checkpoints"):
        compose(
            checked, run="x", directory=tmp_path / "out", make_runtime=Forgetful, resume=earlier
        )
