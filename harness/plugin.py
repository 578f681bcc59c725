"""pytest plugin ``diloco-chaos``: chaos experiments as tests. Imports nothing heavy until used.

    @pytest.mark.chaos("kill-one", runtime="process", seed=7)
    def test_one_death_is_survived(chaos_run):
        assert chaos_run.report.goodput.ratio > 0.8

    @pytest.mark.chaos(params={"learners": 3})
    def test_partition(chaos_cluster):
        with chaos_cluster.fault("partition", where="learner-1"):
            ...
        chaos_cluster.expect_recovery(within_s=10)

A marked test whose run is inconclusive is an error, never a pass; a run that failed fails the
test before its body. Numbers go out as properties of the test, ``chaos.*``.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.testing import ChaosCluster, ChaosRun

OPTIONS: dict[str, str] = {
    "chaos_runtime": "runtime for chaos experiments: process, docker or simulated",
    "chaos_seed": "seed for chaos experiments that set none",
    "chaos_report_dir": "where the run directories of chaos experiments go",
    "chaos_require": "comma-separated: docker, toxiproxy, browser; missing is an error, not a skip",
}
"""Option to its help; each is a command-line option and an ini key."""

BODY_FAILED: pytest.StashKey[bool] = pytest.StashKey()
REPORTS: pytest.StashKey[list[tuple[str, str, str]]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, the same as ini keys."""
    group = parser.getgroup("diloco-chaos")
    for name, text in OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", dest=name, default=None, help=text)
        parser.addini(name, help=text, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and judge ``--chaos-require`` before anything is collected."""
    config.addinivalue_line(
        "markers",
        "chaos(spec=None, *, runtime=None, seed=None, params=None): a chaos experiment, by "
        "built-in name or path of a .toml file, for the fixtures chaos_run and chaos_cluster",
    )
    config.stash[REPORTS] = []
    required = requirements(config)
    if required:
        from harness.needs import NEEDS

        unknown = required - set(NEEDS)
        if unknown:
            raise pytest.UsageError(
                f"--chaos-require: unknown {', '.join(sorted(unknown))} (known: {', '.join(NEEDS)})"
            )


def option(config: pytest.Config, name: str) -> str:
    """An option's value: command line, else ini, else environment, else empty."""
    value = config.getoption(name) or config.getini(name) or os.environ.get(name.upper(), "")
    return str(value)


def requirements(config: pytest.Config) -> set[str]:
    """What must be there: a missing one is an error instead of a skip."""
    return {n.strip() for n in option(config, "chaos_require").split(",") if n.strip()}


def need(request: pytest.FixtureRequest | pytest.Item, name: str) -> None:
    """Skip loudly when ``name`` (docker, toxiproxy, browser) is missing; error when required."""
    from harness.needs import NEEDS

    missing = NEEDS[name]()
    if not missing:
        return
    if name in requirements(request.config):
        pytest.fail(f"{name} is required but missing: {missing}", pytrace=False)
    pytest.skip(f"{name} is missing: {missing} (--chaos-require {name} makes this an error)")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what was asked for, so that a log shows how to repeat a run."""
    given = [f"{n.replace('_', '-')}={option(config, n)}" for n in OPTIONS if option(config, n)]
    return f"diloco-chaos: {', '.join(given)}" if given else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked docker, toxiproxy or browser skip loudly, or fail, when that is missing.

    A chaos marker that names no sound experiment is an error of that test, and of no other.
    """
    marker = item.get_closest_marker("chaos")
    if marker is not None:
        from harness.testing import validate_marker

        validate_marker(marker, Path(item.path).parent)
    for name in ("docker", "toxiproxy", "browser"):
        if item.get_closest_marker(name):
            need(item, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test's own body failed: a fixture cannot see that by itself."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[BODY_FAILED] = True
    return report


@pytest.fixture
def chaos_run(request: pytest.FixtureRequest, tmp_path: Path) -> ChaosRun:
    """The finished run of the test's experiment: ``.report``, ``.history``, ``.directory``."""
    from harness.testing import finished_run

    run = finished_run(request, tmp_path)
    _record(request, run)
    run.demand_pass()
    return run


@pytest.fixture
def chaos_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChaosCluster]:
    """A live cluster in steady state that the test itself breaks; healed and judged after it."""
    from harness.testing import live_cluster

    with live_cluster(request, tmp_path) as cluster:
        yield cluster
    run = cluster.finished()
    _record(request, run)
    # A body that failed half way says more than the verdict on what it left undone.
    if not request.node.stash.get(BODY_FAILED, False):
        run.demand_pass()


def _record(request: pytest.FixtureRequest, run: ChaosRun) -> None:
    # Not by ``record_property``: it does the same and warns of the JUnit format that is pytest's
    # default, which fails users whose warnings are errors.
    request.node.user_properties.extend(run.properties().items())
    # Workers of pytest-xdist have a terminal of their own that nobody sees; the properties above
    # travel to the controller, this list serves the run without workers.
    entry = (request.node.nodeid, run.outcome, str(run.directory / "report.html"))
    request.config.stash[REPORTS].append(entry)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line for each experiment: test, outcome, where its report lies."""
    own = config.stash[REPORTS]
    rows = list(own)
    for reports in terminalreporter.stats.values():
        for report in reports:
            found = dict(getattr(report, "user_properties", None) or [])
            if "chaos.outcome" not in found:
                continue
            row = (report.nodeid, str(found["chaos.outcome"]), str(found["chaos.report_path"]))
            if row not in rows:
                rows.append(row)
    if not rows or config.getoption("quiet", 0):
        return
    terminalreporter.section("chaos experiments")
    for nodeid, outcome, path in rows:
        terminalreporter.line(f"{outcome:<18} {nodeid}  {path}")
