"""``diloco-chaos schema``: the experiment file's JSON schema, for editors."""

from __future__ import annotations

import argparse
import json
import sys

from pydantic import TypeAdapter

from harness.spec import json_schema
from reports.gate import GATES
from targets.diloco.params import DilocoParams


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def execute(options: argparse.Namespace) -> int:
    """Print the schema."""
    schemas = {"diloco": TypeAdapter(DilocoParams).json_schema(), "counter": {"type": "object"}}
    sys.stdout.write(json.dumps(json_schema(GATES, schemas), indent=2, sort_keys=True) + "\n")
    return 0
