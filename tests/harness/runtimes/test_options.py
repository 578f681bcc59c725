"""Numbers among the options of the live runtimes that are no numbers one could use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.errors import SpecError
from harness.runtimes.docker_options import docker_options
from harness.runtimes.process_options import read_options

Read = Callable[[Mapping[str, Any]], object]


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), -1, True])
@pytest.mark.parametrize("read", [read_options, docker_options])
def test_what_is_no_length_of_time_is_refused(read: Read, value: float) -> None:
    with pytest.raises(SpecError, match="stop_s") as caught:
        read({"stop_s": value})
    assert len(str(caught.value)) < 200
