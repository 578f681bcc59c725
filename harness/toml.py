"""TOML as people write it: whatever cannot be read is one kind of error."""

from __future__ import annotations

import tomllib
from typing import Any


def loads(text: str) -> dict[str, Any]:
    """Parse ``text``. Raises ``ValueError`` with the reason.

    ``tomllib`` alone also lets out Python's own errors, for an integer of thousands of digits and
    for a thousand arrays in each other.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("tables or arrays lie too deep in each other") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise ValueError("an integer has thousands of digits") from error
