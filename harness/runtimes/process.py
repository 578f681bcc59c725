"""Units as local child processes, with a proxy server between them.

For each link of a unit there is one proxy link; the unit dials the proxy. A supervisor of our
own restarts what dies. Needs Linux (process file descriptors, /proc).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import msgspec

from faults.base import Capability, Damage, LinkState, Resource, Tuning
from faults.holds import NEUTRAL
from harness.clock import Clock, WallClock
from harness.errors import ChaosError, ControlError, FaultSkipped, LaunchError
from harness.events import AnyEvent, HarnessFailed, ProxyChanged, ResidueFound
from harness.leftovers import cgroups_of, own, processes_of, start_ticks
from harness.reaper import Reaper
from harness.runtimes import proxy_server, state_files
from harness.runtimes.base import RunContext
from harness.runtimes.cgroups import CpuGroup, find_controller
from harness.runtimes.child import Child
from harness.runtimes.children import Children
from harness.runtimes.linktable import LinkTable
from harness.runtimes.memory import MemoryGroup, Squeeze, find_memory
from harness.runtimes.places import Ports, cache_dir
from harness.runtimes.process_options import read_options, unit_environment
from harness.runtimes.proxy_server import ProxyServer
from harness.runtimes.swapfile import SwapFile
from targets.base import Target, UnitSpec
from targets.unit_config import UnitConfig, write_unit_config

BEHIND_TRIES, BEHIND_PAUSE_S = 5, 0.3
"""How often, and after which pause, a link between learners is set that could not be."""

PROXY_BACK_S = 20.0
"""How long the proxy server may take to be back after a death that was asked for."""

DEATH_S = 10.0
"""How long a unit may take to die where somebody waits for that."""

PROXY_DEATHS_MAX = 10
"""After so many deaths in one run the proxy server is not started again."""


class ProcessRuntime:
    """See :class:`harness.runtimes.base.Runtime`."""

    name = "process"
    keeps_checkpoints = True
    """Units write them below the run directory, where they outlive the run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._options = read_options(context.options)
        self._controller = find_controller()
        self._wall = WallClock()
        self.clock: Clock = self._wall
        offers: set[Capability] = {
            "kill",
            "terminate",
            "freeze",
            "tune",
            "link",
            "restart",
            "absence",
            "state",
            "proxy",
        }
        if self._controller is not None:
            offers.add("cpu_quota")
        self._memory = find_memory()
        if self._memory is not None:
            offers.add("memory")
        self.offers: frozenset[Capability] = frozenset(offers)
        self.proxy = proxy_server.describe(self._options["proxy"])
        self._work = context.directory.resolve() / "work"
        self._reaper: Reaper | None = None
        self._children: Children | None = None
        self._ports: Ports | None = None
        self._server: ProxyServer | None = None
        self._table = LinkTable(())
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="peer-links")
        self._late: SimpleQueue[AnyEvent] = SimpleQueue()
        """Failures of ours, from whatever thread they happen on."""
        self._units: dict[str, UnitSpec] = {}
        self._proxy_log: BinaryIO | None = None
        self._proxy_asked = False
        self._proxy_back = threading.Event()
        self._damages: dict[str, int] = {}
        self._groups: list[MemoryGroup] = []
        self._proxy_deaths = 0
        self._closed = False

    # --- life -------------------------------------------------------------------------------

    def open(self, target: Target) -> None:
        """Start the dead-man, the proxy links and every unit, in that order."""
        directory = self._context.directory.resolve()
        try:
            (directory / "units").mkdir(parents=True, exist_ok=True)
            self._reaper = Reaper(self._context.run, directory)
            self._reaper.record(kind="remove", path=str(self._work))
            own(self._work, self._context.run)
            for part in ("config", "state", "control"):
                (self._work / part).mkdir(exist_ok=True)
            cache_dir().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"cannot write where the run needs to: {error}") from error
        self._units = {spec.name: spec for spec in target.units()}
        self._table = LinkTable(self._units.values())
        self._ports = Ports()
        self._children = Children(
            self._wall, self._announce, reschedule_s=self._options["reschedule_s"]
        )
        listens, dials = self._connect(self._ports, self._children)
        token = secrets.token_hex(32)
        for spec in self._units.values():
            self._children.start(self._child(target, spec, token, listens, dials[spec.name]))

    def poll(self, until_ns: int) -> list[AnyEvent]:
        """Events that became known, oldest first."""
        late: list[AnyEvent] = []
        while not self._late.empty():
            late.append(self._late.get())
        if self._children is None:
            return late
        return [*self._children.poll(-1 if late else until_ns), *late]

    def alive(self, unit: str) -> bool:
        """Whether a process of the unit runs now."""
        return self._running.alive(unit)

    def close(self) -> None:
        """Heal, stop and remove everything; what goes wrong on the way is told by ``poll``."""
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            self._attempt("heal links", self._heal_links)
        self._behind.shutdown()
        if self._children is not None:
            children = self._children
            self._attempt("stop units", lambda: children.close(self._options["stop_s"]))
            for group in [*children.groups(), *self._groups]:
                self._attempt("remove cgroup", group.remove)
        if self._server is not None:
            self._attempt("stop the proxy", self._server.stop)
        if self._proxy_log is not None:
            self._proxy_log.close()
        if not self._options["keep_work"]:
            self._attempt(
                "remove work files", lambda: shutil.rmtree(self._work, ignore_errors=True)
            )
        if self._ports is not None:
            self._attempt("release ports", self._ports.release)
        if self._reaper is not None:
            self._attempt("stop the reaper", self._reaper.done)

    def residue(self, t_ns: int) -> ResidueFound:
        """What of this run is still on the machine, found by looking at the machine."""
        found = [f"process {pid}" for pid in processes_of(self._context.run)]
        found += [f"cgroup {path}" for path in cgroups_of(self._context.run)]
        if self._reaper is not None and start_ticks(self._reaper.pid) is not None:
            found.append(f"reaper {self._reaper.pid}")
        if not self._options["keep_work"] and self._work.exists():
            found.append(f"directory {self._work}")
        toxics: tuple[str, ...] = ()
        if self._server is not None and self._server.process.poll() is None:
            toxics = self._server.links.toxics()
        return ResidueFound(t_ns=t_ns, processes=tuple(found), toxics=toxics)

    # --- controls ---------------------------------------------------------------------------

    def kill(self, unit: str) -> str:
        """SIGKILL; the supervisor brings the unit back."""
        return self._running.kill(unit)

    def terminate(self, unit: str, grace_ns: int) -> str:
        """SIGTERM, and SIGKILL after the grace time; the supervisor brings the unit back."""
        return self._running.terminate(unit, grace_ns)

    def damage(self, unit: str, how: Damage) -> str:
        """SIGKILL, and damage to the unit's files before the supervisor brings it back."""
        nth = self._damages[unit] = self._damages.get(unit, 0) + 1
        directory = self._work / "state" / unit
        snapshots = self._context.directory / state_files.SNAPSHOTS / unit

        def end(pid: int) -> None:
            os.kill(pid, signal.SIGKILL)

        return self._running.between(
            unit, lambda: state_files.damage(directory, how, nth, snapshots), end, DEATH_S
        )

    def oom(self, unit: str) -> str:
        """A control group's limit below what the unit takes; the kernel ends it."""
        if self._memory is None:
            raise ControlError("no control group with a memory limit can be made here")
        group = MemoryGroup(self._memory, self._context.run, unit)
        if self._reaper is not None:
            self._reaper.record(kind="cgroup", path=str(group.path))
        squeeze = Squeeze(group, unit_environment(self._context.run))
        self._announce("ballast", squeeze.pid)
        try:
            return self._running.oom(unit, squeeze, DEATH_S)
        finally:
            squeeze.close()
            self._groups.append(group)
            self._attempt("remove cgroup", group.remove)

    def kill_proxy(self) -> str:
        """SIGKILL to the proxy server; the links come back as they were."""
        server = self._server
        if server is None:
            raise FaultSkipped("no unit of this target dials another, so there is no proxy")
        pid = server.process.pid
        self._proxy_back.clear()
        self._proxy_asked = True
        os.kill(pid, signal.SIGKILL)
        # Nothing else is asked of the proxy meanwhile: it would be a failure of ours.
        if not self._proxy_back.wait(PROXY_BACK_S):
            raise ControlError(f"the proxy server is not back {PROXY_BACK_S:g} s after its death")
        return f"SIGKILL to proxy {pid}; back as process {server.process.pid}"

    def apply(self, unit: str, resource: Resource, setting: Any) -> str:
        """Bring one resource of the unit's place to ``setting``."""
        running = self._running
        if resource == "frozen":
            return running.freeze(unit, bool(setting))
        if resource == "cpu_share":
            return self._share(unit, setting)
        if resource == "tuning":
            return self._tune(unit, setting)
        if resource == "link":
            return self._set_links(unit, setting)
        if resource == "absent":
            return running.absent(unit, setting)
        raise ControlError(f"runtime process has no resource {resource}")

    @property
    def _running(self) -> Children:
        if self._children is None:
            raise ControlError("the process runtime is not open")
        return self._children

    def _share(self, unit: str, share: float | None) -> str:
        controller = self._controller
        if controller is None:
            raise ControlError("no CPU control group can be made here")
        reaper = self._reaper

        def make() -> CpuGroup:
            group = CpuGroup(controller, self._context.run, unit)
            if reaper is not None:
                reaper.record(kind="cgroup", path=str(group.path))
            return group

        self._running.join_group(unit, make).share(share)
        return "no CPU limit" if share is None else f"{share:g} of a core"

    def _tune(self, unit: str, tuning: Tuning) -> str:
        path = self._control_file(unit)
        try:
            SwapFile(path).write(msgspec.json.encode(tuning))
        except OSError as error:
            raise ControlError(f"cannot write {path}: {error}") from error
        return ""

    def _set_links(self, unit: str, state: LinkState) -> str:
        if self._server is None or not self._table.of(unit):
            raise FaultSkipped(f"{unit} has no link")
        rare = {link.name for link in self._table.of(unit) if link.on_demand}
        notes = set()
        for name, wanted in self._table.ask(unit, state).items():
            if name in rare:
                # Hardly ever open, and many: the fault is in force before they all are set.
                self._behind.submit(self._set_behind, self._server, name, wanted)
            else:
                notes.add(self._server.links.set_state(name, wanted))
        return "; ".join(sorted(notes - {""}))

    def _set_behind(self, server: ProxyServer, name: str, wanted: LinkState) -> None:
        for attempt in range(BEHIND_TRIES):
            try:
                server.links.set_state(name, wanted)
                return
            except ControlError as error:  # the proxy server may be on its way back
                if attempt + 1 < BEHIND_TRIES:
                    time.sleep(BEHIND_PAUSE_S)
                    continue
                now_ns = self.clock.now_ns()
                self._late.put(HarnessFailed(t_ns=now_ns, where=name, why=str(error)))

    # --- parts of open and close ------------------------------------------------------------

    def _announce(self, name: str, pid: int | None) -> None:
        if self._reaper is not None:
            if pid is None:
                self._reaper.record(kind="starting", name=name)
            else:
                self._reaper.record_process(name, pid)

    def _connect(
        self, ports: Ports, children: Children
    ) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Every listening unit's address, and for each unit its peers' addresses to dial."""
        dials: dict[str, dict[str, str]] = {name: {} for name in self._units}
        listens: dict[str, str] = {}
        if not self._table.links:
            return listens, dials
        self._proxy_log = open(self._context.directory / "units" / "proxy.log", "ab", buffering=0)  # noqa: SIM115
        self._server = ProxyServer(
            ports,
            self._proxy_log,
            self._options["proxy"],
            self._context.seed,
            unit_environment(self._context.run),
            lambda process: self._announce("proxy", process.pid),
        )
        children.watch(self._server.process.pid, self._proxy_ended)
        for link in self._table.links:
            if link.peer not in listens:
                listens[link.peer] = f"{ports.host}:{ports.take()}"
            dials[link.unit][link.peer] = self._server.open_link(
                ports, link.name, listens[link.peer]
            )
        return listens, dials

    def _proxy_ended(self) -> None:
        """The proxy server died under us: the links come back as they were, and it is said."""
        server, children = self._server, self._running
        assert server is not None
        code = server.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        children.emit(self._proxy_changed(f"proxy server ended ({how})"))
        asked, self._proxy_asked = self._proxy_asked, False
        self._proxy_deaths += not asked
        if self._proxy_deaths > PROXY_DEATHS_MAX:
            raise ControlError(f"the proxy server ended {self._proxy_deaths} times; see proxy.log")
        links = server.restart()
        children.emit(self._proxy_changed(f"proxy server started anew with {links} links"))
        children.watch(server.process.pid, self._proxy_ended)
        self._proxy_back.set()

    def _proxy_changed(self, what: str) -> ProxyChanged:
        return ProxyChanged(t_ns=self.clock.now_ns(), what=what)

    def _child(
        self,
        target: Target,
        spec: UnitSpec,
        token: str,
        listens: dict[str, str],
        peers: dict[str, str],
    ) -> Child:
        path = self._work / "config" / f"{spec.name}.json"
        config = UnitConfig(
            run=self._context.run,
            token=token,
            unit=spec.name,
            role=spec.info.role,
            target=target.name,
            seed=self._context.seed,
            params=dict(target.params),
            config=dict(spec.config),
            listen=listens.get(spec.name, ""),
            peers=peers,
            state_dir=str(self._work / "state" / spec.name),
            control_file=str(self._control_file(spec.name)),
            checkpoint_dir=str(self._context.directory.resolve() / "checkpoints" / spec.name),
            cache_dir=str(cache_dir()),
        )
        write_unit_config(path, config)
        log = open(self._context.directory / "units" / f"{spec.name}.log", "ab", buffering=0)  # noqa: SIM115
        command = [sys.executable, "-m", target.module(), str(path)]
        return Child(spec.name, command, unit_environment(self._context.run), log)

    def _control_file(self, unit: str) -> Path:
        return self._work / "control" / f"{unit}.json"

    def _heal_links(self) -> None:
        for unit in self._units:
            if self._table.disturbed(unit):
                self._set_links(unit, NEUTRAL["link"])

    def _attempt(self, what: str, step: Callable[[], Any]) -> None:
        """One step of closing; its failure is an event and does not keep the others."""
        try:
            step()
        except (ChaosError, OSError) as error:
            failed = HarnessFailed(t_ns=self.clock.now_ns(), where=what, why=str(error))
            self._late.put(failed)
