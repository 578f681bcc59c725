"""The syncer as a script of inputs: no sleep, no network; what it does and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from harness import events as ev
from targets.base import (
    Connected,
    Disconnect,
    Disconnected,
    Effect,
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
from targets.diloco import messages as m
from targets.diloco.params import DilocoParams
from targets.diloco.syncer import Syncer

MS = 1_000_000
PAYLOAD = m.Payload("f32", 32, "d")


class Script:
    """A syncer that has started, and what it answered last."""

    def __init__(
        self,
        saved: dict[str, Any] | None = None,
        life: int = 1,
        restored: bool = True,
        **params: Any,
    ) -> None:
        settings: dict[str, Any] = {
            "learners": 3,
            "fragments": 2,
            "sync_every": 2,
            "grace": False,
        }
        self.params = DilocoParams(**{**settings, **params})
        names = [self.params.learner_name(i) for i in range(self.params.learners)]
        self.syncer = Syncer("syncer", self.params, names, "L", elements=[8, 8])
        self.now = 0
        self.done: list[Effect] = []
        self.notes: list[Any] = []
        self.do(Started(life, saved or {}))
        for job in self.jobs(m.Restore) if restored else ():
            self.do(WorkDone(job, None))

    def do(self, event: Any, ms: float = 0) -> list[Effect]:
        """Give ``event`` after ``ms`` more milliseconds; the effects are also in ``done``."""
        self.now += int(ms * MS)
        self.done = self.syncer.handle(event, self.now)
        self.notes += [e.event for e in self.done if isinstance(e, Note)]
        return self.done

    def say(self, index: int, message: Any, ms: float = 0) -> list[Effect]:
        return self.do(Received(f"learner-{index}", message), ms)

    def sent(self, kind: type[Any]) -> dict[str, Any]:
        return {
            e.peer: e.message
            for e in self.done
            if isinstance(e, Send) and isinstance(e.message, kind)
        }

    def jobs(self, kind: type[Any]) -> list[Any]:
        return [e.job for e in self.done if isinstance(e, Work) and isinstance(e.job, kind)]

    def noted(self, kind: type[Any]) -> list[Any]:
        return [e.event for e in self.done if isinstance(e, Note) and isinstance(e.event, kind)]

    # --- common turns ---------------------------------------------------------------------------

    def hello(
        self,
        index: int,
        versions: tuple[int, ...] | None = (0, 0),
        life: int = 1,
        layout: str = "L",
        step: int = 0,
    ) -> list[Effect]:
        self.do(Connected(f"learner-{index}"))
        return self.say(index, m.Hello(life, layout, step, versions, {}))

    def join(self, *indices: int) -> None:
        for index in indices:
            self.hello(index, (0,) * self.params.fragments)

    def report(self, index: int, step: int, ms: float = 0, life: int = 1) -> list[Effect]:
        clock = {f"learner-{index}": step}
        report = m.Report(life, step, (step, step), (100 * step, 100 * step), 100 * MS, clock)
        return self.say(index, report, ms)

    def push(self, index: int, pull: m.Pull, ms: float = 0, **changes: Any) -> list[Effect]:
        fields: dict[str, Any] = {
            "incarnation": 1,
            "request": pull.request,
            "fragment": pull.fragment,
            "since_step": 0,
            "step": 1,
            "base_version": 0,
            "base_clock": 0,
            "payload": PAYLOAD,
            "clock": {},
        }
        fields |= changes
        fields.setdefault("c_steps", fields["step"] - fields["since_step"])
        fields.setdefault("c_tokens", 100 * fields["c_steps"])
        return self.say(index, m.Push(**fields), ms)

    def merge(self, job: m.Merge, ms: float = 0, poisoned: dict[str, str] | None = None) -> None:
        sound = len(job.inputs) - len(poisoned or {}) >= self.params.quorum
        payload = m.Payload("f32", 32, f"v{job.version}") if sound else None
        result = m.MergeResult(payload, poisoned or {}, f"v{job.version}", True, "rda")
        self.do(WorkDone(job, result), ms)

    def whole_step(self, *pushes: tuple[int, dict[str, Any]], ms: float = 0) -> None:
        """Reports are in and pulls sent: answer them and finish the merge."""
        pull = next(iter(self.sent(m.Pull).values()))
        for index, changes in pushes:
            self.push(index, pull, **changes)
        (job,) = self.jobs(m.Merge)
        self.merge(job, ms)


# --- joining ------------------------------------------------------------------------------------


def test_a_newcomer_is_welcomed_and_gets_every_fragment() -> None:
    s = Script()
    s.hello(0, versions=None)
    assert s.sent(m.Welcome)["learner-0"].send_state
    assert s.noted(ev.LinkUp)[0].peer == "learner-0"
    (job,) = s.jobs(m.ReadAll)
    s.do(WorkDone(job, m.AllFragments((PAYLOAD, PAYLOAD))))
    fragments = [e.message for e in s.done if isinstance(e, Send)]
    assert [(f.fragment, f.version, f.committed) for f in fragments] == [(0, 0, 0), (1, 0, 0)]


def test_one_that_has_state_gets_none() -> None:
    s = Script()
    s.hello(0)
    assert not s.sent(m.Welcome)["learner-0"].send_state
    assert s.jobs(m.ReadAll) == []


def test_a_merge_does_not_reach_a_newcomer_before_its_state() -> None:
    s = Script()
    s.join(0)
    s.hello(1, versions=None)
    (read,) = s.jobs(m.ReadAll)
    s.report(0, 1)
    s.whole_step((0, {}))
    assert list(s.sent(m.Fragment)) == ["learner-0"]
    s.do(WorkDone(read, m.AllFragments((PAYLOAD, PAYLOAD))))
    assert [e.message.version for e in s.done if isinstance(e, Send)] == [0, 1]


def test_another_layout_is_refused_by_name() -> None:
    s = Script()
    s.hello(1, layout="other")
    why = "layout: parameter layout other, this run has L"
    assert s.sent(m.Refused)["learner-1"].why == why
    (note,) = s.noted(ev.UpdateRefused)
    assert (note.sender, note.why) == ("learner-1", why)
    s.report(1, 1)
    assert s.done == []


def test_a_hello_with_another_number_of_fragments_is_refused() -> None:
    s = Script()
    s.hello(1, versions=(0, 0, 0))
    assert s.sent(m.Refused)["learner-1"].why == "layout: 3 fragments, this run has 2"


def test_an_earlier_life_is_refused() -> None:
    s = Script()
    s.hello(1, life=3)
    s.hello(1, life=2)
    assert s.sent(m.Refused)["learner-1"].why.startswith("fenced: life 2 is over, life 3")


def test_a_stranger_is_refused() -> None:
    s = Script()
    s.hello(7)
    assert "not a learner of this run" in s.sent(m.Refused)["learner-7"].why


def test_a_read_that_fails_sends_the_newcomer_to_try_again() -> None:
    s = Script()
    s.hello(0, versions=None)
    (job,) = s.jobs(m.ReadAll)
    s.do(WorkFailed(job, "disk"))
    assert s.done[-2].why == "its state could not be read: disk"  # type: ignore[union-attr]
    assert isinstance(s.done[-2], Disconnect)
    assert s.noted(ev.LinkDown)[0].peer == "learner-0"


def grown(**params: Any) -> Script:
    """A syncer of which every fragment was merged before."""
    saved = {
        f"fragment/{p}": {"clock": 5 - p, "version": 2, "digest": "d", "merged": {}} for p in (0, 1)
    }
    return Script(saved, 2, **params)


def test_a_newcomer_may_ask_those_that_train_and_is_sent_the_newest_stamp() -> None:
    s = grown()
    s.join(0, 1)
    s.hello(2, versions=None)
    welcome = s.sent(m.Welcome)["learner-2"]
    assert (welcome.donors, welcome.send_state) == (("learner-0", "learner-1"), False)
    (job,) = s.jobs(m.ReadAll)
    s.do(WorkDone(job, m.AllFragments((PAYLOAD, PAYLOAD))))
    (fragment,) = [e.message for e in s.done if isinstance(e, Send)]
    assert (fragment.fragment, fragment.version, fragment.committed) == (0, 2, 5)


def test_a_newcomer_with_donors_hears_what_is_merged_meanwhile() -> None:
    s = grown()
    s.join(0)
    s.hello(2, versions=None)
    s.report(0, 1)
    s.whole_step((0, {"base_version": 2, "base_clock": 5}))
    assert set(s.sent(m.Fragment)) == {"learner-0", "learner-2"}


def test_a_newcomer_that_nobody_could_help_gets_every_fragment() -> None:
    s = grown()
    s.join(0)
    s.hello(2, versions=None)
    s.do(WorkDone(s.jobs(m.ReadAll)[0], m.AllFragments((PAYLOAD, PAYLOAD))))
    s.say(2, m.NeedState("learner-0: gone", {}))
    (job,) = s.jobs(m.ReadAll)
    s.do(WorkDone(job, m.AllFragments((PAYLOAD, PAYLOAD))))
    assert [e.message.fragment for e in s.done if isinstance(e, Send)] == [0, 1]


@pytest.mark.parametrize("case", ["beginning", "nobody trains", "not wanted"])
def test_no_donors_are_named(case: str) -> None:
    s = Script() if case == "beginning" else grown()
    if case == "not wanted":
        s = grown(recovery="syncer")
    if case != "nobody trains":
        s.join(0, 1)
    s.hello(2, versions=None)
    welcome = s.sent(m.Welcome)["learner-2"]
    assert (welcome.donors, welcome.send_state) == ((), True)


# --- quorum and grace ---------------------------------------------------------------------------


def test_without_grace_the_kth_report_closes_the_collection() -> None:
    s = Script(quorum=2)
    s.join(0, 1, 2)
    s.report(0, 1)
    assert s.sent(m.Pull) == {}
    assert s.syncer.pending() == ("step 1 waits for its quorum: 1 of 3 learners reported, 2 needed")
    s.report(2, 1)
    assert list(s.sent(m.Pull)) == ["learner-0", "learner-2"]


def test_a_second_report_of_one_learner_is_not_a_second_learner() -> None:
    s = Script(quorum=2)
    s.join(0, 1)
    s.report(0, 1)
    s.report(0, 2)
    assert s.sent(m.Pull) == {}


def test_a_report_before_the_close_is_not_fresh_in_the_next_step() -> None:
    s = Script(quorum=1)
    s.join(0, 1)
    s.report(0, 1)
    s.whole_step((0, {}))
    assert s.syncer.step == 2
    s.do(Tick(), 1)
    assert s.sent(m.Pull) == {}


def test_a_report_during_the_merge_is_fresh_in_the_next_step() -> None:
    s = Script(quorum=1)
    s.join(0, 1)
    s.report(0, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    (job,) = s.jobs(m.Merge)
    s.report(1, 1)
    s.merge(job)
    assert list(s.sent(m.Pull)) == ["learner-1"]


def test_the_window_waits_for_the_others() -> None:
    s = Script(grace=True)
    s.join(0, 1)
    s.report(0, 1, ms=100)
    assert s.sent(m.Pull) == {}
    # xi_step 100 ms, xi_quorum 100 ms, no sync yet: 0.9 * (200 - 100) = 90 ms
    assert s.syncer.deadline_ns() == s.now + 90 * MS
    s.do(Tick(), 89)
    assert s.sent(m.Pull) == {}
    s.do(Tick(), 1)
    assert list(s.sent(m.Pull)) == ["learner-0"]
    s.whole_step((0, {}))
    (merged,) = s.noted(ev.Merged)
    assert merged.grace_ns == merged.grace_limit_ns == 90 * MS
    assert merged.quorum_ns == 100 * MS
    assert merged.reason == (
        "1 of 2 learners reported in step 1, quorum 1; grace up to gamma times the slack, used up"
    )
    assert merged.excluded == {
        "learner-1": "no report since step 1 opened",
        "learner-2": "never connected",
    }


def test_the_window_ends_when_everybody_is_in() -> None:
    s = Script(grace=True)
    s.join(0, 1)
    s.report(0, 1, ms=100)
    s.report(1, 1, ms=30)
    assert list(s.sent(m.Pull)) == ["learner-0", "learner-1"]
    s.whole_step((0, {}), (1, {}))
    (merged,) = s.noted(ev.Merged)
    assert merged.grace_ns == 30 * MS
    assert merged.reason.endswith("grace ended early: everybody reported")


def test_the_window_ends_when_the_missing_one_goes_away() -> None:
    s = Script(grace=True)
    s.join(0, 1)
    s.report(0, 1, ms=100)
    s.do(Disconnected("learner-1", "reset"), 10)
    assert list(s.sent(m.Pull)) == ["learner-0"]


def test_the_window_does_not_wait_for_a_newcomer_without_state() -> None:
    s = Script(grace=True)
    s.join(0)
    s.hello(1, versions=None)
    s.report(0, 1, ms=100)
    assert list(s.sent(m.Pull)) == ["learner-0"]


def test_a_quorum_that_goes_away_in_the_window_is_none() -> None:
    s = Script(grace=True, quorum=2)
    s.join(0, 1, 2)
    s.report(0, 1, ms=100)
    s.report(1, 1)
    s.do(Disconnected("learner-1", "reset"), 10)
    s.do(Tick(), 500)
    assert s.sent(m.Pull) == {}
    assert "1 of 2 learners reported, 2 needed" in s.syncer.pending()


def test_steps_with_no_fragment_due_pull_nothing() -> None:
    s = Script(fragments=1, sync_every=3)
    s.join(0)
    for step in (1, 2):
        s.report(0, step)
        assert s.done == []
    assert s.syncer.step == 3
    s.report(0, 3)
    assert s.sent(m.Pull)["learner-0"].fragment == 0


# --- pulls --------------------------------------------------------------------------------------


def test_merge_is_weighted_sorted_saved_then_sent_then_journalled() -> None:
    s = Script(quorum=2)
    s.syncer.traffic = lambda: (11, 22)
    s.join(0, 1, 2)
    s.report(2, 4)
    s.report(1, 3)
    pull = s.sent(m.Pull)["learner-1"]
    s.push(2, pull, step=4, c_tokens=800)
    s.push(1, pull, step=3, c_tokens=300, ms=7)
    (job,) = s.jobs(m.Merge)
    assert job == m.Merge(
        1,
        1,
        1,
        (
            m.MergeInput("learner-1", 300**2 / 3, PAYLOAD),
            m.MergeInput("learner-2", 800**2 / 4, PAYLOAD),
        ),
    )
    s.merge(job, ms=5)
    kinds = [type(e.message) if isinstance(e, Send) else type(e) for e in s.done]
    assert kinds == [Save, m.Fragment, m.Fragment, m.Fragment, Note]
    (merged,) = s.noted(ev.Merged)
    assert (merged.clock, merged.fragment, merged.version) == (1, 1, 1)
    assert [c.unit for c in merged.contributions] == ["learner-1", "learner-2"]
    assert [c.weight for c in merged.contributions] == [300**2 / 3, 800**2 / 4]
    assert [c.pull_ns for c in merged.contributions] == [7 * MS, 0]
    assert merged.sync_ns == 12 * MS
    assert (merged.bytes_in, merged.bytes_out) == (11, 22)
    fragment = s.sent(m.Fragment)["learner-0"]
    assert (fragment.version, fragment.committed, fragment.clock["syncer"]) == (1, 1, 1)


def test_a_late_learner_is_left_out_at_the_deadline() -> None:
    s = Script(quorum=1, pull_ms_max=300)
    s.join(0, 1)
    s.report(0, 1)  # closes step 1 with learner 0 alone; both report while it merges
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    (job,) = s.jobs(m.Merge)
    s.report(0, 2)
    s.report(1, 1)
    s.merge(job)
    pull = s.sent(m.Pull)["learner-1"]
    assert s.syncer.deadline_ns() == min(s.now + 300 * MS, 250 * MS)
    s.push(0, pull, since_step=1, step=2)
    assert s.jobs(m.Merge) == []
    s.say(1, m.Heartbeat(1, True, {}), 299)
    s.do(Tick(), 1)
    (job,) = s.jobs(m.Merge)
    assert [i.unit for i in job.inputs] == ["learner-0"]
    s.push(1, pull, ms=1)
    (refused,) = s.noted(ev.UpdateRefused)
    assert (refused.sender, refused.why) == (
        "learner-1",
        f"late: answers request {pull.request}, which is closed",
    )
    s.merge(job)
    assert s.noted(ev.Merged)[0].excluded["learner-1"] == "late: no push within 300 ms"


def test_one_that_goes_away_while_pulled_is_not_waited_for() -> None:
    s = Script(quorum=1, learners=2, grace=True)
    s.join(0, 1)
    s.report(0, 1)
    s.report(1, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    s.do(Disconnected("learner-1", "reset"), 5)
    (job,) = s.jobs(m.Merge)
    s.merge(job)
    why = s.noted(ev.Merged)[0].excluded["learner-1"]
    assert why == "link lost while its fragment was pulled: reset"


def test_fewer_than_k_goes_back_to_the_same_step() -> None:
    s = Script(quorum=2, learners=2)
    s.join(0, 1)
    s.report(0, 1)
    s.report(1, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    s.do(Disconnected("learner-1", "reset"))
    assert s.jobs(m.Merge) == []
    (note,) = s.noted(ev.UnitNote)
    assert note.what == "collect-again"
    assert note.detail.startswith("step 1: too few fragments came (learner-1: link lost")
    s.hello(1, step=1)
    s.report(1, 2)
    again = s.sent(m.Pull)  # learner 0 stays fresh: its fragment was good
    assert list(again) == ["learner-0", "learner-1"]
    assert again["learner-0"].request != pull.request
    s.whole_step((0, {}), (1, {"step": 2}))
    assert s.noted(ev.Merged)[0].clock == 1


def test_a_refused_learner_is_not_asked_again_before_a_new_report() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    s.push(0, s.sent(m.Pull)["learner-0"], payload=m.Payload("f32", 7, "d"))
    assert s.noted(ev.UpdateRefused)[0].why.startswith("truncated: 7 bytes")
    assert s.sent(m.Pull) == {}
    s.report(0, 2)
    assert list(s.sent(m.Pull)) == ["learner-0"]


def test_no_step_since_adopting_is_no_refusal() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    s.push(0, s.sent(m.Pull)["learner-0"], since_step=1, step=1, payload=m.Payload("f32", 0, ""))
    assert s.noted(ev.UpdateRefused) == []
    assert "no step since it adopted fragment 1" in s.noted(ev.UnitNote)[0].detail


def test_the_second_copy_of_a_push_is_a_duplicate() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    (job,) = s.jobs(m.Merge)
    s.push(0, pull)
    assert s.noted(ev.UpdateRefused)[0].why.startswith("duplicate: request")
    s.merge(job)
    s.push(0, pull)
    assert s.noted(ev.UpdateRefused)[0].why.startswith("duplicate: request")


def test_one_who_was_not_asked_cannot_push() -> None:
    s = Script(quorum=1)
    s.join(0, 1)
    s.report(0, 1)
    s.push(1, s.sent(m.Pull)["learner-0"])
    assert s.noted(ev.UpdateRefused)[0].why.startswith("late: it was not asked")


def test_steps_merged_before_are_refused_and_the_fragment_sent_anew() -> None:
    s = Script(quorum=1, fragments=1, sync_every=1)
    s.join(0)
    s.report(0, 1)
    s.whole_step((0, {}))
    s.report(0, 2)  # it did not get version 1: its counters still run from 0
    s.push(0, s.sent(m.Pull)["learner-0"], step=2)
    assert s.noted(ev.UpdateRefused)[0].why == (
        "duplicate: covers local steps after 0, those up to 1 are merged already"
    )
    (read,) = s.jobs(m.ReadAll)
    s.do(WorkDone(read, m.AllFragments((PAYLOAD,))))
    assert s.sent(m.Fragment)["learner-0"].version == 1


def test_a_base_older_than_the_bound_is_refused_and_the_fragment_sent_anew() -> None:
    s = Script(quorum=1, fragments=1, sync_every=1, stale_steps_max=3)
    s.join(0, 1)
    for step in range(1, 5):
        s.report(0, step)
        base = {"base_version": step - 1, "base_clock": step - 1}
        s.whole_step((0, {"since_step": step - 1, "step": step, **base}))
    s.report(1, 1)
    s.push(1, s.sent(m.Pull)["learner-1"])
    assert s.noted(ev.UpdateRefused)[0].why == ("stale: its base is 5 steps old, the bound is 3")
    assert s.jobs(m.ReadAll) == [m.ReadAll("learner-1")]


def test_a_push_of_an_earlier_life_is_fenced() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.do(Disconnected("learner-0", "killed"))
    s.hello(0, versions=None, life=2)
    s.push(0, pull)
    assert s.noted(ev.UpdateRefused)[0].why == "fenced: from life 1, the learner lives 2"


def test_a_push_without_a_session_is_fenced() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.do(Disconnected("learner-0", "silent"))
    s.push(0, pull)
    assert s.noted(ev.UpdateRefused)[0].why == "fenced: no session with it (no link: silent)"


# --- merging ------------------------------------------------------------------------------------


def test_a_poisoned_input_is_named_and_the_rest_is_committed() -> None:
    s = Script(quorum=1, learners=2, grace=True)
    s.join(0, 1)
    s.report(0, 1)
    s.report(1, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    s.push(1, pull)
    (job,) = s.jobs(m.Merge)
    s.merge(job, poisoned={"learner-1": "2 NaN values"})
    (refused,) = s.noted(ev.UpdateRefused)
    assert (refused.sender, refused.why) == ("learner-1", "non-finite: 2 NaN values")
    (merged,) = s.noted(ev.Merged)
    assert [c.unit for c in merged.contributions] == ["learner-0"]
    assert merged.excluded["learner-1"] == "refused: non-finite: 2 NaN values"


def test_nothing_is_committed_when_too_few_inputs_are_sound() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    s.push(0, s.sent(m.Pull)["learner-0"])
    (job,) = s.jobs(m.Merge)
    s.merge(job, poisoned={"learner-0": "NaN"})
    assert s.noted(ev.Merged) == []
    assert not any(isinstance(e, Save) for e in s.done)
    assert s.syncer.committed.versions == [0, 0]
    s.report(0, 2)
    s.whole_step((0, {"step": 2}))
    assert s.noted(ev.Merged)[0].version == 1


def test_a_failed_merge_is_noted_and_tried_with_new_reports() -> None:
    s = Script(quorum=1)
    s.join(0)
    s.report(0, 1)
    s.push(0, s.sent(m.Pull)["learner-0"])
    (job,) = s.jobs(m.Merge)
    s.do(WorkFailed(job, "no memory"))
    assert [n.what for n in s.noted(ev.UnitNote)] == ["merge-failed", "collect-again"]
    assert s.sent(m.Pull) == {}
    s.report(0, 2)
    assert list(s.sent(m.Pull)) == ["learner-0"]


def test_a_life_that_began_during_the_merge_has_nothing_merged() -> None:
    s = Script(quorum=1, fragments=1, sync_every=1)
    s.join(0)
    s.report(0, 8)
    s.push(0, s.sent(m.Pull)["learner-0"], step=8)
    (job,) = s.jobs(m.Merge)
    s.do(Disconnected("learner-0", "killed"))
    s.hello(0, versions=None, life=2)
    (read,) = s.jobs(m.ReadAll)
    s.merge(job)
    s.do(WorkDone(read, m.AllFragments((PAYLOAD,))))
    s.report(0, 1, life=2)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull, incarnation=2, step=1, base_version=1, base_clock=1)
    assert s.noted(ev.UpdateRefused) == []
    assert len(s.jobs(m.Merge)) == 1


# --- coming back --------------------------------------------------------------------------------


def test_one_that_missed_the_outcome_of_its_own_part_gets_it() -> None:
    s = Script(quorum=1)
    s.join(0, 1)
    s.report(0, 1)
    s.whole_step((0, {}))  # fragment 1
    s.report(1, 1)
    s.whole_step((1, {}))  # fragment 0, without learner 0
    s.do(Disconnected("learner-0", "reset"))
    s.hello(0, versions=(0, 0), step=3)
    assert not s.sent(m.Welcome)["learner-0"].send_state
    (read,) = s.jobs(m.ReadAll)
    s.do(WorkDone(read, m.AllFragments((PAYLOAD, PAYLOAD))))
    # Fragment 0 is older too, but nothing of learner 0 is in it: the cycle will bring it.
    assert [e.message.fragment for e in s.done if isinstance(e, Send)] == [1]


def test_one_that_waits_for_merges_gets_all_it_missed() -> None:
    s = Script(quorum=1, blocking=True)
    s.join(0, 1)
    s.report(0, 1)
    s.whole_step((0, {}))
    s.do(Disconnected("learner-1", "reset"))
    s.hello(1, versions=(0, 0))
    assert s.jobs(m.ReadAll) == [m.ReadAll("learner-1")]


def test_newer_versions_than_ours_are_said_aloud() -> None:
    s = Script()
    s.hello(0, versions=(3, 0))
    (note,) = s.noted(ev.UnitNote)
    assert note.what == "history-lost"
    assert "newer versions of fragments [0]" in note.detail


def test_a_restart_resumes_versions_clock_and_what_is_merged() -> None:
    s = Script(quorum=1)
    s.join(0)
    saved: dict[str, Any] = {}
    for step in (1, 2, 3):
        s.report(0, step)
        fragment = step % 2
        version = s.syncer.committed.versions[fragment]
        base = {"base_version": version, "base_clock": s.syncer.committed.steps[fragment]}
        since = step - 2 if step > 2 else 0
        s.whole_step((0, {"since_step": since, "step": step, **base}))
        saved |= {e.key: e.value for e in s.done if isinstance(e, Save)}
    again = Script(saved=saved, life=2, quorum=1)
    assert again.syncer.committed.versions == [1, 2]
    assert again.syncer.committed.steps == [2, 3]
    assert again.syncer.step == 4
    again.hello(0, versions=(1, 2), step=4)
    again.report(0, 4)
    pull = again.sent(m.Pull)["learner-0"]
    assert pull.request > 2 << 32  # an answer to a pull of the last life cannot match
    again.push(0, pull, since_step=0, step=4, base_version=1, base_clock=2)
    assert again.noted(ev.UpdateRefused)[0].why.startswith("duplicate: covers local steps after 0")


def test_lives_that_ended_stay_fenced_after_a_restart() -> None:
    s = Script(quorum=1)
    s.hello(0, life=4)
    s.report(0, 1, life=4)
    s.whole_step((0, {"incarnation": 4}))
    saved = {e.key: e.value for e in s.done if isinstance(e, Save)}
    again = Script(saved=saved, life=2, quorum=1)
    again.hello(0, life=3)
    assert again.sent(m.Refused)["learner-0"].why.startswith("fenced: life 3 is over")


# --- links --------------------------------------------------------------------------------------


def test_a_silent_learner_is_given_up() -> None:
    s = Script()
    s.join(0, 1)
    s.say(1, m.Heartbeat(1, True, {}), 1000)
    s.do(Tick(), 500)
    assert [e.peer for e in s.done if isinstance(e, Disconnect)] == ["learner-0"]
    (down,) = s.noted(ev.LinkDown)
    assert (down.peer, down.why) == ("learner-0", "heard nothing for 1500 ms (bound 1500 ms)")
    s.do(Disconnected("learner-0", "closed"))  # the driver's own news comes after ours
    assert s.noted(ev.LinkDown) == []


def test_speaks_when_it_said_nothing() -> None:
    s = Script()
    s.join(0)
    assert s.syncer.deadline_ns() == 250 * MS
    s.do(Tick(), 250)
    beat = s.sent(m.Heartbeat)["learner-0"]
    assert not beat.echo
    s.say(0, m.Heartbeat(beat.nonce, True, {}), 3)
    (heard,) = s.noted(ev.Heard)
    assert (heard.peer, heard.rtt_ns) == ("learner-0", 3 * MS)


def test_echoes_a_heartbeat() -> None:
    s = Script()
    s.join(0)
    s.say(0, m.Heartbeat(5, False, {}))
    assert s.sent(m.Heartbeat)["learner-0"].nonce == 5
    assert s.sent(m.Heartbeat)["learner-0"].echo


def test_asked_to_stop_it_stops_at_once() -> None:
    s = Script()
    s.do(StopAsked(10**9))
    assert isinstance(s.done[0], Note)
    assert s.done[1] == Stop("asked to stop")
    assert s.do(Tick()) == []
    assert s.syncer.deadline_ns() is None


# --- blocking -----------------------------------------------------------------------------------


def test_blocked_learners_that_ran_ahead_count_in_later_steps() -> None:
    s = Script(quorum=2, learners=2, blocking=True, fragments=1, sync_every=4)
    s.join(0, 1)
    for step in (1, 2, 3, 4):
        s.report(0, step)
    assert s.syncer.step == 1
    for step in (1, 2, 3):
        s.report(1, step)
        assert s.syncer.step == step + 1
    s.report(1, 4)
    assert sorted(s.sent(m.Pull)) == ["learner-0", "learner-1"]


def test_blocked_learners_are_asked_again_after_a_pause() -> None:
    s = Script(quorum=2, learners=2, blocking=True, fragments=1, sync_every=1, pull_ms_max=200)
    s.join(0, 1)
    s.report(0, 1)
    s.report(1, 1)
    pull = s.sent(m.Pull)["learner-0"]
    s.push(0, pull)
    s.push(1, pull, payload=m.Payload("f32", 7, "d"))
    assert s.noted(ev.UnitNote)[0].what == "collect-again"
    assert s.sent(m.Pull) == {}
    assert s.syncer.deadline_ns() == s.now + 200 * MS
    s.do(Tick(), 200)
    assert sorted(s.sent(m.Pull)) == ["learner-0", "learner-1"]


# --- a disk that gives back less than was saved --------------------------------------------------


def saved(*versions: int) -> dict[str, Any]:
    return {
        f"fragment/{p}": {"clock": 4 + p, "version": v, "digest": "d", "merged": {}}
        for p, v in enumerate(versions)
    }


def damaged(why: str = "flipped") -> Script:
    """Life 2 found version 2 of fragment 1 although version 3 may have been sent."""
    s = Script()
    s.syncer = Syncer("syncer", s.params, ["learner-0", "learner-1"], "L", elements=[8, 8])
    s.do(Started(2, saved(3, 2), {"fragment/1": why}))
    return s


def recommit(s: Script) -> m.Recommit:
    (restore,) = s.jobs(m.Restore)
    s.do(WorkDone(restore, None))
    (job,) = s.jobs(m.Recommit)
    assert isinstance(job, m.Recommit)
    return job


def test_an_undamaged_disk_needs_no_more_than_restoring() -> None:
    s = Script(saved(3, 2), 2, restored=False)
    (restore,) = s.jobs(m.Restore)
    s.do(WorkDone(restore, None))
    assert s.jobs(m.Recommit) == []
    assert s.syncer.step == 6


def test_the_last_good_state_becomes_a_version_that_nobody_has_seen() -> None:
    s = damaged()
    job = recommit(s)
    assert job == m.Recommit(1, 4)
    s.hello(0, (3, 3))
    s.do(WorkDone(job, m.Recommitted(PAYLOAD, "new")))
    kinds = [type(e) for e in s.done]
    assert kinds.index(Save) < kinds.index(Send) < kinds.index(Note)
    sent = s.sent(m.Fragment)["learner-0"]
    assert (sent.fragment, sent.version) == (1, 4)
    (note,) = s.noted(ev.RolledBack)
    assert (note.fragment, note.version, note.before, note.why) == (1, 4, 2, "flipped")
    assert note.clock == sent.committed > 6
    assert s.syncer.step == note.clock + 1


def test_whoever_comes_back_later_is_sent_it_too() -> None:
    s = damaged()
    s.do(WorkDone(recommit(s), m.Recommitted(PAYLOAD, "new")))
    s.hello(0, (3, 3))
    (job,) = s.jobs(m.ReadAll)
    s.do(WorkDone(job, m.AllFragments((PAYLOAD, PAYLOAD))))
    assert [e.message.version for e in s.done if isinstance(e, Send)] == [4]


def test_what_builds_on_an_older_version_is_refused_and_gets_the_new_one() -> None:
    s = damaged()
    job = recommit(s)
    s.do(WorkDone(job, m.Recommitted(PAYLOAD, "new")))
    s.join(0)
    step = 1
    while not s.sent(m.Pull) or s.sent(m.Pull)["learner-0"].fragment != 1:
        s.report(0, step)
        step += 1
        pulls = s.sent(m.Pull)
        if pulls and pulls["learner-0"].fragment == 0:
            base = {"base_version": 3, "base_clock": 4, "since_step": 0, "step": step}
            s.push(0, pulls["learner-0"], **base)
            s.merge(s.jobs(m.Merge)[0])
    s.push(0, s.sent(m.Pull)["learner-0"], base_version=3, base_clock=5, step=step)
    assert s.noted(ev.UpdateRefused)[0].why.startswith("duplicate: builds on version 3")


def test_arrays_that_were_damaged_are_as_bad_as_a_damaged_version() -> None:
    s = Script(saved(3, 2), 2, restored=False)
    (restore,) = s.jobs(m.Restore)
    s.do(WorkDone(restore, m.Restored((3, 1), {1: "torn"})))
    assert s.jobs(m.Recommit) == [m.Recommit(1, 3)]


def test_nothing_is_merged_before_the_state_is_good() -> None:
    s = damaged()
    s.join(0, 1)
    s.report(0, 1)
    s.report(1, 1)
    assert s.sent(m.Pull) == {}
    s.do(WorkDone(m.Restore((3, 2)), None))
    assert s.sent(m.Pull) == {}
    s.do(WorkDone(s.jobs(m.Recommit)[0], m.Recommitted(PAYLOAD, "new")))
    assert s.sent(m.Pull)


def test_the_floor_outlives_the_next_life_too() -> None:
    s = damaged()
    s.do(WorkDone(recommit(s), m.Recommitted(PAYLOAD, "new")))
    (save,) = [e for e in s.done if isinstance(e, Save)]
    later = Script({**saved(3, 2), save.key: save.value}, 3)
    assert (later.syncer.committed.versions, later.syncer.committed.floor) == ([3, 4], [0, 4])


# --- changes instead of fragments ---------------------------------------------------------------


def change(s: Script, job: m.Merge) -> None:
    payload = m.Payload("int4", 6, f"v{job.version}")
    s.do(WorkDone(job, m.MergeResult(payload, {}, f"v{job.version}", True, "rda")))


def merge_change(s: Script, index: int, step: int, **changes: Any) -> None:
    """The learner reports ``step``; its push is merged, and the merge is sent as a change."""
    s.report(index, step)
    pull = s.sent(m.Pull)[f"learner-{index}"]
    s.push(index, pull, since_step=step - 1, step=step, **changes)
    (job,) = s.jobs(m.Merge)
    change(s, job)


def int4(**params: Any) -> Script:
    return Script(fragments=1, sync_every=1, wire_down="int4", wire_up="int4", **params)


def test_a_change_goes_to_whoever_holds_the_version_before_and_the_whole_to_the_others() -> None:
    s = int4()
    s.hello(0, (0,))
    s.hello(1, (0,))
    merge_change(s, 0, 1)
    assert sorted(s.sent(m.Fragment)) == ["learner-0", "learner-1"]
    # One comes back with an older version than the one that the next change is a change of.
    s.do(Disconnected("learner-1", "reset"))
    s.hello(1, (0,))
    merge_change(s, 0, 2, base_version=1, base_clock=1)
    assert list(s.sent(m.Fragment)) == ["learner-0"]
    (read,) = s.jobs(m.ReadAll)
    s.do(WorkDone(read, m.AllFragments((m.Payload("f32", 32, "v2"),))))
    whole = s.sent(m.Fragment)["learner-1"]
    assert (whole.version, whole.payload.dtype) == (2, "f32")
    merge_change(s, 0, 3, base_version=2, base_clock=2)
    assert sorted(s.sent(m.Fragment)) == ["learner-0", "learner-1"]


def test_a_merge_is_told_what_every_push_builds_upon() -> None:
    s = int4()
    s.hello(0, (0,))
    merge_change(s, 0, 1)
    s.report(0, 2)
    s.push(0, s.sent(m.Pull)["learner-0"], since_step=1, step=2, base_version=1, base_clock=1)
    (job,) = s.jobs(m.Merge)
    assert [i.base_version for i in job.inputs] == [1]


def test_who_builds_upon_a_version_that_is_kept_no_more_gets_the_whole_fragment() -> None:
    s = int4(quorum=2)
    s.hello(0, (0,))
    s.hello(1, (0,))
    s.report(0, 1)
    s.report(1, 1)
    pulls = s.sent(m.Pull)
    for index in (0, 1):
        s.push(index, pulls[f"learner-{index}"])
    (job,) = s.jobs(m.Merge)
    why = "stale: the version that this is a change of is not at hand"
    s.do(WorkDone(job, m.MergeResult(None, {"learner-1": why}, "", True, "rda")))
    assert [r.why for r in s.noted(ev.UpdateRefused)] == [why]
    assert [read.peer for read in s.jobs(m.ReadAll)] == ["learner-1"]


def test_a_learner_that_took_a_donors_state_is_sent_whole_fragments_first() -> None:
    s = int4(recovery="peer")
    s.hello(0, (0,))
    merge_change(s, 0, 1)
    s.report(0, 2)
    s.hello(1, versions=None)
    (read,) = s.jobs(m.ReadAll)
    s.do(WorkDone(read, m.AllFragments((m.Payload("f32", 32, "v1"),))))
    assert s.sent(m.Fragment)["learner-1"].payload.dtype == "f32"
    # Not training yet: nothing but whole fragments, whatever it was sent before.
    s.push(
        0, m.Pull(s.syncer._pull.request, 0, {}), since_step=1, step=2, base_version=1, base_clock=1
    )
    (job,) = s.jobs(m.Merge)
    change(s, job)
    assert list(s.sent(m.Fragment)) == ["learner-0"]
    assert [r.peer for r in s.jobs(m.ReadAll)] == ["learner-1"]
