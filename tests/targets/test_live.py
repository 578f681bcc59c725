"""The wall-clock driver, on nodes made for the purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.base import Tuning
from harness.events import Event, UnitEnded, UnitNote
from targets import live
from targets.base import (
    Connected,
    Disconnect,
    Effect,
    Input,
    Note,
    Received,
    Save,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.unit_config import UnitConfig
from targets.unit_files import StateDir

React = Callable[[Input, int], list[Effect]]


class ScriptedNode:
    """Reacts as the test says and remembers what it was told."""

    def __init__(self, react: React = lambda event, now: []) -> None:
        self.react = react
        self.seen: list[Input] = []
        self.deadline: int | None = None
        self.inside = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        assert self.inside == 0, "two inputs at a time"
        self.inside += 1
        self.seen.append(event)
        effects = self.react(event, now_ns)
        self.inside -= 1
        return effects

    def deadline_ns(self) -> int | None:
        return self.deadline


class Echo:
    """A worker that returns its job, or raises it when it is an exception."""

    def run(self, job: Any) -> Any:
        if isinstance(job, Exception):
            raise job
        return job() if callable(job) else job

    def cost_ns(self, job: Any) -> int:
        return 0


class FakeTransport:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def send(self, peer: str, message: Any) -> None:
        self.sent.append((peer, message))

    def disconnect(self, peer: str, why: str) -> None:
        self.calls.append(f"disconnect {peer}: {why}")

    def close(self) -> None:
        self.calls.append("close")


class Rig:
    """A driver with everything around it faked."""

    def __init__(self, path: Path, node: ScriptedNode, worker: Any = None) -> None:
        self.node = node
        self.transport = FakeTransport()
        self.events: list[Event] = []
        self.tuning = Tuning()
        config = UnitConfig(
            run="r",
            token="t",
            unit="u",
            role="learner",
            target="x",
            seed=1,
            params={},
            state_dir=str(path),
            control_file=str(path / "control.json"),
            cache_dir="",
        )
        stopping = threading.Event()
        unit = live.Unit(config, 1, lambda: self.tuning, stopping, self.note)
        parts = live.Parts(node, worker or Echo(), lambda driver: self.transport)
        self.state = StateDir(path)
        self.driver = live.Driver(unit, parts, self.events.append, self.state)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def note(self, what: str, detail: str) -> None:
        self.events.append(UnitNote(t_ns=0, unit="u", incarnation=1, what=what, detail=detail))

    def start(self) -> None:
        self._thread.start()
        until("started", lambda: "start" in self.transport.calls)

    def _run(self) -> None:
        self.code = self.driver.run({"k": 1})

    def join(self) -> int:
        self._thread.join(10)
        assert self.code is not None, "the driver did not end"
        return self.code

    def whys(self) -> list[str]:
        return [e.why for e in self.events if isinstance(e, UnitEnded)]


def until(what: str, condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, f"not within {timeout_s} s: {what}"
        time.sleep(0.001)


def stopping(event: Input, now: int) -> list[Effect]:
    return [Stop("asked", 0)] if isinstance(event, StopAsked) else []


def test_effects_happen_in_order_and_a_save_is_on_disk_before_what_follows(tmp_path: Path) -> None:
    node = ScriptedNode()
    rig = Rig(tmp_path, node)
    order: list[Any] = []
    rig.transport.send = lambda peer, message: order.append((message, rig.state.load()))  # type: ignore[method-assign]

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Connected):
            return [Send("p", 1), Save("key", {"v": 2}), Send("p", 3), Disconnect("p", "why")]
        return stopping(event, now)

    node.react = react
    rig.start()
    rig.driver.connected("p")
    assert order == [(1, {}), (3, {"key": {"v": 2}})]
    assert rig.transport.calls == ["start", "disconnect p: why"]
    rig.driver.ask_to_stop()
    assert rig.join() == 0
    assert node.seen[0] == Started(1, {"k": 1})
    assert rig.transport.calls[-1] == "close"
    assert rig.whys() == []  # the node said its own goodbye


def test_jobs_of_a_lane_run_in_order_and_lanes_run_side_by_side(tmp_path: Path) -> None:
    gate = threading.Event()
    node = ScriptedNode()

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Connected):
            return [Work(gate.wait), Work("second"), Work("read", lane="io")]
        return stopping(event, now)

    node.react = react
    rig = Rig(tmp_path, node)
    rig.start()
    rig.driver.connected("p")
    until("the read passed the blocked step", lambda: WorkDone("read", "read") in node.seen)
    assert not any(isinstance(e, WorkDone) and e.job == "second" for e in node.seen)
    gate.set()
    until("the lane went on", lambda: WorkDone("second", "second") in node.seen)
    done = [e.job for e in node.seen if isinstance(e, WorkDone)]
    assert done == ["read", gate.wait, "second"]
    rig.driver.ask_to_stop()
    rig.join()


def test_a_read_sees_the_state_that_was_published_when_it_was_asked_for(tmp_path: Path) -> None:
    class Counting:
        """Its state counts the main-lane jobs; reads answer with what was published last."""

        def __init__(self) -> None:
            self.state = self.published = 0
            self.tuning = Tuning()
            self.slow = threading.Event()

        def compute(self, job: Any) -> int:
            self.state += 1
            return self.state

        def publish(self) -> None:
            self.published = self.state

        def bind(self, job: Any) -> Callable[[], Any]:
            if self.published == 0:
                raise RuntimeError("nothing published")
            bound = (self.published, self.tuning.update)
            return lambda: self.slow.wait() and bound

        def cost_ns(self, job: Any) -> int:
            return 0

    worker = Counting()
    steps: list[int] = []

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Connected):
            return [Work("too early", lane="io"), Work("step")]
        if isinstance(event, WorkDone) and event.job == "step":
            steps.append(event.result)
            assert worker.published == event.result  # published before the node hears of it
            if event.result == 3:
                return [Work("read", lane="io"), Work("step")]
            return [Work("step")] if event.result < 5 else []
        return stopping(event, now)

    node = ScriptedNode(react)
    rig = Rig(tmp_path, node, worker)
    rig.tuning = Tuning(update="nan")
    rig.start()
    rig.driver.connected("p")
    until("all steps", lambda: steps == [1, 2, 3, 4, 5])
    worker.slow.set()
    until("the read", lambda: WorkDone("read", (3, "nan")) in node.seen)
    failed = [e for e in node.seen if isinstance(e, WorkFailed)]
    assert [(e.job, e.why) for e in failed] == [("too early", "RuntimeError: nothing published")]
    rig.driver.ask_to_stop()
    rig.join()


def test_what_a_step_tells_goes_out_in_order_while_the_next_one_computes(tmp_path: Path) -> None:
    told: list[Any] = []
    gate, begun = threading.Event(), threading.Event()

    def second() -> bool:
        begun.set()
        return gate.wait(10)

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Connected):
            return [Work("first")]
        if isinstance(event, Received):
            return [Send("p", "after")]
        if isinstance(event, WorkDone) and event.job == "first":
            return [Note(said), Send("p", "report"), Work("between"), Work(second)]
        if isinstance(event, WorkDone) and event.job == "between":
            assert told == [], "told before the last job began"
        if isinstance(event, WorkDone) and event.job is second:
            return [Send("p", "idle")]
        return stopping(event, now)

    said = UnitNote(t_ns=1, unit="u", incarnation=1, what="w")
    rig = Rig(tmp_path, ScriptedNode(react))
    rig.transport.send = lambda peer, message: told.append(message)  # type: ignore[method-assign]
    rig.driver._emit = told.append
    rig.start()
    rig.driver.connected("p")
    assert begun.wait(10), "the second job did not begin"
    until("told while it runs", lambda: told == [said, "report"])
    rig.driver.received("p", "m")
    assert told == [said, "report", "after"]
    gate.set()
    until("nothing follows, so it is told at once", lambda: told[-1] == "idle")
    rig.driver.ask_to_stop()
    rig.join()


def test_nothing_overtakes_what_was_put_off_and_a_stop_loses_none_of_it(tmp_path: Path) -> None:
    told: list[Any] = []

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Connected):
            return [Work("first")]
        if isinstance(event, WorkDone):
            after: list[Effect] = [
                Save("key", {"v": 1}),
                Send("p", "saved"),
                Work("more"),
                Stop("done", 0),
            ]
            return [Send("p", "report"), *after]
        return []

    rig = Rig(tmp_path, ScriptedNode(react))
    rig.transport.send = lambda peer, message: told.append((message, rig.state.load()))  # type: ignore[method-assign]
    rig.start()
    rig.driver.connected("p")
    assert rig.join() == 0
    assert told == [("report", {}), ("saved", {"key": {"v": 1}})]


def test_a_job_that_fails_is_told_to_the_node(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = ScriptedNode()
    bad = ValueError("no such fragment")
    node.react = lambda event, now: (
        [Work(bad)] if isinstance(event, Connected) else stopping(event, now)
    )
    rig = Rig(tmp_path, node)
    rig.start()
    rig.driver.connected("p")
    until("told", lambda: WorkFailed(bad, "ValueError: no such fragment") in node.seen)
    assert "no such fragment" in capfd.readouterr().err
    rig.driver.ask_to_stop()
    assert rig.join() == 0


def test_the_node_gets_its_tick_also_when_the_deadline_moves_closer(tmp_path: Path) -> None:
    node = ScriptedNode()

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Received):
            node.deadline = now
        if isinstance(event, Tick):
            node.deadline = None
        return stopping(event, now)

    node.react = react
    node.deadline = time.monotonic_ns() + 3_600_000_000_000
    rig = Rig(tmp_path, node)
    rig.start()
    rig.driver.received("p", "m")
    until("ticked", lambda: node.seen[-1] == Tick())
    assert node.seen.count(Tick()) == 1
    rig.driver.ask_to_stop()
    rig.join()


def test_a_node_that_does_not_end_in_its_grace_time_is_ended(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ScriptedNode())
    rig.start()
    rig.driver.ask_to_stop(grace_s=0.01)
    assert rig.join() == 0
    assert rig.whys() == ["asked to stop; the grace time was over"]


def test_a_mistake_in_the_node_ends_the_unit_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = ScriptedNode()

    def react(event: Input, now: int) -> list[Effect]:
        if isinstance(event, Connected):
            raise KeyError("fragment 7")
        return []

    node.react = react
    rig = Rig(tmp_path, node)
    rig.start()
    rig.driver.connected("p")
    assert rig.join() == live.FATAL
    assert rig.whys() == ["fatal, handling Connected: KeyError: 'fragment 7'"]
    assert "Traceback" in capfd.readouterr().err


def test_nothing_reaches_a_node_after_it_stopped(tmp_path: Path) -> None:
    node = ScriptedNode(lambda event, now: [Stop("done", 3)] if type(event) is Connected else [])
    rig = Rig(tmp_path, node)
    rig.start()
    rig.driver.connected("p")
    assert rig.join() == 3
    seen = len(node.seen)
    rig.driver.received("p", "late")
    rig.driver.noted("frame-refused", "late")
    assert len(node.seen) == seen
    assert rig.events == []


def test_notes_of_the_node_are_emitted(tmp_path: Path) -> None:
    said = UnitNote(t_ns=1, unit="u", incarnation=1, what="w")
    node = ScriptedNode(lambda event, now: [Note(said)] if type(event) is Connected else [])
    rig = Rig(tmp_path, node)
    rig.driver.connected("p")
    assert rig.events == [said]


def test_parts_of_a_message_are_told_to_nodes_that_want_to_know(tmp_path: Path) -> None:
    class Listening(ScriptedNode):
        parts: list[tuple[str, bool]]

        def arriving(self, peer: str, now_ns: int) -> None:
            self.parts.append((peer, now_ns > 0))

    node = Listening()
    node.parts = []
    Rig(tmp_path / "a", node).driver.arriving("syncer")
    assert node.parts == [("syncer", True)]
    plain = ScriptedNode()
    Rig(tmp_path / "b", plain).driver.arriving("syncer")
    assert plain.seen == []
