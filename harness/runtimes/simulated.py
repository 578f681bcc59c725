"""The ``simulated`` runtime: the target's own nodes under virtual time, in this process.

Offers every fault that acts on processes, links, clocks and quotas. A run is a pure function of
target, seed, options and control calls: the same give the same events, byte for byte, in any
process and under any hash seed. Nothing is started and nothing can be left behind.
"""

from __future__ import annotations

from typing import Any

from faults.base import Capability, Damage, LinkState, Resource, Tuning
from harness.clock import Clock
from harness.errors import ControlError, HarnessError, LaunchError
from harness.events import AnyEvent, ResidueFound
from harness.runtimes.base import RunContext
from harness.sim.cluster import Cluster
from harness.sim.loop import Loop
from harness.sim.options import sim_options
from targets.base import Target


class SimulatedRuntime:
    """See :mod:`harness.runtimes.base`; ``options`` are those of ``harness.sim.options``."""

    name = "simulated"
    keeps_checkpoints = True
    """Written below the run directory when the run is closed."""
    proxy = "simulated"
    offers: frozenset[Capability] = frozenset(
        {
            "kill",
            "terminate",
            "freeze",
            "cpu_quota",
            "tune",
            "link",
            "restart",
            "absence",
            "engine_network",
            "memory",
            "state",
        }
    )

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._options = sim_options(context.options)
        self._loop = Loop()
        self.clock: Clock = self._loop
        self._cluster: Cluster | None = None
        self._target: Target | None = None
        self._closed = False

    def open(self, target: Target) -> None:
        """Spawn every unit at the present instant; raises ``LaunchError`` when called twice."""
        if self._cluster is not None:
            raise LaunchError("this runtime was opened before; make a new one for each run")
        seed = self._context.seed
        self._target = target
        self._cluster = Cluster(target, seed, self._loop, self._options, self._crash_log)
        self._cluster.start()

    def poll(self, until_ns: int) -> list[AnyEvent]:
        """Events of the next instants; see :class:`harness.runtimes.base.Runtime`."""
        cluster = self._opened()
        if not self._closed:
            self._loop.run(until_ns, cluster.events)
        events, cluster.events = cluster.events, []
        return events

    def alive(self, unit: str) -> bool:
        """Whether a process of the unit exists."""
        return self._opened().units[unit].alive

    def pending(self) -> dict[str, str]:
        """Unit to what it waits for: what its node says, or why there is no node."""
        found = {}
        for unit in self._opened().units.values():
            if unit.node is None:
                found[unit.name] = "coming to life" if unit.alive else "no process"
            elif hasattr(unit.node, "pending"):
                found[unit.name] = str(unit.node.pending())
        return found

    def kill(self, unit: str) -> str:
        """SIGKILL; raises ``FaultSkipped`` when no process lives there."""
        return self._opened().kill(unit)

    def terminate(self, unit: str, grace_ns: int) -> str:
        """SIGTERM, then SIGKILL; raises ``FaultSkipped`` when no process lives there."""
        return self._opened().terminate(unit, grace_ns)

    def damage(self, unit: str, how: Damage) -> str:
        """Kill the unit and damage what it left durable."""
        return self._opened().damage(unit, how)

    def oom(self, unit: str) -> str:
        """The kernel's OOM killer ends the unit; raises ``FaultSkipped`` when none lives there."""
        return self._opened().oom(unit)

    def kill_proxy(self) -> str:
        """Not offered: simulated links need no proxy."""
        raise ControlError("the simulated runtime has no proxy")

    def apply(self, unit: str, resource: Resource, setting: Any) -> str:
        """Bring a resource to a setting; raises ``ControlError`` for one we do not know."""
        cluster = self._opened()
        if resource == "frozen":
            cluster.freeze(unit, bool(setting))
        elif resource == "cpu_share":
            if setting is not None and setting <= 0:
                raise ControlError(f"a CPU share of {setting} for {unit} makes no sense")
            cluster.set_cpu_share(unit, setting)
        elif resource == "tuning":
            cluster.set_tuning(unit, setting or Tuning())
        elif resource == "link":
            cluster.set_link(unit, setting or LinkState())
        elif resource == "absent":
            return cluster.set_absent(unit, setting)
        elif resource == "network":
            cluster.set_attached(unit, bool(setting))
        else:
            raise ControlError(f"the simulated runtime has no resource {resource!r}")
        return ""

    def close(self) -> None:
        """Thaw, heal and stop every unit, giving each its grace in virtual time."""
        cluster = self._cluster
        if cluster is None or self._closed:
            return
        cluster.closing = True
        for unit in cluster.units.values():
            cluster.freeze(unit.name, False)
            cluster.set_cpu_share(unit.name, None)
            cluster.set_tuning(unit.name, Tuning())
            if unit.links:
                cluster.set_attached(unit.name, True)
                cluster.set_link(unit.name, LinkState())
        grace_ns = round(self._options.stop_grace_ms * 1e6)
        deadline = self._loop.now_ns() + grace_ns
        for unit in cluster.units.values():
            if unit.alive:
                cluster.terminate(unit.name, grace_ns)
        self._run_out(cluster, deadline)
        self._closed = True
        # What simulated units hold in memory of checkpoints is on the disk of real ones.
        keep = getattr(self._target, "keep", None)
        if keep is not None:
            keep(self._context.directory)

    def residue(self, t_ns: int) -> ResidueFound:
        """Processes that outlived ``close``; there is nothing else that could."""
        units = self._cluster.units.values() if self._cluster else ()
        return ResidueFound(t_ns=t_ns, processes=tuple(u.name for u in units if u.alive))

    def _run_out(self, cluster: Cluster, deadline: int) -> None:
        """Let the units end, collecting what they say, until the last is gone or time is up."""
        collected: list[AnyEvent] = cluster.events
        while any(u.alive for u in cluster.units.values()) and self._loop.now_ns() <= deadline:
            cluster.events = []
            if self._loop.next_ns() is None:
                break
            self._loop.run(deadline, cluster.events)
            collected.extend(cluster.events)
            if not cluster.events:
                break
        cluster.events = []
        for unit in cluster.units.values():
            if unit.alive:
                cluster.kill(unit.name)
        collected.extend(cluster.events)
        cluster.events = collected

    def _opened(self) -> Cluster:
        if self._cluster is None:
            raise HarnessError("the simulated runtime is not open")
        return self._cluster

    def _crash_log(self, unit: str, text: str) -> None:
        folder = self._context.directory / "units"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{unit}.log").open("a", encoding="utf-8") as log:
            log.write(text)
