"""The ``docker`` runtime: every unit in a container, every link through Toxiproxy.

One internal network a run (nothing in it can reach the outside), one Toxiproxy container with its
control port on loopback, fixed addresses, and the engine's restart policy as the healer: a unit
that dies is brought back by the engine, not by us. Everything carries the run's label; removal
goes by label, so that a container made by a call that timed out is found as well.

Options (``[runtime_options]`` of a spec):

* ``image``, ``proxy_image``: images to use instead of those that ``docker/prepare.sh`` makes.
* ``unit_cpus``: CPUs that a unit may use once it trains (a restart runs unlimited until then);
  default no limit, because emulated accelerators are paced anyway.
* ``sources``: ``auto`` (default) mounts the harness's own sources into the containers when the
  image was built from others; ``image`` uses the image as it is.
* ``engine``: address of the engine; default ``DOCKER_HOST`` or the local socket.
* ``expires_s``: after how long the labels let others remove what is left; default 6 hours.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import leftovers
from harness.errors import ControlError, HarnessError, LaunchError
from harness.events import HarnessFailed, ResidueFound
from harness.leftovers import RUN_LABEL
from harness.reaper import Reaper
from harness.runtimes.base import RunContext
from harness.runtimes.docker_common import TUNING_FILE, ContainerRuntime
from harness.runtimes.docker_engine import GROUP_LABEL, Engine, labels
from harness.runtimes.docker_image import PACKAGES, ROOT, sources_digest
from harness.runtimes.docker_links import CONTROL_PORT, FIRST_LINK_PORT, ContainerLinks
from harness.runtimes.docker_network import Network, create_network
from harness.runtimes.docker_places import Hands, Place
from harness.runtimes.docker_watch import LifeWatcher, OutputFollower
from harness.runtimes.places import cache_dir
from targets.base import Target, UnitSpec
from targets.unit_config import UnitConfig, write_unit_config

UNIT_IMAGE = "diloco-chaos-unit:latest"
PROXY_IMAGE = "diloco-chaos-toxiproxy:latest"
SOURCES_LABEL = "diloco-chaos.sources"
UNIT_PORT = 7000
"""Where a unit that others dial listens, inside its container."""
PROXY_START_S = 15.0

UNIT_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
# The run's variable of harness.leftovers is not among them on purpose: undo kills processes that
# carry it, which inside a container would only wake the restart policy.


@dataclass(frozen=True)
class Options:
    """The runtime's options, checked; see the module's docstring."""

    image: str = UNIT_IMAGE
    proxy_image: str = PROXY_IMAGE
    unit_cpus: float | None = None
    sources: str = "auto"
    engine: str | None = None
    expires_s: float = 6 * 3600.0

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Options:
        """Raises :class:`LaunchError` naming every unknown option."""
        own = {k: v for k, v in options.items() if k in cls.__dataclass_fields__}
        unknown = sorted(set(options) - set(own))
        if unknown or own.get("sources", "auto") not in ("auto", "image"):
            known = ", ".join(cls.__dataclass_fields__)
            raise LaunchError(
                f"runtime_options: cannot use {', '.join(unknown) or 'sources'} with the docker "
                f"runtime (options: {known}; sources is auto or image)"
            )
        return cls(**own)


class DockerRuntime(ContainerRuntime):
    """See :mod:`harness.runtimes.base`."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._options = Options.read(context.options)
        self._reaper: Reaper | None = None
        self._scratch: Path | None = None
        self._network: Network | None = None
        self._closed = False

    # --- opening ---

    def open(self, target: Target) -> None:
        """Start the network, the proxy and every unit."""
        if self._engine_ is not None:
            raise LaunchError("this runtime was opened before; make a new one for each run")
        try:
            self._open(target)
        except ControlError as error:
            raise LaunchError(str(error)) from error

    def _open(self, target: Target) -> None:
        run = self._context.run
        self._engine_ = Engine(self._options.engine)
        self._hands_ = Hands(self._engine)
        mounts = self._check_images()
        (self._context.directory / "units").mkdir(parents=True, exist_ok=True)
        self._reaper = Reaper(run, self._context.directory)
        self._scratch = Path(tempfile.mkdtemp(prefix="diloco-chaos-"))
        leftovers.own(self._scratch, run)
        self._reaper.record(kind="remove", path=str(self._scratch))
        self._reaper.record(kind="docker")
        self._watcher = LifeWatcher(
            self._engine, f"{RUN_LABEL}={run}", self.clock, self._queue, self._lived
        )
        units = target.units()
        self._network = create_network(
            self._engine, self._name("net"), self._labels("network", "network"), len(units)
        )
        self._start_proxy()
        self._create_links(units)
        self._start_units(target, units, mounts)

    def _check_images(self) -> list[str]:
        """Bind mounts that a unit needs because its image holds other sources than ours."""
        self._image(self._options.proxy_image)
        attrs = self._image(self._options.image)
        built_from = (attrs["Config"]["Labels"] or {}).get(SOURCES_LABEL, "")
        if self._options.sources == "image" or built_from == sources_digest():
            return []
        if not self._engine.local:
            raise LaunchError(
                f"image {self._options.image} was built from other sources than these, and the "
                f"engine at {self._engine.address} cannot mount ours; run docker/prepare.sh"
            )
        return [f"{ROOT / package}:/app/{package}:ro" for package in PACKAGES]

    def _image(self, name: str) -> dict[str, Any]:
        import docker.errors

        with self._engine.asked(f"look for image {name}"):
            try:
                return dict(self._engine.api.inspect_image(name))
            except docker.errors.ImageNotFound:
                raise LaunchError(
                    f"there is no image {name} on the engine at {self._engine.address}; "
                    "make it with docker/prepare.sh (make image)"
                ) from None

    def _start_proxy(self) -> None:
        network = self._opened_network
        address = network.proxy_address
        with self._engine.asked("create the proxy container"):
            host = self._engine.api.create_host_config(
                # A port is published only through a network that is not internal.
                network_mode="bridge",
                port_bindings={CONTROL_PORT: ("127.0.0.1", None)},
                restart_policy={"Name": "always"},
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
            )
            made = self._engine.api.create_container(
                self._options.proxy_image,
                command=["-host=0.0.0.0"],
                name=self._name("proxy"),
                ports=[CONTROL_PORT],
                labels=self._labels("proxy", "proxy"),
                host_config=host,
            )
            self._proxy_container = str(made["Id"])
            self._engine.api.connect_container_to_network(
                self._proxy_container, network.id, ipv4_address=address
            )
            self._engine.api.start(self._proxy_container)
        log = self._context.directory / "units" / "proxy.log"
        self._followers["proxy"] = OutputFollower(
            self._engine, self._proxy_container, "proxy", log, self._queue, self.clock
        )
        attrs = self._engine.inspect(self._proxy_container) or {}
        published = attrs["NetworkSettings"]["Ports"][f"{CONTROL_PORT}/tcp"][0]
        reach = address if self._engine.local else ""
        self._links_ = ContainerLinks("127.0.0.1", int(published["HostPort"]), reach)
        version = self._links.wait(PROXY_START_S, self._proxy_alive)
        self._proxy = f"toxiproxy {version}"

    def _proxy_alive(self) -> bool:
        attrs = self._engine.inspect(self._proxy_container)
        return attrs is not None and attrs["State"]["Status"] != "exited"

    def _create_links(self, units: Sequence[UnitSpec]) -> None:
        network = self._opened_network
        port = FIRST_LINK_PORT
        for unit in units:
            names = []
            for peer in unit.links:
                name = f"{unit.name}-{peer}"
                address = network.unit_address(_index(units, peer))
                self._links.create(name, f"0.0.0.0:{port}", f"{address}:{UNIT_PORT}")
                network.dial[unit.name, peer] = f"{network.proxy_address}:{port}"
                names.append(name)
                port += 1
            self._link_names[unit.name] = tuple(names)

    def _start_units(self, target: Target, units: Sequence[UnitSpec], mounts: list[str]) -> None:
        token = secrets.token_urlsafe(24)
        dialled = {peer for unit in units for peer in unit.links}
        cache = cache_dir()
        cache.mkdir(parents=True, exist_ok=True)
        params, shared = _shared_data(target.params)
        mounts = [*mounts, *shared, f"{cache}:/cache"]
        tasks = []
        for number, unit in enumerate(units):
            config = UnitConfig(
                run=self._context.run,
                token=token,
                unit=unit.name,
                role=unit.info.role,
                target=target.name,
                seed=self._context.seed,
                params=params,
                config=dict(unit.config),
                listen=f"0.0.0.0:{UNIT_PORT}" if unit.name in dialled else "",
                peers={p: self._opened_network.dial[unit.name, p] for p in unit.links},
                state_dir="/unit/state",
                control_file=f"/unit/{TUNING_FILE}",
                cache_dir="/cache",
            )
            command = ["python", "-m", target.module(), "/unit/config.json"]
            tasks.append(partial(self._start_unit, unit, number, config, command, mounts))
        failures = self._engine.each(tasks)
        if failures:
            raise LaunchError("; ".join(str(error) for error in failures)) from failures[0]

    def _start_unit(
        self,
        unit: UnitSpec,
        number: int,
        config: UnitConfig,
        command: list[str],
        mounts: list[str],
    ) -> None:
        network = self._opened_network
        home = self._home(unit.name)
        (home / "state").mkdir(parents=True)
        write_unit_config(home / "config.json", config)
        address = network.unit_address(number)
        api = self._engine.api
        with self._engine.asked(f"create the container of {unit.name}"):
            host = api.create_host_config(
                # The folder, not the files in it: an atomic replacement has to be visible inside.
                binds=[f"{home}:/unit", *mounts],
                network_mode=network.name,
                # The unit is a child of an init process: a signal from inside can end it too.
                init=True,
                restart_policy={"Name": "always"},
                tmpfs={"/tmp": "rw,size=256m,mode=1777"},
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
            )
            made = api.create_container(
                self._options.image,
                command=command,
                name=self._name(unit.name),
                # What it writes into our folders stays ours to remove.
                user=f"{os.getuid()}:{os.getgid()}",
                environment=UNIT_ENVIRONMENT,
                labels={
                    **self._labels(unit.info.role, unit.name),
                    GROUP_LABEL: unit.info.group,
                },
                host_config=host,
                networking_config=api.create_networking_config(
                    {network.name: api.create_endpoint_config(ipv4_address=address)}
                ),
            )
            place = Place(
                unit.name,
                str(made["Id"]),
                network=network.name,
                address=address,
                base_share=self._options.unit_cpus,
            )
            self._add(place)
            api.start(place.container)
        self._follow(place, "0")

    # --- controls ---

    def _tune(self, place: Place, text: str) -> str:
        file = self._home(place.unit) / TUNING_FILE
        fresh = file.with_suffix(".new")
        try:
            fresh.write_text(text)
            fresh.replace(file)
        except OSError as error:
            raise ControlError(f"cannot write the control file of {place.unit}: {error}") from error
        return ""

    # --- closing ---

    def close(self) -> None:
        """Remove everything of the run. What fails is journalled; the rest still happens."""
        if self._closed:
            return
        self._closed = self._closing = True
        self._stop_listening()
        if self._engine_ is not None:
            self._guarded_removal()
            for follower in self._followers.values():
                follower.close()
            self._engine.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._reaper is not None:
            self._reaper.done()

    def _guarded_removal(self) -> None:
        for error in self._remove():
            self._queue.put(
                HarnessFailed(t_ns=self.clock.now_ns(), where="teardown", why=str(error))
            )

    def _remove(self) -> list[Exception]:
        chosen = {RUN_LABEL: self._context.run}
        try:
            containers = self._engine.containers(chosen)
        except ControlError as error:
            return [error]
        failures = self._engine.each(partial(self._remove_container, str(c.id)) for c in containers)
        try:
            with self._engine.asked("list the run's networks and volumes"):
                filters = {"label": f"{RUN_LABEL}={self._context.run}"}
                networks = self._engine.api.networks(filters=filters)
                volumes = self._engine.api.volumes(filters=filters)["Volumes"] or []
        except ControlError as error:
            return [*failures, error]
        failures += self._engine.each(partial(self._remove_network, n["Id"]) for n in networks)
        failures += self._engine.each(partial(self._remove_volume, v["Name"]) for v in volumes)
        return failures

    def _remove_container(self, container: str) -> None:
        import docker.errors

        attrs = self._engine.inspect(container)
        if attrs is None:
            return
        with self._engine.asked(f"remove container {attrs['Name'].lstrip('/')}"):
            if attrs["State"]["Paused"]:
                # Older engines cannot end a paused container, not even by force.
                with suppress(docker.errors.APIError):
                    self._engine.api.unpause(container)
            with suppress(docker.errors.NotFound):
                self._engine.api.remove_container(container, force=True, v=True)

    def _remove_network(self, network: str) -> None:
        with self._engine.asked(f"remove network {network}"):
            self._engine.api.remove_network(network)

    def _remove_volume(self, volume: str) -> None:
        with self._engine.asked(f"remove volume {volume}"):
            self._engine.api.remove_volume(volume, force=True)

    def residue(self, t_ns: int) -> ResidueFound:
        """What still carries the run's label; raises ``ControlError`` when the engine is mute."""
        try:
            engine = Engine(self._options.engine)
        except LaunchError as error:
            raise ControlError(f"cannot look for residue: {error}") from error
        try:
            containers = [str(c.name) for c in engine.containers({RUN_LABEL: self._context.run})]
            filters = {"label": f"{RUN_LABEL}={self._context.run}"}
            with engine.asked("look for residue"):
                networks = [n["Name"] for n in engine.api.networks(filters=filters)]
                volumes = [v["Name"] for v in engine.api.volumes(filters=filters)["Volumes"] or ()]
        finally:
            engine.close()
        return ResidueFound(
            t_ns=t_ns,
            containers=tuple(containers),
            networks=tuple(networks),
            volumes=tuple(volumes),
        )

    # --- names ---

    @property
    def _opened_network(self) -> Network:
        if self._network is None:
            raise HarnessError("the docker runtime is not open")
        return self._network

    def _home(self, unit: str) -> Path:
        if self._scratch is None:
            raise HarnessError("the docker runtime is not open")
        return self._scratch / unit

    def _name(self, what: str) -> str:
        return f"diloco-chaos-{self._context.run}-{what}"

    def _labels(self, role: str, unit: str) -> dict[str, str]:
        return labels(self._context.run, role, unit, self._options.expires_s)


def _index(units: Sequence[UnitSpec], name: str) -> int:
    for number, unit in enumerate(units):
        if unit.name == name:
            return number
    raise LaunchError(f"a unit dials {name}, which is no unit of the target")


def _shared_data(params: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The params as a container must see them, and the mount that makes it so: a corpus on this
    machine is mounted read-only."""
    data = params.get("data")
    if not isinstance(data, str) or not Path(data).exists():
        return dict(params), []
    path = Path(data).resolve()
    inside = f"/data/{path.name}"
    return {**params, "data": inside}, [f"{path}:{inside}:ro"]
