"""Hosts a target's nodes and workers in virtual time: feeds inputs, carries out effects.

What a real unit's driver and the kernel under it do, this does too: processes take time to start,
import and compile; the supervisor starts dead ones again, each life with a higher incarnation;
jobs of a lane run one after the other; a durable write blocks the unit; a frozen unit's messages,
timers and work wait for it; a killed unit leaves only its disk and what the network still carries.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import msgspec

from faults.base import Damage, LinkState, Tuning
from harness.errors import FaultSkipped, HarnessError
from harness.events import AnyEvent, UnitExited, UnitNote, UnitReady, UnitSpawned, UnitStarted
from harness.runtimes.linktable import LinkTable
from harness.seeds import stream
from harness.sim.loop import Loop
from harness.sim.network import DOWN, UP, Link
from harness.sim.options import SimOptions
from harness.sim.storage import Disk
from harness.sim.unit import Lane, SimUnit, Skew
from targets.base import (
    Dial,
    Disconnect,
    Note,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    Target,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)

SIGKILL, SIGTERM = 9, 15
SPACE_POLL_NS = 100_000_000
"""Pause between two attempts to write to a disk that is full."""


class Cluster:
    """All units of one run. ``events`` collects what they report, oldest first."""

    def __init__(
        self,
        target: Target,
        seed: int,
        loop: Loop,
        options: SimOptions,
        crash_log: Callable[[str, str], None] = lambda unit, text: None,
    ) -> None:
        self.events: list[AnyEvent] = []
        self.closing = False
        self._target = target
        self._loop = loop
        self._options = options
        self._crash_log = crash_log
        self._fsync_range = (options.fsync_ms[0] * 1e6, options.fsync_ms[1] * 1e6)
        self._jitter_ns = options.step_jitter_ms * 1e6
        self._gap_ns = round(options.step_gap_ms * 1e6)
        self._paced: dict[type, bool] = {}
        self.units: dict[str, SimUnit] = {}
        unsynced = round(options.unsynced_ms * 1e6) if options.disk == "lying" else 0
        for spec in target.units():
            skew = _skew(options, spec.name)
            rng = stream(seed, "sim", "unit", spec.name)
            self.units[spec.name] = SimUnit(spec, Disk(unsynced), rng, skew)
        for unit in self.units.values():
            for peer in unit.spec.links:
                rng = stream(seed, "sim", "link", unit.name, peer)
                other = self._unit(peer)
                link = Link(unit, other, loop, self, options, rng, peer in unit.spec.on_demand)
                unit.links.append(link)
                unit.peers[peer] = (link, UP)
                other.peers[link.called[UP]] = (link, DOWN)
        self._table = LinkTable(unit.spec for unit in self.units.values())
        self._detached: set[str] = set()

    # --- life and death -------------------------------------------------------------------------

    def start(self) -> None:
        """Spawn every unit now."""
        for unit in self.units.values():
            self._spawn(self._loop.now_ns(), (unit, unit.life, "harness"))

    def kill(self, name: str) -> str:
        """SIGKILL; raises :class:`FaultSkipped` when no process lives there."""
        unit = self._unit(name)
        if not unit.alive:
            raise FaultSkipped(f"no process of {name} runs")
        note = self._exit(unit, code=None, signal=SIGKILL)
        return f"killed incarnation {note}"

    def terminate(self, name: str, grace_ns: int) -> str:
        """SIGTERM now, SIGKILL after ``grace_ns``; does not wait for either."""
        unit = self._unit(name)
        if not unit.alive:
            raise FaultSkipped(f"no process of {name} runs")
        self._loop.after(grace_ns, self._grace_over, (unit, unit.life))
        if unit.node is None and not unit.frozen:
            self._exit(unit, code=None, signal=SIGTERM)
            return "terminated before it was ready"
        self._hold_or(unit, self._stop_asked, (unit, grace_ns))
        return f"asked incarnation {unit.incarnation} to stop"

    def damage(self, name: str, how: Damage) -> str:
        """SIGKILL to whoever lives there; what it left durable is lost or damaged."""
        unit = self._unit(name)
        notes = [self.kill(name)] if unit.alive else []
        # The target holds what its workers keep beside their node's own values.
        arrays: Callable[[str, Damage], str] | None = getattr(self._target, "damage", None)
        said = arrays(name, how) if arrays is not None else ""
        if said:
            notes.append(said)
        if not said or how == "lose":
            notes.append(unit.disk.damage(how))
        return "; ".join(notes)

    def oom(self, name: str) -> str:
        """End the unit as the kernel's OOM killer does; raises :class:`FaultSkipped` for none."""
        unit = self._unit(name)
        if not unit.alive:
            raise FaultSkipped(f"no process of {name} runs")
        return f"killed incarnation {self._exit(unit, code=None, signal=SIGKILL, oom=True)}"

    def _stop_asked(self, now: int, asked: tuple[SimUnit, int]) -> None:
        unit, grace_ns = asked
        if unit.node is None:
            self._exit(unit, code=None, signal=SIGTERM)
        else:
            self.feed(unit, StopAsked(grace_ns), now)

    def _grace_over(self, now: int, who: tuple[SimUnit, int]) -> None:
        unit, life = who
        if unit.life == life and unit.alive:
            self._exit(unit, code=None, signal=SIGKILL)

    def _spawn(self, now: int, order: tuple[SimUnit, int, str]) -> None:
        unit, life, by = order
        if unit.life != life or self.closing or unit.absent:
            return
        unit.life += 1
        unit.alive = True
        self.events.append(UnitSpawned(t_ns=now, unit=unit.name, by=by))
        self._loop.after(
            self._draw(unit, self._options.spawn_ms), self._boot, (unit, unit.life, self._begin)
        )

    def _boot(self, now: int, stage: tuple[SimUnit, int, Callable[[int, SimUnit], None]]) -> None:
        """The next stage of coming to life, later if the unit is frozen meanwhile."""
        unit, life, action = stage
        if unit.life != life:
            return
        if unit.frozen:
            unit.inbox.append((self._boot, stage))
        else:
            action(now, unit)

    def _begin(self, now: int, unit: SimUnit) -> None:
        unit.disk.incarnation += 1
        unit.incarnation = incarnation = unit.disk.incarnation
        role = unit.spec.info.role
        self.events.append(
            UnitStarted(t_ns=now, unit=unit.name, incarnation=incarnation, role=role)
        )
        options, compile_ns = self._options, 0
        if role == "learner":
            cold = options.cold_compile_ms if incarnation == 1 else options.compile_ms
            import_ns = self._draw(unit, options.import_ms)
            compile_ns = self._draw(unit, cold)
        else:
            import_ns = self._draw(unit, options.syncer_ready_ms)

        def ready(now: int, unit: SimUnit) -> None:
            self._ready(now, unit, import_ns, compile_ns)

        self._loop.after(import_ns + compile_ns, self._boot, (unit, unit.life, ready))

    def _ready(self, now: int, unit: SimUnit, import_ns: int, compile_ns: int) -> None:
        self.events.append(
            UnitReady(
                t_ns=now,
                unit=unit.name,
                incarnation=unit.incarnation,
                import_ns=import_ns,
                compile_ns=compile_ns,
            )
        )
        unit.node = self._target.node(unit.name)
        unit.worker = self._target.worker(unit.name)
        if self._options.load_ms is not None and hasattr(unit.worker, "costs"):
            load_ns = round(self._options.load_ms * 1e6)
            unit.worker.costs = replace(unit.worker.costs, load_ns=load_ns)
        unit.bind = getattr(unit.worker, "bind", None)
        self._tell_worker(unit)
        if unit.tuning.update:
            self._tamper(unit)
        if hasattr(unit.node, "traffic"):
            unit.node.traffic = self._traffic(unit)
        life = unit.life
        for key, why in sorted(unit.disk.damaged.items()):
            self._note(unit, "state-damaged", f"{key}: {why}; the value before is used")
        damaged = dict(unit.disk.damaged)
        self.feed(unit, Started(unit.incarnation, unit.disk.saved(), damaged), now)
        if unit.life == life:
            for link in unit.links:
                if not link.on_demand:
                    link.dial()

    def _traffic(self, unit: SimUnit) -> Callable[[], tuple[int, int]]:
        """Bytes (sent to the unit, sent by it) on all its links since now, framing included."""

        def total() -> tuple[int, int]:
            ends = unit.peers.values()
            return (
                sum(link.nbytes[1 - side] for link, side in ends),
                sum(link.nbytes[side] for link, side in ends),
            )

        received, sent = total()
        return lambda: (total()[0] - received, total()[1] - sent)

    def _exit(
        self, unit: SimUnit, code: int | None, signal: int | None, *, oom: bool = False
    ) -> str:
        now, incarnation = self._loop.now_ns(), unit.incarnation
        note = unit.disk.crash(now, unit.random)
        unit.end_life()
        for link, side in unit.peers.values():
            link.process_ended(side, abruptly=signal == SIGKILL)
        self.events.append(UnitExited(t_ns=now, unit=unit.name, code=code, signal=signal, oom=oom))
        if self._options.restart:
            self._spawn_later(unit)
        return f"{incarnation}; {note}" if note else f"{incarnation}"

    def _spawn_later(self, unit: SimUnit) -> None:
        if not self.closing and not unit.absent:
            pause = self._draw(unit, self._options.restart_ms)
            self._loop.after(pause, self._spawn, (unit, unit.life, "supervisor"))

    def _crash(self, unit: SimUnit, error: Exception) -> None:
        """The node raised, as a real unit's driver would die: said, logged, exit status 1."""
        self._crash_log(unit.name, "".join(traceback.format_exception(error)))
        self._note(unit, "crash", f"{type(error).__name__}: {error}")
        self._exit(unit, code=1, signal=None)

    def _note(self, unit: SimUnit, what: str, detail: str) -> None:
        self.events.append(
            UnitNote(
                t_ns=self._loop.now_ns(),
                unit=unit.name,
                incarnation=unit.incarnation,
                what=what,
                detail=detail,
            )
        )

    # --- holds ----------------------------------------------------------------------------------

    def freeze(self, name: str, frozen: bool) -> None:
        """Stop or continue whatever process lives there, now or later."""
        unit = self._unit(name)
        if frozen == unit.frozen:
            return
        now = self._loop.now_ns()
        unit.frozen = frozen
        for lane_name, lane in unit.lanes.items():
            if lane.ends_ns is None:
                continue
            lane.ticket += 1
            if frozen:
                lane.left_ns = lane.ends_ns - now
            else:
                self._schedule_end(unit, lane_name, lane, now + lane.left_ns)
        if not frozen:
            self._thaw(unit, now)

    def _thaw(self, unit: SimUnit, now: int) -> None:
        if unit.synced_late:
            unit.synced_late = False
            self._resume(now, (unit, unit.life))
        # Which a real process handles first, its timers or its sockets, is anybody's guess.
        if unit.tick_late and unit.random.random() < 0.5:
            self._late_tick(now, unit)
        self._drain(unit)
        if unit.tick_late:
            self._late_tick(now, unit)

    def _late_tick(self, now: int, unit: SimUnit) -> None:
        unit.tick_late = False
        self._hold_or(unit, self._tick_now, unit)

    def set_absent(self, name: str, grace_ns: int | None) -> str:
        """Empty the place and keep it so; None lets its unit live there again, from now on."""
        unit = self._unit(name)
        unit.absent = grace_ns is not None
        if grace_ns is not None:
            return self.terminate(name, grace_ns) if unit.alive else "nothing lives there"
        if not unit.alive:
            self._spawn_later(unit)
        return ""

    def set_cpu_share(self, name: str, share: float | None) -> None:
        """Give the unit's later jobs only this share of a CPU; None lifts it."""
        self._unit(name).cpu_share = share

    def set_tuning(self, name: str, tuning: Tuning) -> None:
        """Change the control file; the unit reads it at its next step."""
        unit = self._unit(name)
        unit.tuning = tuning
        self._tell_worker(unit)
        if tuning.update and unit.outlet is None:
            self._tamper(unit)
        if not tuning.hang:
            for lane_name, lane in unit.lanes.items():
                if lane.jobs and lane.ends_ns is None:
                    self._begin_job(unit, lane_name, lane, self._loop.now_ns())

    def set_link(self, name: str, state: LinkState) -> None:
        """Bring every link of the unit, dialled by it or by others, to ``state``."""
        self._own_links(name)
        self._table.ask(name, state)
        for entry in self._table.of(name):
            link, _ = self.units[entry.unit].peers[entry.peer]
            link.set_state(self._table.state(entry))

    def set_attached(self, name: str, attached: bool) -> None:
        """Take the unit off its network, or back on."""
        self._own_links(name)
        (self._detached.discard if attached else self._detached.add)(name)
        for link, _ in self._unit(name).peers.values():
            link.set_attached(not any(end.name in self._detached for end in link.units))

    def _own_links(self, name: str) -> None:
        if not self._unit(name).links:
            raise FaultSkipped(f"{name} opens no link of its own; aim at the units that dial it")

    def _unit(self, name: str) -> SimUnit:
        try:
            return self.units[name]
        except KeyError:
            raise HarnessError(f"no unit {name}; there are {', '.join(self.units)}") from None

    # --- inputs ----------------------------------------------------------------------------------

    def _hold_or(self, unit: SimUnit, action: Callable[[int, Any], None], argument: Any) -> None:
        if unit.frozen or unit.blocked:
            unit.inbox.append((action, argument))
        else:
            action(self._loop.now_ns(), argument)

    def _drain(self, unit: SimUnit) -> None:
        inbox = unit.inbox
        while inbox and not unit.frozen and not unit.blocked:
            action, argument = inbox.popleft()
            action(self._loop.now_ns(), argument)
            inbox = unit.inbox

    def feed(self, unit: SimUnit, event: Any, now: int) -> None:
        """Hand ``event`` to the unit's node, if it has one, and carry out what that asks for."""
        node = unit.node
        if node is None:
            return
        try:
            effects = node.handle(event, now if unit.skew is None else unit.skew.local_ns(now))
        except Exception as error:
            self._crash(unit, error)
            return
        if not effects or self._carry(unit, effects, 0, now):
            self._set_timer(unit, node, now)

    def arriving(self, unit: SimUnit, peer: str, now: int) -> None:
        """Part of a message of ``peer`` reached the unit; nodes that want to know have a method."""
        told: Callable[[str, int], None] | None = getattr(unit.node, "arriving", None)
        if told is not None:
            told(peer, now if unit.skew is None else unit.skew.local_ns(now))

    # --- effects --------------------------------------------------------------------------------

    def _carry(self, unit: SimUnit, effects: list[Any], start: int, now: int) -> bool:
        """Carry out ``effects`` from number ``start`` on, in order.

        Returns False when the rest has to wait for a durable write, or the unit ended.
        """
        for index in range(start, len(effects)):
            effect = effects[index]
            kind = type(effect)
            if kind is Send:
                if unit.outlet is not None:
                    unit.outlet.send(effect.peer, effect.message)
                    continue
                end = unit.peers.get(effect.peer)
                if end is not None:
                    end[0].send(end[1], effect.message, now)
            elif kind is Note:
                event = effect.event
                self.events.append(event if unit.skew is None else unit.skew.true_event(event))
            elif kind is Work:
                self._enqueue(unit, effect.lane, effect.job, now)
            elif kind is Save:
                unit.blocked = True
                unit.deferred = (effects, index + 1)
                if unit.tuning.disk_full:
                    self._note(unit, "disk-full", f"{effect.key} cannot be saved: no space left")
                    self._loop.after(SPACE_POLL_NS, self._save_again, (unit, unit.life, effect))
                else:
                    self._begin_save(unit, effect)
                return False
            elif kind is Dial:
                unit.peers[effect.peer][0].dial()
            elif kind is Disconnect:
                end = unit.peers.get(effect.peer)
                if end is not None:
                    end[0].give_up(end[1], effect.why)
            elif kind is Stop:
                self._exit(unit, code=effect.code, signal=None)
                return False
            else:
                raise HarnessError(f"{unit.name} asked for {effect!r}, which is no effect")
        return True

    def _begin_save(self, unit: SimUnit, effect: Save) -> None:
        unit.disk.begin(effect.key, effect.value)
        low, high = self._fsync_range
        delay = round(low + (high - low) * unit.random.random())
        self._loop.after(delay, self._synced, (unit, unit.life))

    def _save_again(self, now: int, entry: tuple[SimUnit, int, Save]) -> None:
        """As a real unit's driver: tried until there is space, and nothing else happens."""
        unit, life, effect = entry
        if unit.life != life:
            return
        if unit.frozen or unit.tuning.disk_full:
            self._loop.after(SPACE_POLL_NS, self._save_again, entry)
        else:
            self._begin_save(unit, effect)

    def _synced(self, now: int, who: tuple[SimUnit, int]) -> None:
        unit, life = who
        if unit.life != life:
            return
        unit.disk.synced(now)
        if unit.frozen:
            unit.synced_late = True
        else:
            self._resume(now, who)

    def _resume(self, now: int, who: tuple[SimUnit, int]) -> None:
        unit, life = who
        if unit.life != life or unit.deferred is None or unit.node is None:
            return
        effects, done = unit.deferred
        unit.blocked, unit.deferred = False, None
        if self._carry(unit, effects, done, now):
            self._set_timer(unit, unit.node, now)
            self._drain(unit)

    # --- timers ---------------------------------------------------------------------------------

    def _set_timer(self, unit: SimUnit, node: Any, now: int) -> None:
        """Have a tick scheduled no later than the node wants one.

        A deadline that moves later leaves the old entry, which then looks again: deadlines move
        with every message, and the heap would fill up otherwise.
        """
        deadline = node.deadline_ns()
        if deadline is None:
            return
        if unit.skew is not None:
            deadline = unit.skew.true_ns(deadline)
        tick_at = unit.tick_at
        if tick_at is None or deadline < tick_at:
            if deadline < now:
                deadline = now
            unit.tick_at = deadline
            self._loop.at(deadline, self._tick, (unit, unit.life, deadline))

    def _tick(self, now: int, entry: tuple[SimUnit, int, int]) -> None:
        unit, life, due = entry
        if unit.life != life or unit.tick_at != due or unit.node is None:
            return
        unit.tick_at = None
        if unit.frozen:
            unit.tick_late = True
        else:
            self._hold_or(unit, self._tick_now, unit)

    def _tick_now(self, now: int, unit: SimUnit) -> None:
        node = unit.node
        if node is None:
            return
        deadline = node.deadline_ns()
        if deadline is None:
            return
        local = now if unit.skew is None else unit.skew.local_ns(now)
        if deadline <= local:
            self.feed(unit, Tick(), now)
        else:
            self._set_timer(unit, node, now)

    # --- work -----------------------------------------------------------------------------------

    def _tell_worker(self, unit: SimUnit) -> None:
        """Workers that can misbehave on purpose are told how."""
        if unit.worker is not None and hasattr(unit.worker, "tuning"):
            unit.worker.tuning = unit.tuning

    def _tamper(self, unit: SimUnit) -> None:
        """From now on the target sees what the unit sends, and may change it."""
        tampered = getattr(self._target, "tampered", None)
        if tampered is not None and unit.node is not None:
            unit.outlet = tampered(_Outlet(unit, self._loop), lambda: unit.tuning)

    def _enqueue(self, unit: SimUnit, name: str, job: Any, now: int) -> None:
        lane = unit.lanes.get(name)
        if lane is None:
            lane = unit.lanes[name] = Lane()
        # A read answers from the state at this instant, however long the lane is busy with others.
        bind = unit.bind
        lane.calls.append(_bound(bind, job) if bind is not None and name != "main" else None)
        lane.jobs.append(job)
        if len(lane.jobs) == 1:
            lane.began_ns = now
            self._begin_job(unit, name, lane, now)

    def _begin_job(self, unit: SimUnit, name: str, lane: Lane, now: int) -> None:
        job = lane.jobs[0]
        kind = type(job)
        paced = self._paced.get(kind)
        if paced is None:
            paced = self._paced[kind] = bool(getattr(kind, "paced", False))
        if paced and unit.tuning.hang:
            lane.ends_ns = None
            return
        assert unit.worker is not None  # a lane exists only while its process does
        duration = float(unit.worker.cost_ns(job))
        share = unit.cpu_share
        if paced:
            if share is not None and share < self._options.compute_share:
                duration *= self._options.compute_share / share
            duration = duration * unit.tuning.step_factor
            if self._options.step_cv:
                # Bounded, so that no draw gives a step of no length at all.
                duration *= max(0.2, unit.random.gauss(1.0, self._options.step_cv))
            duration += self._jitter_ns * unit.random.random()
        elif share is not None and share < 1:
            duration /= share
        self._schedule_end(unit, name, lane, now + int(duration))

    def _schedule_end(self, unit: SimUnit, name: str, lane: Lane, ends_ns: int) -> None:
        lane.ends_ns = ends_ns
        self._loop.at(ends_ns, self._job_ends, (unit, unit.life, name, lane, lane.ticket))

    def _job_ends(self, now: int, entry: tuple[SimUnit, int, str, Lane, int]) -> None:
        unit, life, name, lane, ticket = entry
        if unit.life != life or lane.ticket != ticket or unit.frozen:
            return
        if unit.blocked:
            unit.inbox.append((self._job_ends, entry))
        else:
            self._finish(unit, name, lane, now)

    def _finish(self, unit: SimUnit, name: str, lane: Lane, now: int) -> None:
        job, call = lane.jobs.popleft(), lane.calls.popleft()
        began_ns, lane.ends_ns = lane.began_ns, None
        assert unit.worker is not None
        try:
            result = unit.worker.run(job) if call is None else call()
        except Exception as error:
            self._crash_log(unit.name, "".join(traceback.format_exception(error)))
            event: Any = WorkFailed(job, f"{type(error).__name__}: {error}")
        else:
            if self._paced[type(job)]:
                # Of a step paced by absolute deadlines, what comes before it is no longer its own.
                began_ns = min(began_ns + self._gap_ns, now)
                began = began_ns if unit.skew is None else unit.skew.local_ns(began_ns)
                # Results are frozen for their readers; this one was made for us a moment ago, and
                # a worker without a clock could not fill it in.
                msgspec.structs.force_setattr(result, "began_at_ns", began)
            event = WorkDone(job, result)
        life = unit.life
        if lane.jobs:
            lane.began_ns = now
            self._begin_job(unit, name, lane, now)
        if unit.life == life:
            self.feed(unit, event, now)

    def _draw(self, unit: SimUnit, range_ms: tuple[float, float]) -> int:
        low, high = range_ms
        return round((low + (high - low) * unit.random.random()) * 1e6)


def _bound(bind: Callable[[Any], Callable[[], Any]], job: Any) -> Callable[[], Any]:
    """``job`` as a call; one that cannot be bound fails in its lane, as with a real unit."""
    try:
        return bind(job)
    except Exception as error:
        return partial(_failed, error)


def _failed(error: Exception) -> NoReturn:
    raise error


class _Outlet:
    """The way to a unit's links, as the transport of a real unit has it (``targets.live``)."""

    def __init__(self, unit: SimUnit, loop: Loop) -> None:
        self._unit = unit
        self._loop = loop

    def start(self) -> None:
        """Links dial by themselves."""

    def send(self, peer: str, message: Any) -> None:
        """Hand ``message`` to the link to ``peer``; dropped when there is none."""
        end = self._unit.peers.get(peer)
        if end is not None:
            end[0].send(end[1], message, self._loop.now_ns())

    def disconnect(self, peer: str, why: str) -> None:
        """Give the link to ``peer`` up."""
        end = self._unit.peers.get(peer)
        if end is not None:
            end[0].give_up(end[1], why)

    def close(self) -> None:
        """Links end with the process."""


def _skew(options: SimOptions, unit: str) -> Skew | None:
    offset = options.clock_skew_ms.get(unit, 0.0)
    ppm = options.clock_drift_ppm.get(unit, 0.0)
    return Skew(round(offset * 1e6), ppm) if offset or ppm else None
