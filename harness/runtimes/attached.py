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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

import targets
from faults.base import LinkState, Tuning
from harness.errors import ControlError, FaultSkipped, LaunchError
from harness.events import HarnessFailed, ProxyChanged, ResidueFound, UnitSpawned
from harness.reaper import Reaper
from harness.runtimes.base import RunContext
from harness.runtimes.compose_project import PROJECT_LABEL, discover
from harness.runtimes.docker_common import TUNING_FILE, ContainerRuntime
from harness.runtimes.docker_engine import Engine
from harness.runtimes.docker_links import ContainerLinks, published
from harness.runtimes.docker_places import Hands, Place
from harness.runtimes.docker_watch import LifeWatcher
from harness.runtimes.linktable import LinkTable
from targets.base import Target

PROXY_START_S = 5.0


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
        self._reaper: Reaper | None = None
        self._closed = False
        self._left: ResidueFound | None = None

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
            self._reaper = Reaper(self._context.run, self._context.directory)
            self._reaper.record(**self._manifest())
            self._forget_tuning()
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
                f"cannot attach to project {self.project.name}: {'; '.join(problems)} "
                "(--set NAME=VALUE tells the experiment what runs; docker unpause NAME thaws)"
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

    def _tune(self, place: Place, tuning: Tuning) -> str:
        return tune(self._engine, place, tuning)

    def _forget_tuning(self) -> None:
        """A killed run may have left its tuning, which nothing shows."""
        tasks = [partial(self._tune, place, Tuning()) for place in self._places.values()]
        for error in self._engine.each(tasks):
            raise LaunchError(str(error)) from error

    def _manifest(self) -> dict[str, Any]:
        """All that :func:`heal_left` needs, written down before anything is broken."""
        keys = ("unit", "container", "network", "address", "aliases", "base_share")
        places = [{k: v for k, v in vars(p).items() if k in keys} for p in self._places.values()]
        return {
            "kind": "attached",
            "url": self._context.options.get("engine"),
            "project": self.project.name,
            "places": places,
            "proxy": self._links.address,
        }

    # --- closing ---

    def close(self) -> None:
        """Heal whatever may be held on the project. It goes on, and nothing of it is removed."""
        if self._closed:
            return
        self._closed = self._closing = True
        self._hands.cancel()
        if self._watcher is not None:
            self._watcher.close()
        failures = heal(self._engine, self._hands, list(self._places.values()), self._links_)
        for error in failures:
            self._failed("healing", error)
        for follower in self._followers.values():
            follower.close(drain_s=0.1)
        self._left = self._look(self.clock.now_ns())
        self._engine.close()
        if self._reaper is not None:
            self._reaper.done()

    def _failed(self, where: str, error: Exception) -> None:
        self._queue.put(HarnessFailed(t_ns=self.clock.now_ns(), where=where, why=str(error)))

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
            self._failed("residue", error)
        return ResidueFound(t_ns=t_ns, containers=tuple(broken), toxics=tuple(toxics))

    def _wrong(self, place: Place) -> list[str]:
        attrs = self._engine.inspect(place.container)
        if attrs is None:
            return ["is gone"]
        found = ["is frozen"] if attrs["State"]["Paused"] else []
        if place.network and place.network not in attrs["NetworkSettings"]["Networks"]:
            found.append("is off its network")
        if _share(attrs) != place.base_share:
            found.append("has another CPU quota than before")
        return found


def tune(engine: Engine, place: Place, tuning: Tuning) -> str:
    """Write the tuning from inside the container; raises ``FaultSkipped`` when none runs."""
    path = f"/unit/{place.unit}/{TUNING_FILE}"
    with place.lock:
        if not place.running:
            raise FaultSkipped(f"no process of {place.unit} runs to be tuned from inside")
        # The folder is the unit's own to make; one that only begins has not done so yet.
        script = 'mkdir -p "${2%/*}" && printf %s "$1" > "$2.new" && mv "$2.new" "$2"'
        text = msgspec.json.encode(tuning).decode()
        status, output = engine.exec(place.container, ["sh", "-c", script, "sh", text, path])
    if status:
        raise ControlError(f"cannot write {path} in the container of {place.unit}: {output}")
    return "from inside the container"


def heal(
    engine: Engine, hands: Hands, places: Sequence[Place], links: ContainerLinks | None
) -> list[Exception]:
    """Bring everything of a project to health, whatever it was; returns what failed."""
    failures = engine.each(partial(hands.heal, place) for place in places)
    failures += engine.each(partial(tune, engine, place, Tuning()) for place in places)
    for name in links.known() if links is not None else ():
        try:
            assert links is not None
            links.set_state(name, LinkState())
        except ControlError as error:
            failures.append(error)
    return [error for error in failures if not isinstance(error, FaultSkipped)]


def heal_left(entry: Mapping[str, Any]) -> list[str]:
    """Heal what a killed run left on a project, from its manifest; returns what failed."""
    engine = Engine(entry.get("url"))
    try:
        places = [
            Place(**{**p, "aliases": tuple(p["aliases"])}, running=True, burst=False)
            for p in entry["places"]
        ]
        host, _, port = str(entry["proxy"]).rpartition(":")
        links = ContainerLinks(host, int(port))
        links.adopt()
        return [str(error) for error in heal(engine, Hands(engine), places, links)]
    finally:
        engine.close()


def _place(unit: str, attrs: dict[str, Any]) -> Place:
    networks = attrs["NetworkSettings"]["Networks"]
    name = next(iter(networks), "")
    endpoint = networks.get(name) or {}
    fixed = (endpoint.get("IPAMConfig") or {}).get("IPv4Address", "")
    own = attrs["Id"][:12]
    aliases = tuple(a for a in endpoint.get("Aliases") or () if a != own)
    return Place(
        unit,
        str(attrs["Id"]),
        network=name,
        address=fixed,
        aliases=aliases,
        base_share=_share(attrs),
        burst=False,
    )


def _share(attrs: dict[str, Any]) -> float | None:
    """The CPUs that a container may use by its present quota; None for all."""
    limit, period = attrs["HostConfig"]["CpuQuota"], attrs["HostConfig"]["CpuPeriod"]
    return limit / (period or 100_000) if limit > 0 else None
