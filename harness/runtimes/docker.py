"""The ``docker`` runtime: every unit in a container, every link through Toxiproxy.

One internal network a run (nothing in it can reach the outside), one Toxiproxy container with its
control port on loopback, fixed addresses, and the engine's restart policy as the healer: a unit
that dies is brought back by the engine, not by us. Everything carries the run's label; removal
goes by label. Options: :mod:`harness.runtimes.docker_options`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import docker.errors
import msgspec

from faults.base import Capability, Damage, Tuning
from harness.errors import ChaosError, ControlError, FaultSkipped, LaunchError
from harness.events import HarnessFailed, ResidueFound
from harness.leftovers import RUN_LABEL, own, start_ticks
from harness.reaper import Reaper
from harness.runtimes import docker_memory, state_files
from harness.runtimes.base import RunContext
from harness.runtimes.docker_checkpoints import INSIDE, mounted
from harness.runtimes.docker_common import OFFERS, TUNING_FILE, ContainerRuntime
from harness.runtimes.docker_data import shared_data
from harness.runtimes.docker_engine import GROUP_LABEL, Engine, labels
from harness.runtimes.docker_image import PACKAGES, ROOT, sources_digest
from harness.runtimes.docker_links import (
    CONTROL_PORT,
    FIRST_LINK_PORT,
    ContainerLinks,
    published,
)
from harness.runtimes.docker_network import Network, create_network
from harness.runtimes.docker_options import docker_options
from harness.runtimes.docker_places import Hands, Place
from harness.runtimes.docker_removal import remove_run, residue_of, stop_units
from harness.runtimes.docker_watch import LifeWatcher, OutputFollower
from harness.runtimes.linktable import LinkTable
from harness.runtimes.places import cache_dir
from harness.runtimes.swapfile import SwapFile
from targets.base import Target, UnitSpec
from targets.unit_config import UnitConfig, write_unit_config

SOURCES_LABEL = "diloco-chaos.sources"
UNIT_PORT = 7000
"""Where a unit that others dial listens, inside its container."""
TEXTS = ".data"
"""In the run's work folder, beside the units' own (none is called like that)."""
PROXY_START_S = 15.0
PROXY_BACK_S = 20.0
"""How long the engine may take to bring the proxy back, with its links as they were."""
UNIT_STOP_S = 10.0
"""How long a container may take to stop once its unit was killed."""
UNIT_START_S = 60.0
"""From a container's start to its unit's first line: an interpreter and a few imports."""
LAST_EVENTS_S = 2.0
"""How long the engine may take to tell of the last exits."""

UNIT_ENVIRONMENT = {
    # Several units share a small host: each is one core's worth of machine, no more.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
}
# The run's variable of harness.leftovers is not among them on purpose: undo kills processes that
# carry it, which inside a container would only wake the restart policy.


class DockerRuntime(ContainerRuntime):
    """See :class:`harness.runtimes.base.Runtime`."""

    keeps_checkpoints = True
    """Units write them below the run directory, through mounts."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._options = docker_options(context.options)
        self._work = context.directory.resolve() / "work"
        self._reaper: Reaper | None = None
        self._network_: Network | None = None
        self._units: Sequence[UnitSpec] = ()
        self._closed = False
        self._damages: dict[str, int] = {}
        self._memory_bytes = 0
        self._controls: dict[str, SwapFile] = {}

    @cached_property
    def offers(self) -> frozenset[Capability]:
        """Asks the engine once whether it can limit memory."""
        more: set[Capability] = {"absence", "state"}
        address = self._options.engine or os.environ.get("DOCKER_HOST", "unix://")
        if address.startswith("unix://"):
            more.add("proxy")  # its image has nothing to send a signal with from inside
        if docker_memory.can_limit(self._options.engine or None, self._options.call_s):
            more.add("memory")
        return OFFERS | more

    # --- opening ----------------------------------------------------------------------------

    def reach(self) -> None:
        """See that the engine answers and has the images, before anything is written or started.

        Raises :class:`LaunchError`.
        """
        engine = Engine(self._options.engine or None, self._options.call_s)
        try:
            for name in (self._options.proxy_image, self._options.image):
                _image(engine, name)
        except ControlError as error:
            raise LaunchError(str(error)) from error
        finally:
            engine.close()

    def open(self, target: Target) -> None:
        """Start the dead-man, the network, the proxy and every unit, in that order."""
        if self._engine_ is not None or self._closed:
            raise LaunchError("this runtime was opened before; make a new one for each run")
        try:
            self._open(target)
        except ControlError as error:
            raise LaunchError(str(error)) from error
        except OSError as error:
            raise LaunchError(f"cannot write where the run needs to: {error}") from error

    def _open(self, target: Target) -> None:
        self._engine_ = Engine(self._options.engine or None, self._options.call_s)
        self._hands_ = Hands(self._engine)
        mounts = self._check_images()
        self._memory_bytes = docker_memory.allowance(self._engine)
        self._prepare_directories()
        self._watcher = LifeWatcher(
            self._engine, f"{RUN_LABEL}={self._context.run}", self.clock, self._queue, self._lived
        )
        self._units = target.units()
        self._table = LinkTable(self._units)
        self._network_ = create_network(
            self._engine, self._name("net"), self._labels("network", ""), len(self._units)
        )
        self._start_proxy()
        self._start_units(target, mounts)
        self._await_lives(UNIT_START_S)

    def _check_images(self) -> list[str]:
        """Bind mounts that a unit needs because its image holds other sources than ours."""
        _image(self._engine, self._options.proxy_image)
        attrs = _image(self._engine, self._options.image)
        built_from = (attrs["Config"]["Labels"] or {}).get(SOURCES_LABEL, "")
        if self._options.sources == "image" or built_from == sources_digest():
            return []
        if not self._engine.local:
            raise LaunchError(
                f"image {self._options.image} was built from other sources than these, and the "
                f"engine at {self._engine.address} cannot mount ours; run docker/prepare.sh"
            )
        return [f"{ROOT / package}:/app/{package}:ro" for package in PACKAGES]

    def _prepare_directories(self) -> None:
        (self._context.directory / "units").mkdir(parents=True, exist_ok=True)
        self._reaper = Reaper(self._context.run, self._context.directory)
        self._reaper.record(kind="docker", url=self._options.engine or None)
        self._reaper.record(kind="remove", path=str(self._work))
        own(self._work, self._context.run)
        cache_dir().mkdir(parents=True, exist_ok=True)

    def _start_proxy(self) -> None:
        api = self._engine.api
        with self._engine.asked("start the proxy's container"):
            host = api.create_host_config(
                # A port is published only through a network that is not internal.
                network_mode="bridge",
                port_bindings={CONTROL_PORT: ("127.0.0.1", None)},
                restart_policy={"Name": "always"},
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
            )
            made = api.create_container(
                self._options.proxy_image,
                command=["-host=0.0.0.0"],
                name=self._name("proxy"),
                ports=[CONTROL_PORT],
                environment={"LOG_LEVEL": "info"},
                labels=self._labels("proxy", ""),
                host_config=host,
            )
            self._proxy_container = str(made["Id"])
            address = self._network.proxy_address
            api.connect_container_to_network(
                self._proxy_container, self._network.id, ipv4_address=address
            )
            api.start(self._proxy_container)
        self._followers["proxy"] = OutputFollower(
            self._engine,
            self._proxy_container,
            "proxy",
            self._context.directory / "units" / "proxy.log",
            self._queue,
            self.clock,
        )
        self._connect_links()

    def _connect_links(self) -> None:
        attrs = self._engine.inspect(self._proxy_container)
        if attrs is None:
            raise ControlError("the proxy's container is gone; somebody removed it")
        reach = self._network.proxy_address if self._engine.local else ""
        self._links_ = ContainerLinks(*published(attrs), reach)
        self._proxy = f"toxiproxy {self._links_.wait(PROXY_START_S, self._proxy_alive)}"
        numbers = {unit.name: number for number, unit in enumerate(self._units)}
        for offset, link in enumerate(self._table.links):
            if link.peer not in numbers:
                raise LaunchError(f"{link.unit} dials {link.peer}, which is no unit of the target")
            upstream = f"{self._network.unit_address(numbers[link.peer])}:{UNIT_PORT}"
            self._links_.create(link.name, f"0.0.0.0:{FIRST_LINK_PORT + offset}", upstream)

    def _proxy_alive(self) -> bool:
        attrs = self._engine.inspect(self._proxy_container)
        return attrs is not None and attrs["State"]["Status"] != "exited"

    def _start_units(self, target: Target, mounts: list[str]) -> None:
        params, shared = shared_data(target.params, self._work / TEXTS)
        mounts = [*mounts, *shared, f"{cache_dir()}:/cache"]
        token = secrets.token_hex(32)
        dialled = {link.peer for link in self._table.links}
        ports = {
            (link.unit, link.peer): FIRST_LINK_PORT + n for n, link in enumerate(self._table.links)
        }
        proxy = self._network.proxy_address
        tasks = []
        wanted = bool(target.params.get("checkpoint_every"))
        for number, unit in enumerate(self._units):
            own, binds = mounted(unit, self._context.directory, wanted=wanted)
            config = UnitConfig(
                run=self._context.run,
                token=token,
                unit=unit.name,
                role=unit.info.role,
                target=target.name,
                seed=self._context.seed,
                params=params,
                config=own,
                listen=f"0.0.0.0:{UNIT_PORT}" if unit.name in dialled else "",
                peers={peer: f"{proxy}:{ports[unit.name, peer]}" for peer in unit.links},
                state_dir="/unit/state",
                control_file=f"/unit/{TUNING_FILE}",
                checkpoint_dir=INSIDE if wanted else "",
                cache_dir="/cache",
            )
            binds = [*mounts, *binds]
            tasks.append(partial(self._start_unit, unit, number, config, target.module(), binds))
        failures = self._engine.each(tasks)
        if failures:
            raise LaunchError("; ".join(str(error) for error in failures)) from failures[0]

    def _start_unit(
        self, unit: UnitSpec, number: int, config: UnitConfig, module: str, mounts: list[str]
    ) -> None:
        home = self._work / unit.name
        (home / "state").mkdir(parents=True)
        write_unit_config(home / "config.json", config)
        address = self._network.unit_address(number)
        api = self._engine.api
        with self._engine.asked(f"start the container of {unit.name}"):
            host = api.create_host_config(
                # The folder, not the files in it: an atomic replacement has to be visible inside.
                binds=[f"{home}:/unit", *mounts],
                network_mode=self._network.name,
                # The unit is a child of an init process: a signal from inside can end it too.
                init=True,
                restart_policy={"Name": "always"},
                # Means nothing now; a limit that an engine has set it cannot take off again.
                **docker_memory.limits(self._memory_bytes),
                tmpfs={"/tmp": "rw,size=256m,mode=1777"},
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
            )
            made = api.create_container(
                self._options.image,
                command=["python", "-m", module, "/unit/config.json"],
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
                    {self._network.name: api.create_endpoint_config(ipv4_address=address)}
                ),
            )
            place = Place(
                unit.name,
                str(made["Id"]),
                network=self._network.name,
                address=address,
                base_share=self._options.unit_cpus or None,
                memory_bytes=self._memory_bytes,
            )
            self._add(place)
            api.start(place.container)
        self._follow(place, "0")

    # --- controls ---------------------------------------------------------------------------

    def damage(self, unit: str, how: Damage) -> str:
        """SIGKILL, and damage to the files of the unit's bind mount before it is started again."""
        nth = self._damages[unit] = self._damages.get(unit, 0) + 1
        directory = self._work / unit / "state"
        snapshots = self._context.directory / state_files.SNAPSHOTS / unit
        place = self._place(unit)
        return self._hands.between(
            place, lambda: state_files.damage(directory, how, nth, snapshots), UNIT_STOP_S
        )

    def oom(self, unit: str) -> str:
        """The container's limit falls to what it uses, until the kernel's killer ends the unit."""
        place = self._place(unit)
        if not place.memory_bytes:
            raise ControlError(f"the engine at {self._engine.address} cannot limit memory")
        with place.lock:
            pid = self._hands.awake(place)
            with self._hands.kept_down(place):
                try:
                    used = self._squeeze(place)
                finally:
                    docker_memory.lift(self._engine, place, place.memory_bytes)
        return (
            f"memory limited to {used >> 20} MiB until the kernel ended process {pid}'s unit; "
            f"{place.memory_bytes >> 20} MiB again"
        )

    def _squeeze(self, place: Place) -> int:
        """Until the unit has ended and the engine has said why; returns the limit, bytes."""
        self._await_news(place, pressed=True)
        try:
            ballast = docker_memory.press(self._engine, place)
            try:
                self._hands.await_stopped(place, docker_memory.KILLED_S)
            except ControlError as error:
                words = docker_memory.last_words(self._engine, ballast.name)
                raise ControlError(f"{error}; the ballast: {words}") from error
            return ballast.limit_bytes
        finally:
            self._await_news(place, pressed=False)

    def kill_proxy(self) -> str:
        """SIGKILL to the proxy's first process; the engine brings it back, we its links."""
        if not self._table.links:
            raise FaultSkipped("no unit of this target dials another, so there is no proxy")
        self._proxy_back.clear()
        note = self._hands.kill(Place("the proxy", self._proxy_container))
        # Nothing else is asked of the proxy meanwhile: it would be a failure of ours.
        if not self._proxy_back.wait(PROXY_BACK_S):
            raise ControlError(f"the proxy's links are not back {PROXY_BACK_S:g} s after its death")
        return f"{note}; every link restored"

    def _tune(self, place: Place, tuning: Tuning) -> str:
        path = self._work / place.unit / TUNING_FILE
        try:
            # In a folder that is mounted: what changes names here does so inside as well.
            self._controls.setdefault(place.unit, SwapFile(path)).write(msgspec.json.encode(tuning))
        except OSError as error:
            raise ControlError(f"cannot write {path}: {error}") from error
        return ""

    # --- closing ----------------------------------------------------------------------------

    def close(self) -> None:
        """Thaw, stop and remove everything; what goes wrong on the way is told by ``poll``."""
        if self._closed:
            return
        self._closed = self._closing = True
        if self._engine_ is not None:
            self._attempt("stop and remove containers", lambda: self._end(self._engine))
        if not self._options.keep_work and self._work.exists():
            self._attempt("remove work files", lambda: shutil.rmtree(self._work))
        if self._reaper is not None:
            self._attempt("stop the reaper", self._reaper.done)

    def _end(self, engine: Engine) -> None:
        self._hands.cancel()
        failures = stop_units(engine, self._places.values(), self._options.stop_s)
        self._await_last_events()
        # What units printed is read before their containers, and it with them, go away.
        for name, follower in self._followers.items():
            # The proxy still runs and would be waited for in vain.
            follower.close(LAST_EVENTS_S if name in self._places else 0.0)
        if self._watcher is not None:
            self._watcher.close()
        failures += remove_run(engine, self._context.run)
        engine.close()
        for error in failures:
            self._failed("teardown", error)

    def _await_last_events(self) -> None:
        deadline = time.monotonic() + LAST_EVENTS_S
        while any(p.running for p in self._places.values()) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _attempt(self, what: str, step: Callable[[], Any]) -> None:
        """One step of closing; its failure is an event and does not keep the others."""
        try:
            step()
        except (ChaosError, OSError) as error:
            self._failed(what, error)

    def _failed(self, where: str, error: Exception) -> None:
        self._queue.put(HarnessFailed(t_ns=self.clock.now_ns(), where=where, why=str(error)))

    def residue(self, t_ns: int) -> ResidueFound:
        """What of this run is still on the engine and the machine, found by looking there.

        Raises :class:`ControlError` when the engine that it ran on does not answer any more.
        """
        if self._engine_ is None:
            return ResidueFound(t_ns=t_ns)
        try:
            engine = Engine(self._options.engine or None, self._options.call_s)
        except LaunchError as error:
            raise ControlError(f"cannot look for residue: {error}") from error
        try:
            found = residue_of(engine, self._context.run, t_ns)
        finally:
            engine.close()
        local = []
        if self._reaper is not None and start_ticks(self._reaper.pid) is not None:
            local.append(f"reaper {self._reaper.pid}")
        if not self._options.keep_work and self._work.exists():
            local.append(f"directory {self._work}")
        return msgspec.structs.replace(found, processes=tuple(local))

    # --- names ------------------------------------------------------------------------------

    @property
    def _network(self) -> Network:
        if self._network_ is None:
            raise ControlError("the docker runtime is not open")
        return self._network_

    def _name(self, what: str) -> str:
        return f"diloco-chaos-{self._context.run}-{what}"

    def _labels(self, role: str, unit: str) -> dict[str, str]:
        return labels(self._context.run, role, unit, self._options.expires_s)


def _image(engine: Engine, name: str) -> dict[str, Any]:
    with engine.asked(f"look for image {name}"):
        try:
            return dict(engine.api.inspect_image(name))
        except docker.errors.NotFound:
            raise LaunchError(
                f"there is no image {name} on the engine at {engine.address}; "
                "make it with docker/prepare.sh (make image)"
            ) from None
