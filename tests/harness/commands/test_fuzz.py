"""What the fuzz command says besides what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.__main__ import main
from harness.commands import fuzz
from harness.fuzz.campaign import Progress


@pytest.mark.parametrize("bound", [["--seeds", "30"], ["--minutes", "0.5"], []])
def test_the_command_to_repeat_it_tries_as_many_seeds(
    bound: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(fuzz, "search", lambda *_, **__: iter([Progress(3, 1.0)]))
    assert main(["fuzz", *bound, "--first", "4", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.endswith(" ".join(["repeat with: diloco-chaos fuzz --first 4", *bound]))
