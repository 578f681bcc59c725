"""A unit's files: lines that are whole, state that survives or is refused, tunings that arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from faults.base import Tuning
from harness.events import UnitNote, decode
from targets.unit_files import ControlFile, DamagedState, EventLines, StateDir, StateInUse


def note(detail: str) -> UnitNote:
    return UnitNote(t_ns=1, unit="u", incarnation=1, what="w", detail=detail)


def test_lines_of_many_threads_stay_whole() -> None:
    read, write = os.pipe()
    lines = EventLines(write)
    received = bytearray()

    def drain() -> None:
        while data := os.read(read, 1 << 16):
            received.extend(data)

    reader = threading.Thread(target=drain)
    reader.start()

    def write_three(letter: str) -> None:
        for _ in range(3):
            lines(note(letter * 100_000))  # longer than the pipe: one write cannot take it whole

    writers = [threading.Thread(target=write_three, args=(letter,)) for letter in "abcd"]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    os.close(write)
    reader.join()
    os.close(read)
    events = [decode(line) for line in bytes(received).splitlines()]
    assert len(events) == 12
    assert {e.detail[0] for e in events if isinstance(e, UnitNote)} == set("abcd")


def test_stdout_is_kept_for_events_alone() -> None:
    code = (
        "import os; from targets.unit_files import EventLines; "
        "from harness.events import UnitEnded; lines = EventLines.take_stdout(); "
        "print('chatter'); os.system('echo more chatter'); "
        "lines(UnitEnded(t_ns=1, unit='u', incarnation=1, why='x'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["unit_ended"]
    assert "chatter" in done.stderr
    assert "more chatter" in done.stderr


def test_incarnations_count_up_and_never_repeat(tmp_path: Path) -> None:
    assert [StateDir(tmp_path / "s").next_incarnation() for _ in range(3)] == [1, 2, 3]


def test_lives_that_begin_together_get_different_incarnations(tmp_path: Path) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(StateDir(tmp_path).next_incarnation()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 9))


def test_a_counter_that_cannot_be_read_stops_the_unit(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_text("-4")
    with pytest.raises(DamagedState, match="incarnation holds '-4'"):
        StateDir(tmp_path).next_incarnation()


def test_saved_values_come_back(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.load() == {}
    state.save("fragment/0", {"version": 1, "merged": {"learner-0": [1, 5, 1]}})
    state.save("fragment/0", {"version": 2, "raw": b"\x00"})
    state.save("fragment/1", {"version": 9})
    assert StateDir(tmp_path).load() == {
        "fragment/0": {"version": 2, "raw": b"\x00"},
        "fragment/1": {"version": 9},
    }


def test_a_write_that_was_cut_off_leaves_the_value_before(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.save("k", 1)
    (path,) = tmp_path.glob("saved-*.bin")
    path.with_suffix(".tmp").write_bytes(b"half of somethi")
    assert state.load() == {"k": 1}


def spoil(path: Path, damage: str) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": bytes(raw), "cut": path.read_bytes()[:-1], "empty": b""}[damage])


DAMAGES = ["flip", "cut", "empty", "gone"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_value_before_stands_in_for_a_damaged_one_and_it_is_said(
    tmp_path: Path, damage: str
) -> None:
    state = StateDir(tmp_path)
    for version in (1, 2, 3):
        state.save("k", {"version": version})
    state.save("other", 7)
    (path,) = tmp_path.glob(f"saved-{b'k'.hex()}.bin")
    spoil(path, damage)
    assert state.load() == {"k": {"version": 2}, "other": 7}
    assert list(state.damaged) == ["k"]
    assert path.name in state.damaged["k"]
    state.save("k", {"version": 9})
    assert state.load()["k"] == {"version": 9}
    assert state.damaged == {}


@pytest.mark.parametrize("damage", DAMAGES[:3])
def test_state_of_which_nothing_good_is_left_is_refused_by_name(
    tmp_path: Path, damage: str
) -> None:
    state = StateDir(tmp_path)
    state.save("k", {"version": 3})
    (path,) = tmp_path.glob("saved-*.bin")
    spoil(path, damage)
    assert state.load() == {"k": {"version": 3}}, "the first value has a copy"
    spoil(path.with_suffix(".old"), damage)
    with pytest.raises(DamagedState, match=path.name):
        state.load()


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_damaged_is_never_the_value_before(tmp_path: Path, damage: str) -> None:
    """One damage after the other, each in the newest value: one save lies between them."""
    for version in (1, 2):
        StateDir(tmp_path).save("k", version)
    for version in (4, 6, 8):
        state = StateDir(tmp_path)
        state.load()
        state.save("k", version)
        (path,) = tmp_path.glob("saved-*.bin")
        spoil(path, damage)
        assert StateDir(tmp_path).load()["k"] >= version - 2


def test_a_death_between_the_two_renames_of_a_save_loses_nothing(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.save("k", 1)
    (path,) = tmp_path.glob("saved-*.bin")
    path.rename(path.with_suffix(".old"))
    path.with_suffix(".tmp").write_bytes(b"the new value, never said to be saved")
    assert state.load() == {"k": 1}
    assert state.damaged == {}


def test_files_are_two_for_each_key_however_often_it_is_saved(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    for value in range(50):
        state.save("k", value)
    assert len(list(tmp_path.glob("saved-*"))) == 2


def test_no_two_processes_live_on_the_same_state(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    first.take_lease()
    with pytest.raises(StateInUse, match="in use by another process"):
        StateDir(tmp_path).take_lease(wait_s=0.05)
    other = tmp_path / "other"
    command = [sys.executable, "-c", HOLD, str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StateInUse):
            StateDir(other).take_lease(wait_s=0.05)
        process.kill()  # and nothing else: the kernel gives the lease back
        process.wait()
        StateDir(other).take_lease(wait_s=10.0)


HOLD = """
import sys, time
from pathlib import Path
from targets.unit_files import StateDir
StateDir(Path(sys.argv[1])).take_lease()
print("held", flush=True)
time.sleep(60)
"""


def test_a_tuning_applies_from_the_next_look_on(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    control = ControlFile(path)
    assert control.tuning() == Tuning()
    path.write_text('{"step_factor": 3.0, "hang": true}')
    assert control.tuning() == Tuning(step_factor=3.0, hang=True)
    path.write_text('{"update": "nan"}')
    assert control.tuning() == Tuning(update="nan")
    path.unlink()
    assert control.tuning() == Tuning()


def test_a_tuning_that_cannot_be_understood_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    control = ControlFile(path)
    path.write_text('{"step_factor": 2.0}')
    control.tuning()
    path.write_text('{"step_factor": "fast"}')
    assert control.tuning() == Tuning(step_factor=2.0)
    assert "step_factor" in control.problem
    path.write_text("{}")
    assert control.tuning() == Tuning()
    assert control.problem == ""
