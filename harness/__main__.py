"""``diloco-chaos``: parse the command line, run one command, turn errors into exit statuses."""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module, metadata

from harness.errors import ChaosError, Interrupted

COMMANDS: dict[str, str] = {
    "run": "break a training cluster while it trains, and say what happened",
    "report": "compute the reports of a run directory anew from its journal",
    "replay": "follow a run's event tape: does everything come out bit-equal again",
    "gate": "judge a run directory by its exit status",
    "compare": "two runs side by side",
    "twin": "the same experiment live and simulated: do the two tell the same story",
    "fuzz": "drawn experiments in virtual time, until a promise is broken",
    "simulate": "goodput and uptime on failing chips, at the paper's scale",
    "bandwidth": "what links a way of training needs",
    "list": "what there is: experiments, faults, runtimes, targets",
    "doctor": "what this machine lacks, and how to get it",
    "clean": "remove expired leftovers of any run",
    "schema": "JSON schema of the experiment file, for editors",
}
"""Command to its line of help; each lives in ``harness.commands.NAME``."""


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The whole command line. Only ``chosen`` is imported: ``list`` must not wait for Docker's SDK
    or for JAX."""
    root = argparse.ArgumentParser(
        prog="diloco-chaos",
        description="Chaos engineering for fault-tolerant training.",
        epilog="Exit status: 0 passed, 1 the system under test failed, 2 spec or command line "
        "wrong, 3 inconclusive, 4 the harness failed or left residue, 130/143 interrupted.",
    )
    root.add_argument("--version", action="version", version=_version())
    subs = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = subs.add_parser(name, help=text, description=text)
        if name == chosen:
            module = import_module(f"harness.commands.{name}")
            module.arguments(sub)
            sub.set_defaults(execute=module.execute)
    return root


def _version() -> str:
    try:
        return metadata.version("diloco-chaos")
    except metadata.PackageNotFoundError:
        return "not installed"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen = next((a for a in given if not a.startswith("-")), None)
    try:
        arguments = parser(chosen).parse_args(given)
        status: int = arguments.execute(arguments)
    except KeyboardInterrupt:
        stopped = Interrupted(signal.SIGINT)
        print(f"diloco-chaos: {stopped}", file=sys.stderr)
        return stopped.exit_status
    except ChaosError as error:
        print(f"diloco-chaos: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader of our output went away (a pager was closed); that is no failure of ours.
        sys.stderr.close()
        return 0
    except Exception:
        # Python's own status for this is 1, which would blame the system under test.
        traceback.print_exc()
        return ChaosError.exit_status
    return status


if __name__ == "__main__":
    sys.exit(main())
