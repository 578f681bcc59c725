"""What units in containers train on: the same bytes as everywhere else.

A file or folder of this machine is mounted read-only. A text that is known by name comes out of the
Python that runs (``cpython-docs``), and an image has another Python than its host: the same
experiment would train on another text there, and no tape of it could be followed here. So this
machine's text is written into the run's work folder and mounted like any other file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import LaunchError

INSIDE = "/data"


def shared_data(params: Mapping[str, Any], work: Path) -> tuple[dict[str, Any], list[str]]:
    """The params as a container must see them, and the mounts that make it so.

    ``work`` is where a text known by name is written. Raises ``OSError``, and
    :class:`LaunchError` where this machine's Python lacks the text.
    """
    data = params.get("data")
    if not isinstance(data, str) or data == "synthetic":
        return dict(params), []
    path = Path(data)
    path = path.resolve() if path.exists() else _written(data, work)
    inside = f"{INSIDE}/{path.name}"
    return {**params, "data": inside}, [f"{path}:{inside}:ro"]


def _written(name: str, work: Path) -> Path:
    from targets.diloco.data import DataError, corpus_bytes

    try:
        text = corpus_bytes(name)
    except DataError as error:
        raise LaunchError(str(error)) from error
    work.mkdir(parents=True, exist_ok=True)
    path = work.resolve() / name
    path.write_bytes(text.tobytes())
    return path
