"""The learner as a script of inputs: no sleep, no network; what it does and what it says."""

from __future__ import annotations

from typing import Any

from harness import events as ev
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
    Note,
    Received,
    Send,
    Started,
    Stop,
    StopAsked,
    Tick,
    Work,
    WorkDone,
    WorkFailed,
)
from targets.diloco import messages as m
from targets.diloco.joining import STATE_NS
from targets.diloco.learner import Learner
from targets.diloco.params import DilocoParams

MS = 1_000_000
PAYLOAD = m.Payload("f32", 32, "d")


class Script:
    """A learner that has started, and what it answered last."""

    def __init__(self, **params: Any) -> None:
        settings: dict[str, Any] = {"fragments": 2, "sync_every": 2}
        self.params = DilocoParams(**{**settings, **params})
        self.learner = Learner("learner-0", self.params, layout="L")
        self.now = 0
        self.done: list[Effect] = []
        self.do(Started(1))

    def do(self, event: Any, ms: float = 0) -> list[Effect]:
        self.now += int(ms * MS)
        self.done = self.learner.handle(event, self.now)
        return self.done

    def hear(self, message: Any, ms: float = 0) -> list[Effect]:
        return self.do(Received("syncer", message), ms)

    def sent(self, kind: type[Any]) -> list[Any]:
        return [e.message for e in self.done if isinstance(e, Send) and isinstance(e.message, kind)]

    def jobs(self) -> list[Any]:
        return [e.job for e in self.done if isinstance(e, Work)]

    def noted(self, kind: type[Any]) -> list[Any]:
        return [e.event for e in self.done if isinstance(e, Note) and isinstance(e.event, kind)]

    # --- common turns ---------------------------------------------------------------------------

    def welcome(self, send_state: bool, ms: float = 0) -> None:
        self.hear(m.Welcome(1, (0, 0), send_state, (), {"syncer": 0}), ms)

    def fragment(
        self, index: int, version: int, clock: int, ms: float = 0, told: int | None = None
    ) -> list[Effect]:
        vector = {"syncer": clock if told is None else told}
        return self.hear(m.Fragment(index, version, clock, PAYLOAD, vector), ms)

    def join(self, version: int = 0, clock: int = 0, told: int | None = None) -> m.TrainStep:
        """Connect, get the state, load it; the first step that is asked for."""
        self.do(Connected("syncer"))
        self.welcome(send_state=True)
        for index in range(self.params.fragments):
            self.fragment(index, version, clock, told=told)
        (load,) = self.jobs()
        self.do(WorkDone(load, m.Loaded({"params": "x"})))
        (step,) = self.jobs()
        assert isinstance(step, m.TrainStep)
        return step

    def finish(self, step: m.TrainStep, tokens: int = 100, ms: float = 100) -> list[Any]:
        """The step ends after ``ms``; the jobs that follow."""
        began = self.now
        self.now += int(ms * MS)
        self.do(WorkDone(step, m.StepResult(tokens, began, 5 * MS, 100 * MS, 1.5)))
        return self.jobs()


# --- joining ------------------------------------------------------------------------------------


def test_says_hello_without_state_and_does_not_train() -> None:
    s = Script()
    s.do(Connected("syncer"))
    (hello,) = s.sent(m.Hello)
    assert (hello.incarnation, hello.layout, hello.versions) == (1, "L", None)
    assert s.jobs() == []


def test_trains_only_once_all_fragments_are_loaded() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    assert s.noted(ev.LinkUp)[0].peer == "syncer"
    assert s.fragment(0, 0, 0) == []
    s.fragment(1, 0, 0)
    (load,) = s.jobs()
    assert load == m.LoadAll((PAYLOAD, PAYLOAD))
    s.do(WorkDone(load, m.Loaded({"params": "x"})))
    (joined,) = s.noted(ev.Joined)
    assert (joined.source, joined.inner, joined.clock, joined.step) == ("initial", "fresh", 0, 0)
    assert (joined.nbytes, joined.digests) == (64, {"params": "x"})
    assert s.jobs() == [m.TrainStep(1)]


def test_state_that_was_trained_comes_from_the_syncer() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    s.fragment(1, 3, 7)
    s.fragment(0, 2, 6)
    s.do(WorkDone(s.jobs()[0], m.Loaded({})))
    (joined,) = s.noted(ev.Joined)
    assert (joined.source, joined.clock, joined.step) == ("syncer", 7, 0)


def test_half_a_state_is_none_after_a_broken_link() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    s.fragment(0, 0, 0)
    s.do(Disconnected("syncer", "reset"))
    s.do(Connected("syncer"))
    assert s.sent(m.Hello)[0].versions is None
    s.welcome(send_state=True)
    assert s.fragment(1, 0, 0) == []
    s.fragment(0, 0, 0)
    assert len(s.jobs()) == 1


def test_a_link_that_breaks_while_loading_does_not_start_over() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    s.fragment(0, 2, 6)
    s.fragment(1, 3, 7)
    (load,) = s.jobs()
    s.do(Disconnected("syncer", "reset"))
    s.do(Connected("syncer"))
    assert s.sent(m.Hello)[0].versions == (2, 3)
    s.do(WorkDone(load, m.Loaded({})))
    assert s.jobs() == [m.TrainStep(1)]


def test_fragments_that_come_while_loading_are_adopted_before_the_first_step() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    s.fragment(0, 0, 0)
    s.fragment(1, 0, 0)
    (load,) = s.jobs()
    assert s.fragment(1, 1, 1) == []
    s.do(WorkDone(load, m.Loaded({})))
    assert s.jobs() == [m.Adopt(1, 1, PAYLOAD), m.TrainStep(1)]


def test_no_welcome_in_time_gives_the_link_up() -> None:
    s = Script(silence_ms_max=1500)
    s.do(Connected("syncer"))
    s.hear(m.Heartbeat(1, True, {}), 1400)  # not silent, but no welcome either
    assert s.learner.deadline_ns() is not None
    s.do(Tick(), 100)
    (given_up,) = [e for e in s.done if isinstance(e, Disconnect)]
    assert given_up.why == "syncer did not send a welcome in time"


def test_a_state_that_does_not_come_gives_the_link_up() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    s.fragment(0, 0, 0, 10)
    s.now = STATE_NS - MS
    s.hear(m.Heartbeat(1, True, {}))
    s.do(Tick(), 11)
    (given_up,) = [e for e in s.done if isinstance(e, Disconnect)]
    assert given_up.why == "syncer did not send the rest of the state in time"


def test_a_refused_learner_ends_and_says_why() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.hear(m.Refused("layout: other", {}))
    assert s.noted(ev.UnitEnded)[0].why == "syncer refused: layout: other"
    assert s.done[-1] == Stop("syncer refused: layout: other", 1)
    assert s.do(Tick()) == []


# --- stepping -----------------------------------------------------------------------------------


def test_every_step_is_journalled_reported_and_followed_by_the_next() -> None:
    s = Script()
    step = s.join()
    assert s.finish(step, tokens=100) == [m.TrainStep(2)]
    (note,) = s.noted(ev.Step)
    assert (note.step, note.tokens, note.loss) == (1, 100, 1.5)
    assert (note.t_ns - note.began_at_ns, note.nominal_ns) == (100 * MS, 100 * MS)
    s.finish(m.TrainStep(2), tokens=50, ms=120)
    (report,) = s.sent(m.Report)
    assert (report.step, report.c_steps, report.c_tokens) == (2, (2, 2), (150, 150))
    assert report.step_ns == 120 * MS
    assert report.clock["learner-0"] == 2


def test_training_goes_on_without_a_link() -> None:
    s = Script()
    step = s.join()
    s.do(Disconnected("syncer", "reset"))
    assert s.noted(ev.LinkDown)[0].why == "reset"
    assert s.finish(step) == [m.TrainStep(2)]
    assert s.sent(m.Report) == []
    assert s.finish(m.TrainStep(2)) == [m.TrainStep(3)]


def test_received_fragments_are_adopted_between_steps_and_counters_restart() -> None:
    s = Script()
    step = s.join()
    s.finish(step)
    assert s.fragment(1, 1, 1, 10) == []
    assert s.finish(m.TrainStep(2)) == [m.Adopt(1, 1, PAYLOAD), m.TrainStep(3)]
    s.do(WorkDone(m.Adopt(1, 1, PAYLOAD), None))
    (adopted,) = s.noted(ev.Adopted)
    assert (adopted.fragment, adopted.version, adopted.clock, adopted.step) == (1, 1, 1, 2)
    s.finish(m.TrainStep(3), tokens=70)
    (report,) = s.sent(m.Report)
    assert (report.c_steps, report.c_tokens) == ((3, 1), (270, 70))


def test_of_two_versions_only_the_newest_is_adopted() -> None:
    s = Script()
    step = s.join()
    s.fragment(0, 1, 2)
    s.fragment(0, 2, 4)
    s.fragment(0, 1, 2)
    assert s.finish(step)[0] == m.Adopt(0, 2, PAYLOAD)
    s.do(WorkDone(m.Adopt(0, 2, PAYLOAD), None))
    s.fragment(0, 2, 4)  # sent again after a reconnect
    assert s.finish(m.TrainStep(2)) == [m.TrainStep(3)]


def test_an_adoption_that_fails_changes_no_counter() -> None:
    s = Script()
    step = s.join()
    s.fragment(0, 1, 2)
    adopt, _ = s.finish(step)
    s.do(WorkFailed(adopt, "bad bytes"))
    assert s.noted(ev.UnitNote)[0].detail == "fragment 0 version 1: bad bytes"
    assert s.learner.holding.versions == [0, 0]
    assert s.learner.holding.since == [0, 0]


def test_a_step_that_fails_ends_the_learner() -> None:
    s = Script()
    step = s.join()
    s.do(WorkFailed(step, "out of memory"))
    assert s.done[-1] == Stop("TrainStep failed: out of memory", 1)


# --- pulls --------------------------------------------------------------------------------------


def pull(request: int, fragment: int) -> m.Pull:
    return m.Pull(request, fragment, {"syncer": 1})


def test_a_pull_is_answered_with_the_counters_of_its_own_instant() -> None:
    s = Script()
    step = s.join()
    s.finish(step, tokens=100)
    s.hear(pull(9, 1))
    (work,) = [e for e in s.done if isinstance(e, Work)]
    assert (work.job, work.lane) == (m.Read(1, 9), "io")
    s.finish(m.TrainStep(2), tokens=100)  # a step ends while the fragment is read
    s.do(WorkDone(m.Read(1, 9), PAYLOAD))
    (push,) = s.sent(m.Push)
    assert (push.request, push.fragment, push.payload) == (9, 1, PAYLOAD)
    assert (push.since_step, push.step, push.c_steps, push.c_tokens) == (0, 1, 1, 100)
    assert (push.base_version, push.base_clock) == (0, 0)
    assert push.clock["learner-0"] == 2


def test_no_step_since_adopting_answers_empty_and_at_once() -> None:
    s = Script()
    step = s.join()
    s.fragment(1, 1, 1)
    s.finish(step)
    s.do(WorkDone(m.Adopt(1, 1, PAYLOAD), None))
    s.hear(pull(9, 1))
    (push,) = s.sent(m.Push)
    assert (push.c_steps, push.c_tokens, push.payload.nbytes) == (0, 0, 0)
    assert s.jobs() == []


def test_the_same_pull_twice_is_one_read() -> None:
    s = Script()
    s.finish(s.join())
    s.hear(pull(9, 1))
    s.hear(pull(9, 1))
    assert s.jobs() == []


def test_an_answer_for_a_link_that_is_gone_is_dropped() -> None:
    s = Script()
    s.finish(s.join())
    s.hear(pull(9, 1))
    s.do(Disconnected("syncer", "reset"))
    s.do(Connected("syncer"))
    s.do(WorkDone(m.Read(1, 9), PAYLOAD))
    assert s.sent(m.Push) == []


def test_a_pull_before_the_state_is_not_answered() -> None:
    s = Script()
    s.do(Connected("syncer"))
    s.welcome(send_state=True)
    assert s.hear(pull(9, 1)) == []


def test_a_read_that_fails_is_noted() -> None:
    s = Script()
    s.finish(s.join())
    s.hear(pull(9, 1))
    s.do(WorkFailed(m.Read(1, 9), "gone"))
    assert s.noted(ev.UnitNote)[0].what == "read-failed"
    assert s.sent(m.Push) == []


# --- links --------------------------------------------------------------------------------------


def test_a_silent_syncer_is_given_up_and_training_goes_on() -> None:
    s = Script(silence_ms_max=1500)
    step = s.join()
    s.do(Tick(), 1500)
    assert s.noted(ev.LinkDown)[0].why == "heard nothing for 1500 ms (bound 1500 ms)"
    assert [e.peer for e in s.done if isinstance(e, Disconnect)] == ["syncer"]
    assert s.hear(pull(9, 1)) == []  # of the connection that was given up
    assert s.finish(step) == [m.TrainStep(2)]


def test_comes_back_with_its_versions_and_step() -> None:
    s = Script()
    s.finish(s.join(version=4, clock=8))
    s.do(Disconnected("syncer", "reset"))
    s.do(Connected("syncer"))
    (hello,) = s.sent(m.Hello)
    assert (hello.versions, hello.step, hello.incarnation) == ((4, 4), 1, 1)
    s.welcome(send_state=False)
    assert s.sent(m.Report) == []
    assert s.noted(ev.LinkUp)[0].peer == "syncer"


def test_heartbeats_both_ways() -> None:
    s = Script()
    s.join()
    s.do(Tick(), 250)
    (beat,) = s.sent(m.Heartbeat)
    s.hear(m.Heartbeat(beat.nonce, True, {}), 2)
    assert s.noted(ev.Heard)[0].rtt_ns == 2 * MS
    s.hear(m.Heartbeat(77, False, {}))
    (echo,) = s.sent(m.Heartbeat)
    assert (echo.nonce, echo.echo) == (77, True)


# --- stopping -----------------------------------------------------------------------------------


def test_stops_at_once_when_nobody_waits_for_it() -> None:
    s = Script()
    s.join()
    s.do(StopAsked(2000 * MS))
    assert s.noted(ev.UnitEnded)[0].why == "asked to stop"
    assert s.done[-1] == Stop("asked to stop", 0)


def test_answers_an_outstanding_pull_before_it_stops() -> None:
    s = Script()
    s.finish(s.join())
    s.hear(pull(9, 1))
    s.do(StopAsked(2000 * MS))
    assert s.done == []
    assert s.finish(m.TrainStep(2)) == []  # no further step
    s.do(WorkDone(m.Read(1, 9), PAYLOAD))
    assert len(s.sent(m.Push)) == 1
    assert s.done[-1] == Stop("asked to stop", 0)


def test_does_not_wait_for_ever_to_stop() -> None:
    s = Script()
    s.finish(s.join())
    s.hear(pull(9, 1))
    s.do(StopAsked(200 * MS))
    assert s.learner.deadline_ns() == s.now + 100 * MS
    s.do(Tick(), 100)
    assert s.done[-1] == Stop("asked to stop, 1 pulls unanswered", 0)


# --- blocking -----------------------------------------------------------------------------------


def test_blocked_until_the_due_fragment_comes() -> None:
    s = Script(blocking=True)  # fragment 1 is due at odd steps, fragment 0 at even ones
    step = s.join()
    assert s.finish(step) == []
    assert len(s.sent(m.Report)) == 1
    s.fragment(1, 1, 1, 40)
    assert s.jobs() == [m.Adopt(1, 1, PAYLOAD), m.TrainStep(2)]
    (waited,) = s.noted(ev.Waited)
    assert waited.t_ns - waited.began_at_ns == 40 * MS
    assert waited.why == "for the merge due at step 1: the merge came"


def test_another_fragment_does_not_unblock() -> None:
    s = Script(blocking=True)
    s.finish(s.join())
    s.fragment(0, 1, 0)
    assert s.jobs() == [m.Adopt(0, 1, PAYLOAD)]


def test_a_long_wait_is_journalled_in_pieces() -> None:
    s = Script(blocking=True)
    s.finish(s.join())
    began = s.now
    s.hear(m.Heartbeat(1, True, {}), 1000)
    s.do(Tick())
    s.fragment(1, 1, 1, 300)
    second = s.noted(ev.Waited)[0]
    assert (second.began_at_ns, second.t_ns) == (began + 1000 * MS, began + 1300 * MS)


def test_blocked_it_reports_again_after_a_reconnect() -> None:
    s = Script(blocking=True)
    s.finish(s.join())
    s.do(Disconnected("syncer", "reset"))
    s.do(Connected("syncer"))
    s.welcome(send_state=False)
    (report,) = s.sent(m.Report)
    assert report.step == 1


def test_blocking_counts_local_steps_as_global_ones() -> None:
    s = Script(blocking=True)
    assert s.join(version=3, clock=6, told=7) == m.TrainStep(8)
    assert s.learner.holding.step == 7


def test_stopped_while_waiting_says_that_it_waited() -> None:
    s = Script(blocking=True)
    s.finish(s.join())
    s.do(StopAsked(10**9), 30)
    assert s.noted(ev.Waited)[0].why.endswith("stopped while waiting")
    assert isinstance(s.done[-1], Stop)


# --- changes instead of fragments ---------------------------------------------------------------


def change(version: int, clock: int) -> m.Fragment:
    payload = m.Payload("int4", 6, f"v{version}")
    return m.Fragment(1, version, clock, payload, {"syncer": clock})


def test_changes_are_adopted_one_after_the_other_and_a_whole_fragment_replaces_them() -> None:
    s = Script()
    step = s.join()
    for version in (1, 2):
        s.hear(change(version, 2 * version))
    jobs = s.finish(step)
    assert [job.version for job in jobs[:-1]] == [1, 2]
    for job in jobs[:-1]:
        s.do(WorkDone(job, None))
    s.hear(change(3, 6))
    s.fragment(1, 4, 8)
    assert [job.version for job in s.finish(jobs[-1])[:-1]] == [4]


def test_a_change_of_something_else_makes_the_link_anew_and_asks_for_the_whole() -> None:
    s = Script()
    step = s.join(version=3, clock=6)
    s.hear(change(4, 8))
    adopt, following = s.finish(step)
    s.do(WorkFailed(adopt, "checksum: digest is a where b was promised"))
    assert [n.what for n in s.noted(ev.UnitNote)] == ["adopt-failed"]
    assert [e for e in s.done if isinstance(e, Disconnect)]
    s.do(Connected("syncer"))
    assert s.sent(m.Hello)[0].versions == (3, 0)
    s.welcome(send_state=False)
    s.fragment(1, 4, 8)  # the same version, whole
    assert [job.version for job in s.finish(following)[:-1]] == [4]
