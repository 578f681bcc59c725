"""``diloco-chaos replay``: what it says of runs that can and cannot be followed, and its status."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.__main__ import main
from harness.commands.replay import replay
from harness.events import Replayed, encode
from reports.build import build
from reports.schema import Invariant
from reports.text import terminal
from targets.diloco import replay as following
from tests.harness.specs import spec_text

KILL = '[[fault]]\nkind = "kill"\nwhere = "learner-1"\nat_s = 2\n'


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished simulated run with arithmetic."""
    return finished(tmp_path)


def finished(folder: Path, *more: str, **head: Any) -> Path:
    spec = folder / "exp.toml"
    text = spec_text(KILL, **head).replace('"scripted"', '"quadratic", scripted_elements = 64')
    spec.write_text(text)
    out = folder / "run"
    assert main(["run", str(spec), "--seed", "3", "--out", str(out), "--quiet", *more]) == 0
    return out


def check12(directory: Path) -> Invariant:
    """Check 12 of the run's report."""
    return next(i for i in build(directory).invariants if i.name == "replay")


def edited(directory: Path, old: str, new: str) -> None:
    """Change the journal's last ``old``."""
    path = directory / "journal.jsonl"
    head, mark, tail = path.read_text().rpartition(old)
    assert mark
    path.write_text(head + new + tail)


def test_bit_equal(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not check12(run_dir).asked
    before = (run_dir / "report.html").read_bytes()
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "bit-equal: every digest and every loss is the tape's" in said
    assert "states joined with" in said
    found = check12(run_dir)
    assert found.valid is True
    assert "merges and" in found.why
    # The report was written anew, and a report made from the two files has the same bytes.
    after = (run_dir / "report.html").read_bytes()
    assert after != before
    assert main(["report", str(run_dir)]) == 0
    assert (run_dir / "report.html").read_bytes() == after


def test_a_difference_is_named_and_fails(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited(run_dir, '"digest":"', '"digest":"0')
    capsys.readouterr()
    assert main(["replay", str(run_dir), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "differs"
    assert told["exit_status"] == 1
    assert f"line {told['difference_line']}, version" in told["difference"]
    found = check12(run_dir)
    assert found.valid is False
    assert found.events == [told["difference_line"]]
    assert main(["gate", str(run_dir)]) == 1


def test_a_replay_of_another_journal_proves_nothing(run_dir: Path) -> None:
    assert main(["replay", str(run_dir), "--quiet"]) == 0
    edited(run_dir, '"digest":"', '"digest":"0')
    found = check12(run_dir)
    assert found.valid == "unknown"
    assert "another journal" in found.why


def test_until_leaves_the_reports_alone(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["replay", str(run_dir), "--until", "12"]) == 0
    assert "only up to global step 12" in capsys.readouterr().out
    assert not (run_dir / "replay.jsonl").exists()
    # What differs beyond it is not looked at.
    edited(run_dir, '"digest":"', '"digest":"0')
    assert main(["replay", str(run_dir), "--until", "12"]) == 0


def test_a_cut_journal(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "journal.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 0
    assert "the journal ends early: it was followed up to there" in capsys.readouterr().out
    assert "up to the cut" in check12(run_dir).why
    path.write_bytes(b"".join(data.splitlines(keepends=True)[:3]))
    assert main(["replay", str(run_dir)]) == 3


def test_a_hole_is_inconclusive(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"event":"step"' in line and '"step":9,' in line)
    path.write_text("".join([*lines[:at], *lines[at + 1 :]]))
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 3
    assert "local step 9 after step 8" in capsys.readouterr().out
    assert check12(run_dir).valid == "unknown"


def lacking(path: Path, *words: str, kept: int = 0) -> None:
    """Take lines with all ``words`` out of the journal, the first ``kept`` apart, and its end."""
    lines = path.read_text().splitlines(keepends=True)
    found = [line for line in lines if all(word in line for word in words)]
    assert len(found) > kept
    gone = {*found[kept:], *(line for line in lines if '"event":"run_ended"' in line)}
    path.write_text("".join(line for line in lines if line not in gone))


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (('"event":"merged"', '"version":4,'), 0),
        (('"event":"step"', '"unit":"learner-0"'), 4),
        (('"event":"joined"', '"unit":"learner-0"'), 0),
    ],
)
def test_a_cut_excuses_no_hole_before_it(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], kept: int
) -> None:
    lacking(run_dir / "journal.jsonl", *words, kept=kept)
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 3
    assert "inconclusive" in capsys.readouterr().out
    assert check12(run_dir).valid == "unknown"


def test_a_cut_excuses_no_unreadable_line(run_dir: Path) -> None:
    path = run_dir / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:20], "{nothing\n", *lines[20:-1]]))
    assert main(["replay", str(run_dir)]) == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"learners":3', '"learners":1', "learners is 1, and there is learner-1"),
        ('"fragments":4', '"fragments":3', "fragments is 3, and 4 are described"),
    ],
)
def test_a_first_line_that_contradicts_itself(
    run_dir: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = run_dir / "journal.jsonl"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 4
    assert said in capsys.readouterr().err


def test_states_without_digests_are_not_counted(run_dir: Path) -> None:
    path = run_dir / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for event in lines:
        if event["event"] == "joined":
            event.pop("digests", None)
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    found = replay(run_dir, quiet=True)
    assert found.joins == 0
    assert found.merges > 10


def test_no_line_may_speak_of_a_fragment_that_is_not_there(run_dir: Path) -> None:
    path = run_dir / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(event for event in lines if event["event"] == "merged")
    first["fragment"] = 77
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    assert "speaks of fragment 77" in replay(run_dir, quiet=True).unfollowed[0]


FEEDBACK = ["--set", 'wire_up="int4"', "--set", "error_feedback=true"]


def never(folder: Path, kind: str) -> tuple[Path, list[str]]:
    """A finished run of a kind that is never replayed, and what made it one."""
    if kind == "error_feedback":
        return finished(folder, *FEEDBACK), FEEDBACK
    (folder / "first").mkdir()
    more = ["--set", "checkpoint_every=12"]
    first = finished(folder / "first", *more)
    told = [*more, "--resume", str(first)]
    return finished(folder, *told), told


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("error_feedback", "with error_feedback every push depends on all earlier ones"),
        ("resume", "whose arrays are in no journal"),
    ],
)
def test_a_run_that_can_never_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, said: str
) -> None:
    """It is declined in one sentence, and stays as green as it was."""
    out, more = never(tmp_path, kind)
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert main(["gate", str(out)]) == 0
    capsys.readouterr()
    assert main(["replay", str(out)]) == 3
    text = capsys.readouterr().out
    assert text.startswith("not replayed: ")
    assert said in text
    assert text.count("\n") == 1
    assert main(["replay", str(out), "--json"]) == 3
    assert said in json.loads(capsys.readouterr().out)["why"]
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert main(["gate", str(out)]) == 0
    # Earlier versions left such a finding; it takes nothing from the run.
    digest = hashlib.sha256((out / "journal.jsonl").read_bytes()).hexdigest()
    left = Replayed(t_ns=1, journal=digest, merges=0, steps=0, joins=0, unfollowed=(said,))
    (out / "replay.jsonl").write_bytes(encode(left))
    found = check12(out)
    assert found.asked is False
    assert said in found.why
    assert main(["gate", str(out)]) == 0
    # And whoever asks for both at once is told before anything runs.
    capsys.readouterr()
    asked = ["run", str(tmp_path / "exp.toml"), "--out", str(tmp_path / "again"), *more]
    assert main([*asked, "--replay"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("seeds", [[], ["--seeds", "1,2"]])
def test_a_suite_with_such_a_member_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: list[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(spec_text(KILL))
    suite = tmp_path / "two.suite.toml"
    suite.write_text('title = "t"\ntogether = ["one.toml", "two.toml"]\n')
    asked = ["run", str(suite), "--out", str(tmp_path / "out"), "--replay", *FEEDBACK, *seeds]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "one: with error_feedback every push" in said
    assert "two: with error_feedback every push" in said
    assert not (tmp_path / "out").exists()


def test_no_run_and_no_tape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert "there is no run here" in capsys.readouterr().err
    spec = tmp_path / "counter.toml"
    spec.write_text(
        'title = "t"\nruntime = "simulated"\nduration_s = 3\nquiet_tail_s = 2\n'
        '[target]\nname = "counter"\n'
    )
    out = tmp_path / "counter"
    assert main(["run", str(spec), "--seed", "1", "--out", str(out), "--quiet"]) == 0
    assert main(["replay", str(out)]) == 2
    assert "target 'counter' writes no event tape" in capsys.readouterr().err
    # And it is said before anything runs.
    again = ["run", str(spec), "--seed", "1", "--out", str(tmp_path / "again"), "--replay"]
    assert main(again) == 2
    assert not (tmp_path / "again").exists()


def test_another_host_is_said_where_something_differs(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_dir / "journal.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"runtime":', '"host_fingerprint":"feed","runtime":', 1))
    edited(run_dir, '"digest":"', '"digest":"0')
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 1
    assert "note that the run was made elsewhere: host feed" in capsys.readouterr().out


def test_run_with_replay(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    plain = finished(tmp_path / "a")
    out = finished(tmp_path / "b", "--replay")
    assert "bit-equal" in check12(out).why
    # The first line names the spec's path.
    one, other = ((d / "journal.jsonl").read_bytes().splitlines()[1:] for d in (plain, out))
    assert one == other


def test_the_summary_says_what_the_replay_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = finished(tmp_path, "--replay")
    said = capsys.readouterr().out
    told = json.loads((out / "replay.jsonl").read_text())
    compared = f"{told['merges']} merges and {told['steps']} steps"
    assert f"replay         {compared} came out bit-equal" in said
    assert "replay   " in terminal(build(out))
    edited(out, '"digest":"', '"digest":"0')
    assert main(["replay", str(out)]) == 1
    assert "replay         DIFFERS: the first difference is in line" in terminal(build(out))
    (out / "replay.jsonl").unlink()
    assert "replay   " not in terminal(build(out))


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def test_an_interrupted_replay_leaves_everything(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    monkeypatch.setattr(following, "follow", interrupted)
    capsys.readouterr()
    assert main(["replay", str(run_dir)]) == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "diloco-chaos: interrupted by signal 2\n")
    assert {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()} == before


def test_a_run_whose_replay_is_interrupted_has_its_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out = tmp_path / "exp.toml", tmp_path / "run"
    spec.write_text(spec_text(KILL))
    monkeypatch.setattr(following, "follow", interrupted)
    told = ["run", str(spec), "--seed", "3", "--out", str(out), "--quiet", "--replay"]
    assert main(told) == 130
    assert f"the run's reports, without it, are in {out}" in capsys.readouterr().err
    assert not (out / "replay.jsonl").exists()
    assert (out / "report.html").is_file()
    assert not check12(out).asked
    assert main(["gate", str(out)]) == 0


@pytest.mark.live
@pytest.mark.slow
def test_a_live_storm_ends_bit_equal(tmp_path: Path) -> None:
    """Real processes, real gradients, real kills of a learner and of the syncer."""
    spec = tmp_path / "storm.toml"
    spec.write_text(
        'title = "storm"\nruntime = "process"\nduration_s = 8\nquiet_tail_s = 4\n'
        '[target]\nname = "diloco"\nparams = { learners = 3, fragments = 4, sync_every = 4, '
        "step_time_s = 0.25, batch = 2, sequence = 32 }\n"
        '[[fault]]\nkind = "kill"\nwhere = "learner-0"\nat_s = 1\n'
        '[[fault]]\nkind = "kill"\nwhere = "syncer"\nat_s = 4\n'
        '[[fault]]\nkind = "corrupt_update"\nwhere = "learner-1"\nat_s = 1\nfor_s = 4\n'
        'how = "scale"\n'
    )
    out = tmp_path / "run"
    status = main(["run", str(spec), "--seed", "1", "--out", str(out), "--quiet", "--replay"])
    found = check12(out)
    assert found.valid is True, f"exit status {status}, {found.why}"
    told = json.loads((out / "replay.jsonl").read_text())
    assert told["merges"] >= 20
    assert told["steps"] >= 60
    assert told["joins"] >= 4
