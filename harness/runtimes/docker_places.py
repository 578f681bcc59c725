"""A unit's place: its container, what is wanted of it, and how the engine is asked for it.

A place outlives the processes in it. What a fault holds (frozen, a CPU share, off the network)
is remembered here and applied again when the restart policy brings the container back, so a hold
works whether or not anything runs at the moment.

Killing goes past the engine: ``docker kill`` counts as an operator's stop and switches the
restart policy off. The signal goes to the container's first process from the host, by a handle
that cannot hit a recycled process id; where the host's processes cannot be reached (another
machine, no permission) it is sent from inside.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

from harness.errors import ControlError, FaultSkipped
from harness.runtimes.docker_engine import Engine

PERIOD_US = 10_000
"""CPU quota period: short, so that a quota slows every step and not every tenth one a lot."""
STOPPED_POLL_S = 0.02
_QUOTA_MIN_US = 1_000
_PERIOD_MAX_US = 1_000_000


@dataclass
class Place:
    """One unit's container and what is wanted of it."""

    unit: str
    container: str
    network: str = ""
    address: str = ""
    """The fixed address in ``network``; empty when the engine chooses."""
    aliases: tuple[str, ...] = ()
    base_share: float | None = None
    """CPUs that the unit may use when no fault says less; None for all."""
    burst: bool = True
    """Whether the base share waits until the unit is ready: a restart is quick then."""
    memory_bytes: int = 0
    """The limit that means nothing (``harness.runtimes.docker_memory``); 0 when there is none."""
    running: bool = False
    ready: bool = False
    pid: int = 0
    lives: int = 0
    oom: bool = False
    """Whether the engine has said that the kernel ends the life that there is."""
    pressed: bool = False
    """Whether we wait for the kernel to end the unit for want of memory."""
    told_oom: bool = False
    """Whether the engine has said so since we began to wait."""
    frozen: bool = False
    share: float | None = None
    attached: bool = True
    lock: threading.RLock = field(default_factory=threading.RLock)


def quota(share: float | None) -> dict[str, int]:
    """``cpu_period`` and ``cpu_quota`` (microseconds) for ``share`` CPUs; None lifts the limit.

    Raises :class:`ControlError` for a share that the engine cannot give.
    """
    if share is None:
        return {"cpu_period": PERIOD_US, "cpu_quota": -1}
    if not (math.isfinite(share) and share >= _QUOTA_MIN_US / _PERIOD_MAX_US):
        raise ControlError(f"a CPU share of {share} cannot be set; it is at least 0.001")
    period = max(PERIOD_US, math.ceil(_QUOTA_MIN_US / share))
    return {"cpu_period": period, "cpu_quota": max(_QUOTA_MIN_US, round(share * period))}


class Hands:
    """Carries out what is wanted of places, on one engine. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._timers: list[threading.Timer] = []

    # --- acts ---

    def kill(self, place: Place) -> str:
        """SIGKILL the unit from inside its container; raises ``FaultSkipped`` without one."""
        with place.lock:
            state = self._running(place)
            note = self._send(place, state, signal.SIGKILL)
            if state["Paused"]:
                # A frozen process dies only once it is thawed; it runs no instruction before.
                with self._engine.asked(f"thaw the killed unit {place.unit}"):
                    self._engine.api.unpause(place.container)
        return note

    def terminate(self, place: Place, grace_ns: int) -> str:
        """SIGTERM, and SIGKILL after ``grace_ns`` if the same life still runs."""
        with place.lock:
            state = self._running(place)
            note = self._send(place, state, signal.SIGTERM)
            started = state["StartedAt"]
        timer = threading.Timer(grace_ns / 1e9, self._finish, (place, started))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        return note

    def _finish(self, place: Place, started: str) -> None:
        # Whoever is gone meanwhile needs no second signal; a failing engine shows in other calls.
        with suppress(ControlError, FaultSkipped), place.lock:
            state = self._running(place)
            if state["StartedAt"] == started:
                self._send(place, state, signal.SIGKILL)

    def cancel(self) -> None:
        """No SIGKILL that is still to come will come."""
        for timer in self._timers:
            timer.cancel()

    # --- holds ---

    def freeze(self, place: Place, frozen: bool) -> str:
        """Pause or unpause; a place without a process is paused when the next one starts."""
        with place.lock:
            place.frozen = frozen
            state = self._state(place)
            if bool(state["Paused"]) == frozen:
                return ""
            if frozen and (not state["Running"] or state["Restarting"]):
                return "no process now; frozen from its next start on"
            verb = self._engine.api.pause if frozen else self._engine.api.unpause
            with self._engine.asked(f"{'freeze' if frozen else 'thaw'} {place.unit}"):
                verb(place.container)
        return ""

    def awake(self, place: Place) -> int:
        """The process id of whoever lives there, thawed; raises ``FaultSkipped`` without one.

        For what needs the unit's own cooperation: what is held comes back with its next life.
        """
        with place.lock:
            state = self._running(place)
            if state["Paused"]:
                with self._engine.asked(f"thaw {place.unit}"):
                    self._engine.api.unpause(place.container)
        return int(state["Pid"])

    def absent(self, place: Place, grace_ns: int | None) -> str:
        """Empty the container and keep it so; None starts it again. Does not wait for the end."""
        with place.lock:
            if grace_ns is not None:
                self._restart_policy(place, "no")
                state = self._state(place)
                if state["Running"] and not state["Restarting"] and state["Pid"]:
                    return self.terminate(place, grace_ns)
                # The engine may be about to start it once more.
                with self._engine.asked(f"stop the container of {place.unit}"):
                    self._engine.api.stop(place.container, timeout=0)
                return "no process now"
            self._restart_policy(place, "always")
            if not self._state(place)["Running"]:
                with self._engine.asked(f"start the container of {place.unit}"):
                    self._engine.api.start(place.container)
        return ""

    def between(self, place: Place, act: Callable[[], str], within_s: float) -> str:
        """SIGKILL, then ``act`` while nobody lives there, then a new start. Returns what it does.

        The restart policy is off meanwhile, so that the engine cannot be faster. Raises
        :class:`ControlError` when the container runs on, and what ``act`` raises.
        """
        with place.lock, self.kept_down(place):
            with suppress(FaultSkipped):  # nobody lives there now
                self.kill(place)
            self.await_stopped(place, within_s)
            return act()

    @contextmanager
    def kept_down(self, place: Place) -> Iterator[None]:
        """Whoever dies there meanwhile is brought back only at the end."""
        with place.lock:
            self._restart_policy(place, "no")
            try:
                yield
            finally:
                self.absent(place, None)

    def await_stopped(self, place: Place, within_s: float) -> None:
        """Until nothing runs in the container and nothing will; raises :class:`ControlError`."""
        deadline = time.monotonic() + within_s
        while (state := self._state(place))["Running"] or state["Restarting"]:
            if time.monotonic() >= deadline:
                raise ControlError(f"the container of {place.unit} runs on {within_s:g} s after")
            time.sleep(STOPPED_POLL_S)

    def _restart_policy(self, place: Place, name: str) -> None:
        with self._engine.asked(f"change the restart policy of {place.unit}"):
            self._engine.api.update_container(place.container, restart_policy={"Name": name})

    def limit(self, place: Place, share: float | None) -> str:
        """Hold the place to ``share`` CPUs, the base limit aside; None releases it."""
        quota(share)  # refuse what cannot be set before anything is remembered
        with place.lock:
            place.share = share
            return self.set_quota(place)

    def set_quota(self, place: Place) -> str:
        """Bring the quota to the smallest of what holds now: a fault's share, the base share.

        With ``burst`` imports and compilation run without the base share.
        """
        shares = [place.share, place.base_share if place.ready or not place.burst else None]
        limits = [share for share in shares if share is not None]
        values = quota(min(limits) if limits else None)
        with self._engine.asked(f"set the CPU quota of {place.unit}"):
            self._engine.api.update_container(place.container, **values)
        return f"quota {values['cpu_quota']}/{values['cpu_period']} us"

    def attach(self, place: Place, attached: bool) -> str:
        """Take the container off its network or put it back with the address it had."""
        if not place.network:
            raise ControlError(f"{place.unit} has no network of the run to be taken off")
        with place.lock:
            place.attached = attached
            return self._attach(place, attached)

    def _attach(self, place: Place, attached: bool) -> str:
        networks = self._attrs(place)["NetworkSettings"]["Networks"]
        if (place.network in networks) == attached:
            return ""
        if attached:
            with self._engine.asked(f"connect {place.unit} to network {place.network}"):
                self._engine.api.connect_container_to_network(
                    place.container,
                    place.network,
                    # Without both it would come back under another address and name.
                    ipv4_address=place.address or None,
                    aliases=list(place.aliases) or None,
                )
        else:
            with self._engine.asked(f"disconnect {place.unit} from network {place.network}"):
                self._engine.api.disconnect_container_from_network(place.container, place.network)
        return f"network {place.network}"

    def started(self, place: Place) -> None:
        """A new life began: put on it what is held on its place."""
        with place.lock:
            if place.frozen:
                self.freeze(place, True)
            if not place.attached:
                self._attach(place, False)

    def died(self, place: Place) -> None:
        """A life ended: the next one starts without the base limit."""
        with place.lock:
            was_ready, place.ready = place.ready, False
            if place.burst and was_ready and place.base_share is not None:
                self.set_quota(place)

    def heal(self, place: Place) -> None:
        """Release everything that may be held on the place, by whomever."""
        with place.lock:
            self.freeze(place, False)
            self.limit(place, None)
            if place.network:
                self.attach(place, True)

    # --- steps ---

    def _attrs(self, place: Place) -> dict[str, Any]:
        attrs = self._engine.inspect(place.container)
        if attrs is None:
            raise ControlError(
                f"the container of {place.unit} is gone; somebody removed it while the run went on"
            )
        return attrs

    def _state(self, place: Place) -> dict[str, Any]:
        return dict(self._attrs(place)["State"])

    def _running(self, place: Place) -> dict[str, Any]:
        state = self._state(place)
        if not state["Running"] or state["Restarting"] or not state["Pid"]:
            raise FaultSkipped(f"no process of {place.unit} runs (container {state['Status']})")
        return state

    def _send(self, place: Place, state: dict[str, Any], number: signal.Signals) -> str:
        if self._engine.local and _signal_from_host(int(state["Pid"]), place.container, number):
            return f"{number.name} to process {state['Pid']} from the host"
        if state["Paused"]:
            with self._engine.asked(f"thaw {place.unit} to signal it from inside"):
                self._engine.api.unpause(place.container)
        # The init process has no SIGKILL from its own namespace; without children it ends.
        script = "kill -KILL -1" if number == signal.SIGKILL else "kill -TERM 1"
        status, output = self._engine.exec(place.container, ["sh", "-c", script])
        if status not in (0, 137, 143):
            raise ControlError(f"cannot signal {place.unit} from inside: {output} ({status})")
        return f"{number.name} from inside the container"


def _signal_from_host(pid: int, container: str, number: signal.Signals) -> bool:
    """Signal ``pid`` if it is a process of ``container`` on this host that we may signal."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if container not in Path(f"/proc/{pid}/cgroup").read_text():
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        # Not permitted; or it died in this instant, which the engine will say.
        return bool(select([handle], [], [], 0)[0])
    else:
        return True
    finally:
        os.close(handle)
