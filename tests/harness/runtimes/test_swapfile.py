"""A file that is replaced again and again is whole at every moment, and every change is seen."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.runtimes import swapfile
from harness.runtimes.swapfile import ROOM, SwapFile


@pytest.mark.parametrize("able", [True, False])
def test_readers_find_what_was_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    if not able:
        monkeypatch.setattr(swapfile, "_exchange", lambda one, other: False)
    path = tmp_path / "c.json"
    file = SwapFile(path)
    signatures = set()
    for number in range(50):
        text = b"%d" % number * (1 + number % 3)
        file.write(text)
        assert path.read_bytes().rstrip() == text
        stat = path.stat()
        signatures.add((stat.st_ino, stat.st_mtime_ns))
    assert len(signatures) == 50, "a change that readers could miss"


def test_a_reader_never_meets_half_a_change_or_no_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    file = SwapFile(path)
    file.write(b"a" * 100)
    stop, odd, read = threading.Event(), [], [0]

    def look() -> None:
        while not stop.is_set():
            try:
                text = path.read_bytes().rstrip()
            except FileNotFoundError:
                odd.append(b"missing")
                continue
            read[0] += 1
            if len(set(text)) != 1 or len(text) != 100:
                odd.append(text)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        number = 0
        while read[0] < 200 and number < 200_000:
            number += 1
            file.write(b"ab"[number % 2 : number % 2 + 1] * 100)
    finally:
        stop.set()
        reader.join(10)
    assert read[0] >= 200, "nothing was read meanwhile"
    # A reader that was kept from reading for two whole turns may see a mixture; hardly ever.
    assert odd.count(b"missing") == 0
    assert len(odd) <= read[0] // 20


def test_what_does_not_fit_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    file = SwapFile(path)
    file.write(b"good")
    with pytest.raises(ValueError, match="513 bytes do not fit"):
        file.write(b"x" * (ROOM + 1))
    assert path.read_bytes().rstrip() == b"good"


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SwapFile(tmp_path / "gone" / "c.json").write(b"x")
