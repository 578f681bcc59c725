"""The process runtime: the contract, and what only it does."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import targets
from faults.base import Damage, LinkState, Tuning
from harness.errors import ControlError, FaultSkipped, LaunchError, SpecError
from harness.events import (
    HarnessFailed,
    LinkUp,
    Merged,
    ProxyChanged,
    RolledBack,
    Step,
    UnitExited,
    UnitNote,
    UnitSpawned,
    UnitStarted,
)
from harness.leftovers import processes_of
from harness.runtimes import children
from harness.runtimes.base import RunContext, opened
from harness.runtimes.child import Child
from harness.runtimes.places import Ports
from harness.runtimes.process import ProcessRuntime
from targets.base import Target
from tests.contracts import runtime_contract
from tests.contracts.runtime_contract import NS, Stage, Watch, assert_clean, watched

pytestmark = pytest.mark.live

Make = Callable[..., ProcessRuntime]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DILOCO_CHAOS_CACHE", str(tmp_path / "cache"))
    count = iter(range(100))

    def made(**options: object) -> ProcessRuntime:
        number = next(count)
        folder = tmp_path / f"run{number}"
        run = f"test-{os.getpid()}-{tmp_path.name}-{number}"
        return ProcessRuntime(RunContext(run, 1, folder, {"proxy": "embedded", **options}))

    return made


def counter(**params: object) -> Target:
    return targets.load("counter")({"step_time_s": 0.02, **params}, 1)


def diloco() -> Target:
    params = {"learners": 2, "trainer": "scripted", "step_time_s": 0.02}
    return targets.load("diloco")({**params, "fragments": 2, "sync_every": 2}, 1)


STAGES = {
    "counter": (counter, "counter-1", "counter-0"),
    "diloco": (diloco, "learner-1", "learner-0"),
}


@pytest.fixture
def simple(make: Make) -> Stage:
    return Stage(make, *STAGES["counter"])


LINKED = {n for n in runtime_contract.CHECKS if "link" in n}


@pytest.mark.parametrize("name", runtime_contract.CHECKS)
def test_contract(simple: Stage, name: str) -> None:
    runtime_contract.CHECKS[name](simple)


@pytest.mark.parametrize("name", [*sorted(LINKED), "check_units_start_work_and_end"])
def test_contract_with_links(make: Make, name: str) -> None:
    runtime_contract.CHECKS[name](Stage(make, *STAGES["diloco"]))


def test_two_runtimes_at_once_do_not_disturb_each_other(make: Make) -> None:
    one = Stage(make, *STAGES["diloco"])
    with watched(one) as first, watched(replace(one, victim="learner-0")) as second:
        first.runtime.kill("learner-1")
        first.runtime.apply("learner-0", "link", LinkState(refused=True))
        first.until(UnitExited)
        second.steps("learner-0", 10)
        second.steps("learner-1", 10)
        first.runtime.close()
        assert_clean(first.runtime)
        second.steps("learner-0", 5)
        assert not [e for e in second.seen if isinstance(e, UnitExited | HarnessFailed)]
    assert_clean(second.runtime)


def test_busy_ports_are_passed_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ports.take
    with socket.create_server(("127.0.0.1", 0)) as busy:
        offered: list[int] = []
        taken = busy.getsockname()[1]

        def take(self: Ports) -> int:
            # The server's control port, then (after the syncer's own) the first link's.
            offered.append(taken if len(offered) in (0, 3) else real(self))
            return offered[-1]

        monkeypatch.setattr(Ports, "take", take)
        with watched(Stage(make, *STAGES["diloco"])) as watch:
            watch.steps("learner-0")
    assert offered.count(taken) == 2
    assert_clean(watch.runtime)


def test_a_unit_that_cannot_live_is_given_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "BACKOFF_S", (0.0, 0.01))
    monkeypatch.setattr(children, "QUICK_LIVES_MAX", 4)
    target = counter()
    monkeypatch.setattr(target, "module", lambda: "no_such_module_anywhere", raising=False)
    runtime = make()
    with opened(runtime, target):
        watch = Watch(runtime)
        note = watch.until(UnitNote, lambda e: e.unit == "counter-0")
        assert (note.what, note.detail.split(" in ")[0]) == ("given-up", "ended 4 times")
        assert not runtime.alive("counter-0")
        with pytest.raises(FaultSkipped, match="no process"):
            runtime.kill("counter-0")
    spawned = [e for e in watch.seen if isinstance(e, UnitSpawned) and e.unit == "counter-0"]
    assert [e.by for e in spawned] == ["harness", "supervisor", "supervisor", "supervisor"]
    log = runtime._context.directory / "units" / "counter-0.log"
    assert "no_such_module_anywhere" in log.read_text()
    assert_clean(runtime)


def test_deaths_that_faults_asked_for_are_not_held_against_a_unit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "BACKOFF_S", (0.0, 600.0))  # a second pause would be noticed
    with watched(Stage(make, *STAGES["counter"])) as watch:
        for life in (2, 3, 4):
            watch.runtime.kill("counter-1")
            watch.until(UnitStarted, lambda e, n=life: e.incarnation == n)  # type: ignore[misc]


def test_a_unit_deaf_to_sigterm_is_killed_after_its_grace(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('not an event', flush=True)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    target = counter(units=1)
    monkeypatch.setattr(target, "module", lambda: "stubborn", raising=False)
    runtime = make(stop_s=0.2)
    with opened(runtime, target):
        watch = Watch(runtime)
        log = runtime._context.directory / "units" / "counter-0.log"
        wait_for(watch, lambda: log.exists() and "not an event" in log.read_text())
        assert runtime.terminate("counter-0", NS // 10).startswith("SIGTERM")
        assert watch.until(UnitExited).signal == 9
        watch.until(UnitSpawned, lambda e: e.by == "supervisor")
        wait_for(watch, lambda: log.read_text().count("not an event") == 2)
    watch.seen += runtime.poll(0)
    assert [e.signal for e in watch.seen if isinstance(e, UnitExited)] == [9, 9]
    assert_clean(runtime)  # the grandchildren are gone as well


def wait_for(watch: Watch, true: Callable[[], bool]) -> None:
    deadline = watch.runtime.clock.now_ns() + runtime_contract.SOON_NS
    while not true():
        assert watch.runtime.clock.now_ns() < deadline
        watch.seen += watch.runtime.poll(watch.runtime.clock.now_ns() + NS // 100)


def test_a_frozen_place_starts_nothing_until_it_thaws(simple: Stage) -> None:
    with watched(simple) as watch:
        watch.runtime.apply("counter-1", "frozen", True)
        watch.runtime.kill("counter-1")
        first = len(watch.seen)
        watch.until(UnitExited)
        assert not [e for e in watch.during(NS // 2) if isinstance(e, UnitSpawned)]
        assert not watch.runtime.alive("counter-1")
        watch.runtime.apply("counter-1", "frozen", False)
        watch.until(UnitSpawned, lambda e: e.unit == "counter-1", first)


def test_a_throttled_unit_gets_no_more_than_its_share(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the kernel's own count of throttled periods, not from timings."""
    (tmp_path / "busy.py").write_text("while True: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    target = counter(units=1)
    monkeypatch.setattr(target, "module", lambda: "busy", raising=False)
    runtime = make()
    if "cpu_quota" not in runtime.offers:
        pytest.skip("no CPU control group can be made here")
    with opened(runtime, target):
        assert runtime.apply("counter-0", "cpu_share", 0.2) == "0.2 of a core"
        assert runtime._children is not None
        (group,) = runtime._children.groups()
        pid = runtime._children._children["counter-0"].process
        assert pid is not None
        assert (group.path / "cgroup.procs").read_text().split() == [str(pid.pid)]
        watch = Watch(runtime)

        def throttled() -> bool:
            stat = (group.path / "cpu.stat").read_text().split()
            return int(stat[stat.index("nr_throttled") + 1]) > 5

        wait_for(watch, throttled)
        with pytest.raises(ValueError, match="cpu share is 0"):
            runtime.apply("counter-0", "cpu_share", 0)
    assert_clean(runtime)
    assert not group.path.exists()


def test_configuration_with_the_token_is_for_the_owner_only(make: Make) -> None:
    runtime = make(keep_work=True)
    with opened(runtime, counter(units=1)):
        path = runtime._context.directory / "work" / "config" / "counter-0.json"
        assert path.stat().st_mode & 0o077 == 0
        config = json.loads(path.read_text())
        assert config["cache_dir"] == os.environ["DILOCO_CHAOS_CACHE"]
        assert len(config["token"]) == 64


def test_bad_options_are_told_all_at_once(make: Make) -> None:
    with pytest.raises(SpecError, match=r"3 problems(?s:.*)proxi(?s:.*)stop_s(?s:.*)keep_work"):
        make(proxi="embedded", stop_s="soon", keep_work=1)
    with pytest.raises(SpecError, match="squid"):
        make(proxy="squid")


def test_a_directory_that_cannot_be_written_is_one_clear_error(make: Make, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    runtime = make()
    runtime._context = replace(runtime._context, directory=blocked / "run")
    with pytest.raises(LaunchError, match="cannot write"), opened(runtime, counter()):
        pass
    assert processes_of(runtime._context.run) == []


def test_a_half_open_runtime_is_closed_without_residue(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make()
    real = children.Children.start

    def start(self: children.Children, child: Child) -> None:
        if child.name == "learner-1":
            child.command = ["/nonexistent/python"]
        real(self, child)

    monkeypatch.setattr(children.Children, "start", start)
    with (
        pytest.raises(LaunchError, match="cannot start learner-1"),
        opened(runtime, diloco()),
    ):
        pass
    assert_clean(runtime)


def test_controls_need_an_open_runtime(make: Make) -> None:
    with pytest.raises(ControlError, match="not open"):
        make().kill("counter-0")


def to_syncer(toxics: Iterable[str]) -> set[str]:
    """Toxics on links to the syncer; a learner's links to its peers follow in the background."""
    return {t for t in toxics if "-to-syncer/" in t}


def test_a_link_fault_on_the_syncer_hits_every_learner(make: Make) -> None:
    with watched(Stage(make, *STAGES["diloco"])) as watch:
        watch.runtime.apply("syncer", "link", LinkState(silent_up=True))
        watch.runtime.apply("learner-0", "link", LinkState(latency_ms=1))
        assert watch.runtime._server is not None  # type: ignore[attr-defined]
        links = watch.runtime._server.links  # type: ignore[attr-defined]
        # The syncer's way out is the learners' way in.
        assert {t for t in links.toxics() if "timeout" in t} == {
            "learner-0-to-syncer/timeout_downstream",
            "learner-1-to-syncer/timeout_downstream",
        }
        watch.runtime.apply("syncer", "link", LinkState())
        assert to_syncer(links.toxics()) == {
            "learner-0-to-syncer/latency_upstream",
            "learner-0-to-syncer/latency_downstream",
        }


def test_a_proxy_that_dies_comes_back_with_its_links_as_they_were(make: Make) -> None:
    with watched(Stage(make, *STAGES["diloco"])) as watch:
        runtime = watch.runtime
        assert isinstance(runtime, ProcessRuntime)
        assert runtime._server is not None
        runtime.apply("learner-0", "link", LinkState(latency_ms=3))
        runtime.apply("learner-1", "link", LinkState(refused=True))
        before = to_syncer(runtime._server.links.toxics())
        first = len(watch.seen)
        os.kill(runtime._server.process.pid, 9)
        watch.until(ProxyChanged, lambda e: e.what == "proxy server ended (signal 9)", first)
        watch.until(ProxyChanged, lambda e: e.what.endswith("anew with 4 links"), first)
        assert to_syncer(runtime._server.links.toxics()) == before
        watch.until(LinkUp, lambda e: e.unit == "learner-0", first)
        runtime.apply("learner-1", "link", LinkState())
        watch.until(LinkUp, lambda e: e.unit == "learner-1", first)
        assert not [e for e in watch.seen if isinstance(e, HarnessFailed)]
    assert_clean(watch.runtime)


def test_a_burst_of_output_is_neither_lost_nor_reordered(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chatty.py").write_text(
        "import sys, time\n"
        "from harness.events import Step, encode\n"
        "for n in range(20000):\n"
        "    t = time.monotonic_ns()\n"
        "    sys.stdout.buffer.write(encode(Step(t_ns=t, unit='counter-0', incarnation=1,\n"
        "        step=n, began_at_ns=t, tokens=1)))\n"
        'sys.stdout.buffer.write(b\'{"event":"step","t_ns":1\')\n'
        "sys.stdout.flush()\n"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    target = counter(units=1)
    monkeypatch.setattr(target, "module", lambda: "chatty", raising=False)
    runtime = make()
    with opened(runtime, target):
        watch = Watch(runtime)
        watch.until(UnitExited)
    first = watch.seen[: next(i for i, e in enumerate(watch.seen) if isinstance(e, UnitExited))]
    assert [e.step for e in first if isinstance(e, Step)] == list(range(20000))
    log = runtime._context.directory / "units" / "counter-0.log"
    assert '[torn line] {"event":"step","t_ns":1' in log.read_text()


def test_a_syncer_whose_disk_is_lost_goes_on_from_what_learners_hold(make: Make) -> None:
    with watched(Stage(make, *STAGES["diloco"])) as watch:
        before = watch.until(Merged, lambda e: e.version >= 3)
        first = len(watch.seen)
        watch.runtime.damage("syncer", "lose")
        back = watch.until(RolledBack, after=first)
        assert back.version > before.version
        assert "gave nothing back" in back.why
        watch.until(Merged, lambda e: e.version > back.version, first)
        versions = [(e.fragment, e.version) for e in watch.seen if isinstance(e, Merged)]
        assert len(versions) == len(set(versions)), "no version comes twice"
    assert_clean(watch.runtime)


@pytest.mark.parametrize("how", ["flip", "tear"])
def test_damage_to_a_syncers_newest_state_costs_one_version(make: Make, how: Damage) -> None:
    with watched(Stage(make, *STAGES["diloco"])) as watch:
        watch.until(Merged, lambda e: e.version >= 3)
        first = len(watch.seen)
        watch.runtime.damage("syncer", how)
        back = watch.until(RolledBack, after=first)
        newest = max(
            e.version for e in watch.seen if isinstance(e, Merged) and e.fragment == back.fragment
        )
        assert back.version == newest + 1
        watch.until(Merged, lambda e: e.version > back.version, first)
    assert_clean(watch.runtime)


def test_while_the_disk_is_full_nothing_is_merged_and_nothing_is_lost(make: Make) -> None:
    with watched(Stage(make, *STAGES["diloco"])) as watch:
        watch.until(Merged, lambda e: e.version >= 3)
        watch.runtime.apply("syncer", "tuning", Tuning(disk_full=True))
        first = len(watch.seen)
        watch.until(UnitNote, lambda e: "No space left" in e.detail, first)
        first = len(watch.seen)
        watch.steps("learner-0", 5)
        assert not any(isinstance(e, Merged | UnitExited) for e in watch.seen[first:])
        watch.runtime.apply("syncer", "tuning", Tuning())
        watch.until(Merged, after=first)
        versions = [(e.fragment, e.version) for e in watch.seen if isinstance(e, Merged)]
        assert len(versions) == len(set(versions))
    assert_clean(watch.runtime)


def test_a_proxy_that_is_killed_comes_back_with_what_was_held_on_it(make: Make) -> None:
    with watched(Stage(make, *STAGES["diloco"])) as watch:
        watch.until(Merged)
        watch.runtime.apply("learner-1", "link", LinkState(refused=True))
        first = len(watch.seen)
        assert "back as process" in watch.runtime.kill_proxy()
        watch.until(ProxyChanged, lambda e: "ended (signal 9)" in e.what, first)
        watch.until(ProxyChanged, lambda e: "started anew" in e.what, first)
        up = watch.until(LinkUp, lambda e: e.unit == "learner-0", first)
        mark = len(watch.seen)
        merged = watch.until(Merged, lambda e: e.t_ns > up.t_ns, mark)
        assert [c.unit for c in merged.contributions] == ["learner-0"], "the other is cut off"
        watch.runtime.apply("learner-1", "link", LinkState())
        watch.until(LinkUp, lambda e: e.unit == "learner-1", mark)
    assert_clean(watch.runtime)


def test_without_links_there_is_no_proxy_to_kill(simple: Stage) -> None:
    with watched(simple) as watch, pytest.raises(FaultSkipped, match="no proxy"):
        watch.runtime.kill_proxy()
