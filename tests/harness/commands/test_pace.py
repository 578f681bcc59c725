"""Lines that say how far something is: seldom without a terminal, by wall time."""

from __future__ import annotations

import io
from pathlib import Path

from harness.commands.pace import Bar, Pace
from harness.commands.progress import Progress
from harness.commands.run import prepare
from harness.compose import compose
from harness.events import Step
from tests.harness.specs import spec_text


class Clock:
    """A clock that is set by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_is_due_once_per_interval() -> None:
    clock = Clock()
    pace = Pace(10.0, clock)
    assert not pace.due()
    clock.now_s += 10
    assert pace.due()
    assert not pace.due()
    clock.now_s += 9.5
    assert not pace.due()
    clock.now_s += 0.5
    assert pace.due()
    assert pace.passed_s == 20.0


def test_a_plain_line_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    with Bar("replaying", 100, "merges", out, quiet=False, clock=clock) as bar:
        for done in range(1, 101):
            clock.now_s += 0.25
            bar(done, 100)
    assert out.getvalue().splitlines() == [
        "replaying: 40 of 100 merges after 10 s",
        "replaying: 80 of 100 merges after 20 s",
    ]


def test_quiet_says_nothing() -> None:
    out, clock = io.StringIO(), Clock()
    with Bar("replaying", 2, "merges", out, quiet=True, clock=clock) as bar:
        clock.now_s += 60
        bar(1, 2)
    assert out.getvalue() == ""


def said(folder: Path, wall_s: float, *, quiet: bool = False) -> list[str]:
    """What is shown of a simulated run whose 40 steps take ``wall_s`` of wall time each."""
    spec = folder / "exp.toml"
    spec.write_text(spec_text(""))
    checked = prepare(str(spec), 1)
    experiment = compose(checked, run="r", directory=folder / "out", given=str(spec))
    out, clock = io.StringIO(), Clock()
    with Progress(experiment, out, quiet=quiet, clock=clock) as progress:
        for number in range(40):
            clock.now_s += wall_s
            progress.observe(
                Step(
                    t_ns=number * 10**9,
                    unit="learner-0",
                    incarnation=1,
                    step=number + 1,
                    tokens=64,
                    loss=1.0,
                    compute_ns=1,
                    began_at_ns=0,
                )
            )
    return out.getvalue().splitlines()


def test_a_simulated_run_speaks_by_wall_time(tmp_path: Path) -> None:
    """Real training under virtual time may take an hour, and a fuzzed second none at all."""
    lines = said(tmp_path, 1.0)
    assert len(lines) == 4
    assert "10 steps" in lines[0]
    assert "20 steps" in lines[1]
    assert said(tmp_path, 0.01) == []
    assert said(tmp_path, 1.0, quiet=True) == []
