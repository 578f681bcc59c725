"""What tests of runtimes need from the machine."""

from __future__ import annotations

import pytest

from harness.errors import LaunchError


@pytest.fixture(scope="session")
def docker_engine(pytestconfig: pytest.Config) -> str:
    """The version of the engine; without one a skip, or an error when it is required."""
    from harness.runtimes.docker_engine import Engine

    required = (pytestconfig.getoption("chaos_require", "") or "").split(",")
    try:
        engine = Engine(timeout_s=5)
    except LaunchError as error:
        if "docker" in required:
            pytest.fail(f"docker is required: {error}", pytrace=False)
        pytest.skip(str(error))
    engine.close()
    return engine.version
