"""One contract for where parts of checkpoints are kept: in memory and in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from targets.diloco import checkpoints, codec
from targets.diloco.checkpoints import (
    CheckpointError,
    Checkpoints,
    FileCheckpoints,
    InFlight,
    Manifest,
    MemoryCheckpoints,
    Part,
    prune,
)
from targets.diloco.keeping import Keeper
from targets.diloco.messages import KeepPart, Payload, Push, Report, SealSnapshot

Make = Callable[[Path], Checkpoints]


def in_memory(path: Path) -> Checkpoints:
    return MemoryCheckpoints("a run", "a layout")


def in_files(path: Path) -> Checkpoints:
    return FileCheckpoints(path / "learner-0", "a run", "a layout")


@pytest.fixture(params=[in_memory, in_files])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoints:
    make: Make = request.param
    return make(tmp_path)


def part(marker: int, fragments: int = 2) -> Part:
    return Part(
        unit="learner-0",
        role="learner",
        marker=marker,
        incarnation=3,
        run="a run",
        layout="a layout",
        state={"versions": [7] * fragments, "step": 41},
        trained=41,
        moments=40,
        digests={"params": "abc"},
    )


def arrays(fragment: int, name: str) -> Payload:
    which = checkpoints.ARRAYS["learner"].index(name)
    return codec.pack([np.arange(5, dtype=np.float32) + 10 * fragment + which], "f32")


def hollow(fragment: int, name: str) -> Payload:
    return Payload("f32", 20, f"digest of {name} {fragment}")


def manifest(marker: int) -> Manifest:
    return Manifest(
        marker=marker,
        run="a run",
        layout="a layout",
        members={"learner-0": "d"},
        omitted={"learner-1": "no link"},
        in_flight="",
    )


def messages() -> InFlight:
    report = Report(3, 40, (1, 2), (8, 16), 5, {"syncer": 99})
    payload = Payload("f32", 4, "x", b"1234")
    push = Push(3, 17, 1, 38, 40, 2, 16, 6, 90, payload, {"syncer": 99})
    return (("learner-0", report), ("learner-1", push))


@pytest.mark.parametrize("read", [arrays, hollow])
def test_what_was_kept_comes_back(store: Checkpoints, read: checkpoints.Read) -> None:
    kept = store.keep(part(100), read)
    assert all(p.data is None for f in kept.payloads for p in f)
    found = store.load(100)
    assert found.digest() == kept.digest()
    assert (found.trained, found.moments, found.state) == (41, 40, part(100).state)
    for fragment, payloads in enumerate(found.payloads):
        for name, payload in zip(checkpoints.ARRAYS["learner"], payloads, strict=True):
            wanted = read(fragment, name)
            assert wanted is not None
            assert payload == wanted
            assert payload.data == wanted.data


def test_a_part_is_no_complete_checkpoint(store: Checkpoints) -> None:
    store.keep(part(100), arrays)
    assert store.markers() == (100,)
    assert store.markers(sealed=True) == ()
    with pytest.raises(CheckpointError):
        store.sealed(100)


def test_what_was_sealed_comes_back(store: Checkpoints) -> None:
    store.keep(part(100), arrays)
    store.seal(manifest(100), messages())
    found, in_flight = store.sealed(100)
    assert (found.members, found.omitted) == (manifest(100).members, manifest(100).omitted)
    assert in_flight == messages()
    assert in_flight[1][1].payload.data == b"1234"  # type: ignore[union-attr]
    assert store.markers(sealed=True) == (100,)


def test_a_part_kept_again_is_not_sealed(store: Checkpoints) -> None:
    store.keep(part(100), arrays)
    store.seal(manifest(100), ())
    store.keep(part(100), arrays)
    assert store.markers(sealed=True) == ()


def test_pruning_spares_what_is_kept_and_what_is_newer(store: Checkpoints) -> None:
    for marker in (100, 200, 300, 400):
        store.keep(part(marker), arrays)
    prune(store, (200,), 300)
    assert store.markers() == (200, 400)
    with pytest.raises(CheckpointError):
        store.load(100)


def test_a_keeper_keeps_two_complete_ones(store: Checkpoints) -> None:
    keeper = Keeper(store, "learner-0", "learner", "a run", "a layout")
    for marker in (100, 200, 300, 400):
        done = keeper.keep(KeepPart(marker, 3, part(marker).state), arrays, trained=41)
        assert done.nbytes == 2 * 3 * 20
        members = {"learner-0": done.digest} if marker != 300 else None
        keeper.seal(SealSnapshot(marker, members))
    assert store.markers() == store.markers(sealed=True) == (200, 400)


def test_memory_writes_what_files_read(tmp_path: Path) -> None:
    memory, files = MemoryCheckpoints(), FileCheckpoints(tmp_path / "learner-0")
    memory.keep(part(100), arrays)
    memory.keep(part(200), hollow)
    memory.seal(manifest(200), messages())
    memory.write(files)
    assert files.markers() == (100, 200)
    assert files.load(100).digest() == memory.load(100).digest()
    assert files.load(200).digest() == memory.load(200).digest()
    assert files.sealed(200)[1] == messages()


FILES = ["part.json", "fragment-001.safetensors", "MANIFEST.json", "in-flight.bin"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["flipped", "torn", "missing", "empty"])
def test_no_damage_goes_unnoticed(tmp_path: Path, name: str, how: str) -> None:
    store = FileCheckpoints(tmp_path / "learner-0")
    store.keep(part(100), arrays)
    store.seal(manifest(100), messages())
    path = tmp_path / "learner-0" / "00000100" / name
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    else:
        data[-3] ^= 1
        left = {"flipped": bytes(data), "torn": bytes(data[: len(data) // 2]), "empty": b""}
        path.write_bytes(left[how])
    with pytest.raises(CheckpointError, match=name):
        _ = store.load(100), store.sealed(100)


def test_an_unfinished_part_is_none_and_gone_with_the_next(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path)
    left = tmp_path / "00000100.tmp"
    left.mkdir()
    (left / "part.json").write_text("half")
    assert store.markers() == ()
    store.keep(part(100), arrays)
    assert store.markers() == (100,)
    assert not left.exists()


def test_a_write_that_fails_leaves_no_part(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path)

    def breaks(fragment: int, name: str) -> Payload:
        if fragment:
            raise OSError("no space left")
        return arrays(fragment, name)

    with pytest.raises(OSError, match="no space"):
        store.keep(part(100), breaks)
    assert store.markers() == ()


def test_messages_of_another_kind_are_an_error() -> None:
    data = msgspec.msgpack.encode([("learner-0", "hello", {})])
    with pytest.raises(CheckpointError):
        checkpoints.unpack_in_flight(data)
    with pytest.raises(CheckpointError):
        checkpoints.unpack_in_flight(b"nonsense")
