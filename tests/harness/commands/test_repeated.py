"""The printed "repeat with" line names every option that changes a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.run import arguments, repeated

SAID_ELSEWHERE = {"spec", "runtime", "seed"}
"""Written into the line by what composes the experiment."""
CHANGES_NO_RUN = {"help", "out", "json", "quiet", "seeds", "jobs"}
"""Where it goes, what is printed, and what is a suite's: its members are repeated one by one."""
GIVEN = ["--attach", "p", "--set", "a=1", "--set", "b=2", "--control", "c d", "--resume", "r"]


def test_the_line_parses_to_the_options_it_was_made_of() -> None:
    parser = argparse.ArgumentParser()
    arguments(parser)
    options = parser.parse_args(["spec", *GIVEN, "--replay"])
    again = parser.parse_args(["spec", *repeated(options)])
    assert again == options
    assert again.control == Path("c d")
    unset = vars(parser.parse_args(["spec"]))
    named = {name for name, value in vars(again).items() if value != unset[name]}
    known = {action.dest for action in parser._actions}
    assert named == known - SAID_ELSEWHERE - CHANGES_NO_RUN
