"""``diloco-chaos schema``: the experiment file's JSON schema, for editors."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module

from harness.spec import json_schema
from reports.gate import GATES
from targets import TARGETS


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def execute(options: argparse.Namespace) -> int:
    """Print the schema."""
    homes = {name: path.partition(":")[0] for name, path in TARGETS.items()}
    schemas = {name: import_module(home).params_schema() for name, home in homes.items()}
    sys.stdout.write(json.dumps(json_schema(GATES, schemas), indent=2, sort_keys=True) + "\n")
    return 0
