"""A standing compose project as a runtime: break it, heal it, leave it running.

Units are found by the compose project's labels and described by their own environment (see
``harness.runtimes.compose_environment``), links by the Toxiproxy container of the project. Nothing
is created and nothing removed: ``close`` heals what this run held, and residue is what is still
frozen, off its network, limited or toxic.

A run begins in the middle of lives that others began, so the journal begins without their first
lines: what units printed before is not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

import targets
from faults.base import LinkState, Tuning
from harness.errors import ControlError, FaultSkipped, LaunchError, SpecError
from harness.events import HarnessFailed, ProxyChanged, ResidueFound, UnitSpawned
from harness.runtimes.base import RunContext
from harness.runtimes.compose_environment import Described, describe
from harness.runtimes.docker_common import TUNING_FILE, ContainerRuntime
from harness.runtimes.docker_engine import ROLE_LABEL, Engine, environment
from harness.runtimes.docker_links import ContainerLinks, published
from harness.runtimes.docker_places import Hands, Place
from harness.runtimes.docker_watch import LifeWatcher
from harness.runtimes.linktable import LinkTable
from targets.base import Target

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
PROXY_START_S = 5.0


@dataclass(frozen=True)
class Project:
    """What a standing cluster says about itself."""

    name: str
    target: str
    seed: int
    params: Mapping[str, Any]
    units: Mapping[str, Described]
    containers: Mapping[str, dict[str, Any]]
    """Unit name to what the engine knows of its container."""
    proxy: dict[str, Any]
    """What the engine knows of the Toxiproxy container."""


def discover(engine: Engine, project: str) -> Project:
    """Find the units of a compose project; raises :class:`SpecError` naming all that is wrong."""
    containers = engine.containers({PROJECT_LABEL: project})
    if not containers:
        raise SpecError(
            f"--attach {project}",
            [
                f"there is no compose project {project} on the engine at {engine.address}; "
                f"start it (docker compose -p {project} up -d) or name another"
            ],
        )
    units: dict[str, Described] = {}
    attrs: dict[str, dict[str, Any]] = {}
    proxies = []
    problems: list[str] = []
    for container in containers:
        known = container.attrs
        if (known["Config"]["Labels"] or {}).get(ROLE_LABEL) == "proxy":
            proxies.append(known)
        elif "CHAOS_UNIT" in environment(known):
            _describe(known, units, attrs, problems)
    problems += _disagreements(project, units)
    if len(proxies) != 1:
        problems.append(f"{len(proxies)} containers carry {ROLE_LABEL}=proxy; one is needed")
    if problems:
        raise SpecError(f"--attach {project}", problems)
    first = next(iter(units.values()))
    return Project(project, first.target, first.seed, first.params, units, attrs, proxies[0])


def _describe(
    known: dict[str, Any],
    units: dict[str, Described],
    attrs: dict[str, dict[str, Any]],
    problems: list[str],
) -> None:
    service = known["Config"]["Labels"].get(SERVICE_LABEL, known["Name"])
    try:
        described = describe(environment(known))
    except ValueError as error:
        problems.append(f"service {service}: {error}")
        return
    if described.unit in units:
        problems.append(f"two containers say that they are {described.unit}")
    units[described.unit] = described
    attrs[described.unit] = known


def _disagreements(project: str, units: Mapping[str, Described]) -> list[str]:
    if not units:
        return [f"no container of project {project} sets CHAOS_UNIT; see docker-compose.yml"]
    said = {(u.target, u.seed, repr(sorted(u.params.items()))) for u in units.values()}
    if len(said) > 1:
        return ["the units do not agree on CHAOS_TARGET, CHAOS_SEED and CHAOS_PARAMS"]
    return []


class AttachedRuntime(ContainerRuntime):
    """See :mod:`harness.runtimes.base`; the engine is named by the option ``engine``.

    The constructor looks the project up, so that :attr:`project` can tell which target to
    make before anything is opened. Raises :class:`SpecError` and :class:`LaunchError`.
    """

    def __init__(self, context: RunContext, project: str) -> None:
        super().__init__(context)
        self._engine_ = Engine(context.options.get("engine"))
        try:
            self.project = discover(self._engine, project)
        except BaseException:
            self._engine.close()
            raise
        self._hands_ = Hands(self._engine)
        self._closed = False
        self._left: ResidueFound | None = None
        self._touched: set[str] = set()

    # --- opening ---

    def open(self, target: Target) -> None:
        """Begin to listen; raises :class:`LaunchError` when the cluster is not all there."""
        try:
            self._check(target)
            (self._context.directory / "units").mkdir(parents=True, exist_ok=True)
            self._find_links(target)
            self._watcher = LifeWatcher(
                self._engine,
                f"{PROJECT_LABEL}={self.project.name}",
                self.clock,
                self._queue,
                self._lived,
            )
            for unit in target.units():
                self._join(unit.name)
        except ControlError as error:
            raise LaunchError(str(error)) from error

    def _check(self, target: Target) -> None:
        wanted = {unit.name for unit in target.units()}
        problems = [
            f"{name} has no container" for name in sorted(wanted - self.project.units.keys())
        ]
        for name, attrs in self.project.containers.items():
            state = attrs["State"]
            if name in wanted and (not state["Running"] or state["Paused"]):
                problems.append(f"{name} is {state['Status']}")
        problems += self._other_params(target)
        if problems:
            raise LaunchError(
                f"cannot attach to project {self.project.name}: {'; '.join(problems)}"
            )

    def _other_params(self, target: Target) -> list[str]:
        """Where the experiment's idea of the target differs from what runs."""
        running = targets.load(self.project.target)(self.project.params, self.project.seed)
        if running.name != target.name:
            return [f"it runs target {running.name}, not {target.name}"]
        return [
            f"{name} is {value} there and {target.params.get(name)} here"
            for name, value in running.params.items()
            if target.params.get(name) != value
        ]

    def _find_links(self, target: Target) -> None:
        self._proxy_container = str(self.project.proxy["Id"])
        self._proxy_lives = 1
        self._connect_links()
        self._table = LinkTable(target.units())
        lacking = {link.name for link in self._table.links} - set(self._links.names())
        if lacking:
            raise LaunchError(
                f"Toxiproxy of project {self.project.name} has no link "
                f"{', '.join(sorted(lacking))}; see docker/toxiproxy.json"
            )

    def _connect_links(self) -> None:
        attrs = self._engine.inspect(self._proxy_container)
        if attrs is None:
            raise ControlError("Toxiproxy's container is gone; somebody removed it")
        reach = self._reachable_address(attrs) if self._engine.local else ""
        self._links_ = ContainerLinks(*published(attrs), reach)
        self._proxy = f"toxiproxy {self._links_.wait(PROXY_START_S, lambda: True)}"
        for name in self._links_.adopt():
            # A run that was killed left it; whoever attaches next begins with healthy links.
            self._links_.set_state(name, LinkState())
            what = f"link {name} was broken before this run touched it; healed"
            self._queue.put(ProxyChanged(t_ns=self.clock.now_ns(), what=what))

    def _reachable_address(self, proxy: dict[str, Any]) -> str:
        """Toxiproxy's address in the network that it shares with the units."""
        shared = set()
        for attrs in self.project.containers.values():
            shared |= set(attrs["NetworkSettings"]["Networks"])
        networks = proxy["NetworkSettings"]["Networks"]
        return next((networks[name]["IPAddress"] for name in networks if name in shared), "")

    def _join(self, unit: str) -> None:
        attrs = self._engine.inspect(self.project.containers[unit]["Id"])
        if attrs is None:
            raise LaunchError(f"the container of {unit} went away while attaching")
        place = _place(unit, attrs)
        place.running, place.ready, place.lives = True, True, 1
        place.pid = int(attrs["State"]["Pid"])
        self._add(place)
        now = self.clock.now_ns()
        self._queue.put(UnitSpawned(t_ns=now, unit=unit, by="orchestrator", pid=place.pid))
        self._follow(place, f"{time.time():.9f}")

    # --- controls ---

    def apply(self, unit: str, resource: Any, setting: Any) -> str:
        """As every runtime; remembers what to heal."""
        self._touched.add(unit)
        return super().apply(unit, resource, setting)

    def _tune(self, place: Place, tuning: Tuning) -> str:
        path = f"/unit/{place.unit}/{TUNING_FILE}"
        with place.lock:
            if not place.running:
                raise FaultSkipped(f"no process of {place.unit} runs to be tuned from inside")
            script = 'printf %s "$1" > "$2.new" && mv "$2.new" "$2"'
            text = msgspec.json.encode(tuning).decode()
            command = ["sh", "-c", script, "sh", text, path]
            status, output = self._engine.exec(place.container, command)
        if status:
            raise ControlError(f"cannot write {path} in the container of {place.unit}: {output}")
        return "from inside the container"

    # --- closing ---

    def close(self) -> None:
        """Heal everything that this run held. The project goes on."""
        if self._closed:
            return
        self._closed = self._closing = True
        self._hands.cancel()
        if self._watcher is not None:
            self._watcher.close()
        for name in sorted(self._touched):
            self._heal(self._places[name])
        for follower in self._followers.values():
            follower.close(drain_s=0.1)
        self._left = self._look(self.clock.now_ns())
        self._engine.close()

    def _heal(self, place: Place) -> None:
        acts: list[Callable[[], Any]] = [
            lambda: self._hands.heal(place),
            lambda: self._set_links(place.unit, LinkState()),
            lambda: self._tune(place, Tuning()),
        ]
        for act in acts:
            try:
                with suppress(FaultSkipped):
                    act()
            except ControlError as error:
                self._queue.put(
                    HarnessFailed(t_ns=self.clock.now_ns(), where="healing", why=str(error))
                )

    def residue(self, t_ns: int) -> ResidueFound:
        """What is still held on the project: units by what is wrong with them, and toxics."""
        left = self._left or ResidueFound(t_ns=t_ns)
        return ResidueFound(t_ns=t_ns, containers=left.containers, toxics=left.toxics)

    def _look(self, t_ns: int) -> ResidueFound:
        broken = []
        toxics: Sequence[str] = ()
        try:
            for place in self._places.values():
                broken += [f"{place.unit} {what}" for what in self._wrong(place)]
            if self._links_ is not None:
                toxics = self._links_.toxics()
        except ControlError as error:
            self._queue.put(HarnessFailed(t_ns=t_ns, where="residue", why=str(error)))
        return ResidueFound(t_ns=t_ns, containers=tuple(broken), toxics=tuple(toxics))

    def _wrong(self, place: Place) -> list[str]:
        attrs = self._engine.inspect(place.container)
        if attrs is None:
            return ["is gone"]
        found = ["is frozen"] if attrs["State"]["Paused"] else []
        if place.network and place.network not in attrs["NetworkSettings"]["Networks"]:
            found.append("is off its network")
        if attrs["HostConfig"]["CpuQuota"] > 0:
            found.append("has a CPU quota")
        return found


def _place(unit: str, attrs: dict[str, Any]) -> Place:
    networks = attrs["NetworkSettings"]["Networks"]
    name = next(iter(networks), "")
    endpoint = networks.get(name) or {}
    fixed = (endpoint.get("IPAMConfig") or {}).get("IPv4Address", "")
    own = attrs["Id"][:12]
    aliases = tuple(a for a in endpoint.get("Aliases") or () if a != own)
    return Place(unit, str(attrs["Id"]), network=name, address=fixed, aliases=aliases)
