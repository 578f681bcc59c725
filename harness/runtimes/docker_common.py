"""What the docker runtime and the attached one have in common: units in containers, controls
through the engine and Toxiproxy, events from output and engine."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from faults.base import Capability, Damage, LinkState, Resource, Tuning
from harness.clock import WallClock
from harness.errors import ControlError, FaultSkipped, LaunchError
from harness.events import (
    AnyEvent,
    HarnessFailed,
    Joined,
    ProxyChanged,
    UnitExited,
    UnitSpawned,
    UnitStarted,
)
from harness.runtimes.base import RunContext
from harness.runtimes.docker_engine import Engine
from harness.runtimes.docker_links import ContainerLinks
from harness.runtimes.docker_places import Hands, Place
from harness.runtimes.docker_watch import LifeWatcher, OutputFollower
from harness.runtimes.linktable import LinkTable

TUNING_FILE = "tuning.json"

LAST_WORDS_S = 2.0

KERNEL_NEWS_S = 2.0
"""How long the engine may take to tell that the kernel ended a unit, after the end itself."""

OFFERS: frozenset[Capability] = frozenset(
    {"kill", "terminate", "freeze", "cpu_quota", "tune", "link", "restart", "engine_network"}
)


class ContainerRuntime(ABC):
    """Everything of :class:`harness.runtimes.base.Runtime` but open, close and residue."""

    name = "docker"

    @property
    def offers(self) -> frozenset[Capability]:
        """What every runtime of containers can do."""
        return OFFERS

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.clock = WallClock()
        self._queue: SimpleQueue[AnyEvent] = SimpleQueue()
        self._held: list[AnyEvent] = []
        self._places: dict[str, Place] = {}
        self._by_container: dict[str, Place] = {}
        self._followers: dict[str, OutputFollower] = {}
        self._table = LinkTable(())
        self._link_lock = threading.RLock()
        self._engine_: Engine | None = None
        self._hands_: Hands | None = None
        self._links_: ContainerLinks | None = None
        self._watcher: LifeWatcher | None = None
        self._proxy_container = ""
        self._proxy_lives = 0
        self._proxy_back = threading.Event()
        self._proxy = "toxiproxy"
        self._closing = False
        self._unexplained: dict[str, UnitExited] = {}
        """Ends of units under memory pressure of which the engine has not said why."""

    # --- the contract ---

    @property
    def proxy(self) -> str:
        """``toxiproxy VERSION`` once open."""
        return self._proxy

    def poll(self, until_ns: int) -> list[AnyEvent]:
        """Events that became known; see :class:`harness.runtimes.base.Runtime`."""
        found, self._held = self._held, []
        if found:
            until_ns = 0
        wait_s = max(0, until_ns - self.clock.now_ns()) / 1e9
        with suppress(Empty):
            found.append(self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait())
            while True:
                found.append(self._queue.get_nowait())
        for event in found:
            if isinstance(event, Joined):
                self._joined(event.unit)
        return sorted(found, key=lambda event: event.t_ns)

    def alive(self, unit: str) -> bool:
        """Whether a process of the unit runs now, as the engine last said."""
        return self._place(unit).running

    def kill(self, unit: str) -> str:
        """SIGKILL past the engine, so that the restart policy acts."""
        return self._hands.kill(self._place(unit))

    def terminate(self, unit: str, grace_ns: int) -> str:
        """SIGTERM to the container's init, which passes it on; SIGKILL after ``grace_ns``."""
        return self._hands.terminate(self._place(unit), grace_ns)

    def damage(self, unit: str, how: Damage) -> str:
        """Not offered unless a runtime says so: raises ``ControlError``."""
        raise ControlError(f"the durable state of {unit} cannot be reached ({how})")

    def oom(self, unit: str) -> str:
        """Not offered unless a runtime says so: an engine cannot take a limit off again, so only a
        container that began with one can be given that back."""
        raise ControlError(f"no memory limit can be put on {unit} and lifted again")

    def kill_proxy(self) -> str:
        """Not offered unless a runtime says so: a standing project's proxy is not ours to break."""
        raise ControlError("the proxy's container is not broken on purpose")

    def apply(self, unit: str, resource: Resource, setting: Any) -> str:
        """Bring a resource to a setting; raises ``ControlError`` when the engine will not."""
        place = self._place(unit)
        if resource == "frozen":
            return self._hands.freeze(place, bool(setting))
        if resource == "cpu_share":
            return self._hands.limit(place, setting)
        if resource == "network":
            return self._hands.attach(place, bool(setting))
        if resource == "absent" and "absence" in self.offers:
            return self._hands.absent(place, setting)
        if resource == "tuning":
            return self._tune(place, setting or Tuning())
        if resource == "link":
            return self._set_links(unit, setting or LinkState())
        raise ControlError(f"the docker runtime has no resource {resource!r}")

    # --- for the two runtimes ---

    @abstractmethod
    def _connect_links(self) -> None:
        """Find the proxy's control port and make the adapter know every link, all healthy."""

    @abstractmethod
    def _tune(self, place: Place, tuning: Tuning) -> str:
        """Put ``tuning`` where the unit reads it, all at once."""

    @property
    def _engine(self) -> Engine:
        if self._engine_ is None:
            raise ControlError("the docker runtime is not open")
        return self._engine_

    @property
    def _hands(self) -> Hands:
        if self._hands_ is None:
            raise ControlError("the docker runtime is not open")
        return self._hands_

    @property
    def _links(self) -> ContainerLinks:
        if self._links_ is None:
            raise ControlError("the docker runtime is not open")
        return self._links_

    def _place(self, unit: str) -> Place:
        try:
            return self._places[unit]
        except KeyError:
            known = ", ".join(self._places) or "none"
            raise ControlError(f"there is no unit {unit} (known: {known})") from None

    def _add(self, place: Place) -> None:
        self._places[place.unit] = place
        self._by_container[place.container] = place

    def _follow(self, place: Place, since: str) -> None:
        log = self._context.directory / "units" / f"{place.unit}.log"
        self._followers[place.unit] = OutputFollower(
            self._engine, place.container, place.unit, log, self._queue, self.clock, since
        )

    def _await_lives(self, seconds: float) -> None:
        """Until every unit has written its first line; raises :class:`LaunchError` when one ends
        before, or does not get there. What was read meanwhile comes out of the next ``poll``."""
        missing = set(self._places)
        deadline = time.monotonic() + seconds
        while missing:
            try:
                event = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise LaunchError(
                    f"{', '.join(sorted(missing))} did not begin within {seconds:g} s; "
                    f"see {self._context.directory / 'units'}"
                ) from None
            self._held.append(event)
            if isinstance(event, UnitStarted):
                missing.discard(event.unit)
            elif isinstance(event, UnitExited) and event.unit in missing:
                raise LaunchError(
                    f"{event.unit} ended with status {event.code} before it began: "
                    f"{self._last_words(event.unit)}"
                )

    def _last_words(self, unit: str) -> str:
        path = self._context.directory / "units" / f"{unit}.log"
        deadline = time.monotonic() + LAST_WORDS_S
        while not path.stat().st_size and time.monotonic() < deadline:
            time.sleep(0.01)  # the engine tells of the end a little before the output is read
        words = path.read_text(errors="replace").strip().splitlines()
        return f"{words[-1] if words else 'it printed nothing'} (see {path})"

    def _set_links(self, unit: str, state: LinkState) -> str:
        if not self._table.of(unit):
            raise FaultSkipped(f"{unit} has no link")
        with self._link_lock:
            notes = self._set_each(self._table.ask(unit, state))
        return "; ".join(sorted(notes - {""}))

    def _set_each(self, wanted: Mapping[str, LinkState]) -> set[str]:
        """Bring links into their states, all side by side, and wait; returns the notes."""
        notes: set[str] = set()

        def bring(name: str, state: LinkState) -> None:
            notes.add(self._links.set_state(name, state))

        for error in self._engine.each(partial(bring, *pair) for pair in wanted.items()):
            raise error
        return notes

    def _restore_links(self) -> None:
        """The proxy came back without its toxics, perhaps on another port: put them on again."""
        with self._link_lock:
            self._connect_links()
            self._set_each({link.name: self._table.state(link) for link in self._table.links})
        self._queue.put(ProxyChanged(t_ns=self.clock.now_ns(), what="every link restored"))
        self._proxy_back.set()

    def _joined(self, unit: str) -> None:
        place = self._places.get(unit)
        if place is None or place.base_share is None or place.ready:
            return
        place.ready = True
        self._guarded("CPU limit", lambda: self._hands.set_quota(place))

    def _lived(self, action: str, container: str, attributes: dict[str, str], t_ns: int) -> None:
        """One engine event about a container; called by the watcher's thread."""
        if container == self._proxy_container:
            self._proxy_lived(action, t_ns)
            return
        place = self._by_container.get(container)
        if place is None:
            return
        if action == "oom":
            self._out_of_memory(place)
        elif action == "die":
            self._died(place, int(attributes.get("exitCode", "0")), t_ns)
        elif action == "start":
            self._started(place, t_ns)

    def _proxy_lived(self, action: str, t_ns: int) -> None:
        if self._closing or action not in ("die", "start"):
            return
        if action == "start":
            self._proxy_lives += 1
            if self._proxy_lives == 1:
                return
            self._engine.soon(lambda: self._guarded("proxy links", self._restore_links))
        what = "the proxy ended" if action == "die" else "the proxy was restarted"
        self._queue.put(ProxyChanged(t_ns=t_ns, what=what))

    def _died(self, place: Place, code: int, t_ns: int) -> None:
        place.running = False
        number = code - 128 if code > 128 else None
        ended = UnitExited(
            t_ns=t_ns, unit=place.unit, pid=place.pid, code=code, signal=number, oom=place.oom
        )
        if place.pressed and not place.oom:
            self._unexplained[place.unit] = ended  # the engine may tell why a little later
        else:
            self._queue.put(ended)
        place.oom = False
        if not self._closing:
            self._guarded("CPU limit", lambda: self._hands.died(place))

    def _await_news(self, place: Place, *, pressed: bool) -> None:
        """Begin or stop to wait for the kernel; at the end the engine may still say that it was."""
        if pressed:
            place.told_oom, place.pressed = False, True
            return
        deadline = time.monotonic() + KERNEL_NEWS_S
        while not place.told_oom and time.monotonic() < deadline:
            time.sleep(0.005)
        place.pressed = False
        ended = self._unexplained.pop(place.unit, None)
        if ended is not None:
            self._queue.put(ended)

    def _out_of_memory(self, place: Place) -> None:
        place.told_oom = True
        ended = self._unexplained.pop(place.unit, None)
        if ended is not None:
            self._queue.put(msgspec.structs.replace(ended, oom=True))
        else:
            place.oom = True

    def _started(self, place: Place, t_ns: int) -> None:
        place.running = True
        place.lives += 1
        follower = self._followers.get(place.unit)
        if follower is not None:
            follower.revived()
        self._guarded("holds", lambda: self._hands.started(place))
        self._guarded("process id", lambda: self._learn_pid(place))
        by = "harness" if place.lives == 1 else "policy"
        self._queue.put(UnitSpawned(t_ns=t_ns, unit=place.unit, by=by, pid=place.pid))

    def _learn_pid(self, place: Place) -> None:
        attrs = self._engine.inspect(place.container)
        place.pid = int(attrs["State"]["Pid"]) if attrs else 0

    def _guarded(self, what: str, act: Any) -> None:
        """Do ``act`` for a unit's new state; what fails is journalled as our own failure."""
        try:
            act()
        except (ControlError, FaultSkipped) as error:
            if not self._closing:
                self._queue.put(HarnessFailed(t_ns=self.clock.now_ns(), where=what, why=str(error)))
