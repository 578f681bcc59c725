"""Controls: a run's loss is compared with that of another run, which is done before it.

``control = true`` in a spec means the same experiment without its faults, ``control = "NAME"``
another experiment or spec file. What the control's evaluations said goes into the run's journal, so
that its reports need nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import catalogue
from harness.commands.together import kept, known_run
from harness.compose import Checked, Experiment, check, compose
from harness.errors import SpecError
from harness.events import ControlMeasured, Measured
from harness.rundir import RunDir, new_run_id
from harness.spec import Draft
from reports.build import analyse
from reports.gate import GATES
from reports.history import read_history
from reports.quality import curve, ended_finite
from reports.schema import Report
from reports.write import write_reports

FOLDER = "control"
"""Below the directory of the run that it is the control of."""

EVALUATED = "evaluate_every"

LOSSES = {"trainer": "lm", "data": None, "sequence": None}
"""Parameters that say what a loss is of, and what a target without that choice has. Losses of
different ones cannot be compared at all."""

Carry = Callable[[Experiment, RunDir], None]
"""Runs an experiment to its end."""


def prepare(
    checked: Checked,
    *,
    base: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Checked | None:
    """The control that ``checked`` asks for, or None. ``base`` is the folder of its spec.

    Raises :class:`SpecError` when there is no such experiment, or nothing would be measured.
    """
    asked = checked.spec.head.control
    if not asked:
        return None
    if asked is True:
        found = check(_without_faults(checked), checked.seed, overrides)
    else:
        draft = catalogue.find(_beside(asked, base), gates=GATES)
        head = draft.head and draft.head.model_copy(update={"control": None})
        found = check(replace(draft, head=head), checked.seed)
    if problems := unlike(checked, found):
        raise SpecError(checked.spec.name, problems)
    return found


def unlike(checked: Checked, control: Checked) -> list[str]:
    """Why nothing could be measured of ``checked`` beside ``control``."""
    never = [
        f"control: {one.spec.name} is never evaluated; set {EVALUATED} in its target's params"
        for one in (checked, control)
        if not one.target.params.get(EVALUATED)
    ]
    return [*dict.fromkeys(never), *other_losses(checked, control.target.params)]


def other_losses(checked: Checked, control: Mapping[str, Any]) -> list[str]:
    """Why a loss of ``checked`` says nothing beside one of a control with these parameters."""
    mine = checked.target.params
    pairs = [(k, mine.get(k, usual), control.get(k, usual)) for k, usual in LOSSES.items()]
    return [
        f"control: its losses are of another kind: {name} is {its!r} there and {own!r} here"
        for name, own, its in pairs
        if own != its and own is not None and its is not None
    ]


def _beside(name: str, base: Path | None) -> str:
    file = base / name if base is not None else None
    return str(file) if file is not None and file.is_file() else name


def _without_faults(checked: Checked) -> Draft:
    spec = checked.spec
    return Draft(
        f"{spec.name}-control",
        f"# The control: without the faults and gates below.\n{spec.text}",
        spec.head.model_copy(update={"control": None}),
        spec.target,
        (),
        {},
        (),
    )


def carry_out(control: Checked, out: Path, carry: Carry, *, runtime: str | None = None) -> Report:
    """Run the control in ``out`` and report on it."""
    run_id = new_run_id()
    experiment = compose(control, run=run_id, directory=out, runtime=runtime)
    rundir = RunDir.create(out, control.spec, run_id, control.seed)
    carry(experiment, rundir)
    return write_reports(rundir.path)


def named(directory: Path, checked: Checked) -> ControlMeasured:
    """What the finished run in ``directory`` has to say as the control of ``checked``.

    Raises :class:`SpecError` when there is none, or its losses are of something else.
    """
    known_run(directory)
    if kept(directory) is not None:
        raise SpecError("--control", [f"{directory} is a suite; name one of its runs"])
    if problems := other_losses(checked, read_history(directory).run.params):
        raise SpecError("--control", problems)
    return measured(directory)


def measured(directory: Path) -> ControlMeasured:
    """What the run in ``directory`` has to say as a control.

    Raises ``harness.errors.JournalError`` when there is none.
    """
    history = read_history(directory)
    verdict = analyse(history).report.verdict
    return ControlMeasured(
        t_ns=0,
        name=history.run.experiment,
        run=history.run.run,
        outcome=verdict.outcome,
        conclusive=verdict.conclusive,
        points=tuple(
            Measured(tokens=p.tokens, loss=p.loss, accuracy=p.accuracy) for p in curve(history)
        ),
        ended_finite=ended_finite(history),
    )
