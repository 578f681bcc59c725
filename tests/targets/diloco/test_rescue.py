"""A syncer whose disk gave nothing back takes its state from the learners, or says why not."""

from __future__ import annotations

from typing import Any

from harness import events as ev
from targets.base import Disconnected, Note, Save, Send, Started, Tick, Work, WorkDone, WorkFailed
from targets.diloco import messages as m
from targets.diloco.learner import Learner
from targets.diloco.params import DilocoParams
from targets.diloco.rescue import ANSWER_NS, EPOCH, Handing, Rescue, wait_ns
from targets.diloco.syncer import Syncer
from tests.targets.diloco.test_syncer import PAYLOAD, Script

PARAMS = DilocoParams(learners=3, fragments=2, sync_every=2, trainer="scripted")


def bereft(**params: Any) -> Script:
    """Life 2 found nothing, and its worker is at the initial parameters."""
    s = Script({}, 2, restored=False, **params)
    (restore,) = s.jobs(m.Restore)
    assert restore == m.Restore((0, 0))
    s.do(WorkDone(restore, None))
    return s


def asked(s: Script) -> list[str]:
    return sorted(s.sent(m.NeedState))


def hand_over(s: Script, index: int, *versions: int) -> list[m.Recommit]:
    """The learner sends all that it holds; the jobs that this makes."""
    jobs: list[m.Recommit] = []
    for p, version in enumerate(versions):
        s.say(index, m.Fragment(p, version, 10 + p, PAYLOAD, {}))
        jobs += s.jobs(m.Recommit)
    return jobs


def wait(s: Script, ms: float, *alive: int) -> None:
    """Time goes by, and these learners say that they live."""
    while ms > 0:
        for index in alive:
            s.say(index, m.Heartbeat(1, True, {}))
        s.do(Tick(), ms=min(ms, 1000))
        ms -= 1000


def test_nothing_is_begun_anew_before_learners_were_heard() -> None:
    s = bereft()
    assert s.jobs(m.Merge) == []
    s.hello(0, (7, 6))
    s.report(0, 1)
    assert s.sent(m.Pull) == {}
    assert asked(s) == []
    assert "must be heard" in s.syncer.pending()


def test_the_newest_of_each_fragment_is_asked_for_once_everybody_was_heard() -> None:
    s = bereft()
    s.hello(0, (7, 5))
    s.hello(1, (6, 6))
    s.hello(2, None)
    assert asked(s) == ["learner-0", "learner-1"]
    assert [j.version for j in hand_over(s, 0, 7, 5)] == [EPOCH], "fragment 1 is another's to give"
    assert [(j.fragment, j.version) for j in hand_over(s, 1, 6, 6)] == [(1, EPOCH)]


def test_the_state_is_durable_before_it_is_sent_and_stands_above_all_that_was_known() -> None:
    s = bereft()
    for index in range(3):
        s.hello(index, (7, 6))
    steps = []
    for job in hand_over(s, 0, 7, 6):
        s.do(WorkDone(job, m.Recommitted(PAYLOAD, "new")))
        kinds = [type(e) for e in s.done]
        assert kinds.index(Save) < kinds.index(Send) < kinds.index(Note)
        (note,) = s.noted(ev.RolledBack)
        assert (note.version, note.before) == (EPOCH, (7, 6)[note.fragment])
        assert "learner-0 holds version" in note.why
        steps.append(note.clock)
    assert steps == sorted(set(steps))
    assert s.syncer.committed.versions == [EPOCH, EPOCH]
    assert s.syncer.committed.floor == [EPOCH, EPOCH], "what builds on older ones is refused"
    s.report(0, 1)
    assert s.sent(m.Pull), "and it merges again"


def test_who_has_not_come_is_not_waited_for_for_ever() -> None:
    s = bereft()
    s.hello(0, (7, 6))
    assert asked(s) == []
    wait(s, wait_ns(s.params) / 1e6, 0)
    assert asked(s) == ["learner-0"]


def test_learners_without_state_wait_for_one_that_has_some() -> None:
    s = bereft()
    s.hello(0, None)
    wait(s, wait_ns(s.params) / 1e6, 0)
    assert s.jobs(m.ReadAll) == s.jobs(m.Recommit) == []
    s.hello(1, (7, 6))
    wait(s, wait_ns(s.params) / 1e6, 0, 1)
    assert asked(s) == ["learner-1"]
    for job in hand_over(s, 1, 7, 6):
        s.do(WorkDone(job, m.Recommitted(PAYLOAD, "new")))
    assert [job.peer for job in s.jobs(m.ReadAll)] == ["learner-0"], (
        "now there is something to give"
    )


def test_who_was_heard_and_went_away_again_does_not_decide() -> None:
    s = bereft()
    s.hello(0, (7, 6))
    s.do(Disconnected("learner-0", "reset"))
    wait(s, 10 * wait_ns(s.params) / 1e6)
    assert s.sent(m.NeedState) == {}
    s.hello(1, (7, 6))
    assert asked(s) == [], "the others have their time from now on"
    wait(s, wait_ns(s.params) / 1e6, 1)
    assert asked(s) == ["learner-1"]
    for job in hand_over(s, 1, 7, 6):
        s.do(WorkDone(job, m.Recommitted(PAYLOAD, "new")))
    s.report(1, 1)
    assert s.sent(m.Pull), "and it merges again"


def test_a_donor_that_dies_is_replaced() -> None:
    s = bereft()
    for index in range(3):
        s.hello(index, (7, 6))
    assert asked(s) == ["learner-0"]
    s.do(Disconnected("learner-0", "reset"))
    assert asked(s) == ["learner-1"]
    wait(s, ANSWER_NS / 1e6, 1, 2)
    assert asked(s) == ["learner-2"], "as is one that does not answer"


def test_nothing_was_lost_where_nobody_holds_more_than_the_first_parameters() -> None:
    s = bereft()
    for index in range(3):
        s.hello(index, (0, 0))
    assert asked(s) == []
    assert s.noted(ev.RolledBack) == []
    s.report(0, 1)
    assert [pull.fragment for pull in s.sent(m.Pull).values()], "the first step is open"
    assert s.syncer.committed.versions == [0, 0]


def test_where_nobody_holds_anything_no_version_comes_again_all_the_same() -> None:
    s = bereft()
    for index in range(3):
        s.hello(index, None)
    jobs = s.jobs(m.Recommit)
    assert [(j.fragment, j.version, j.payload) for j in jobs] == [
        (0, EPOCH, None),
        (1, EPOCH, None),
    ]
    s.do(WorkDone(jobs[0], m.Recommitted(PAYLOAD, "new")))
    assert "no learner that was heard holds more" in s.noted(ev.RolledBack)[0].why


def test_a_full_disk_is_waited_for() -> None:
    s = bereft()
    for index in range(3):
        s.hello(index, (7, 6))
    (first, second) = hand_over(s, 0, 7, 6)
    s.do(WorkFailed(first, "OSError: [Errno 28] No space left on device"))
    assert s.sent(m.Fragment) == {}, "what is not durable is not sent"
    assert [n.what for n in s.noted(ev.UnitNote)] == ["disk-full"]
    s.do(Tick(), ms=s.params.pull_ms_max)
    assert s.jobs(m.Recommit) == [first]
    s.do(WorkFailed(second, "StateError: no disk at all"))
    assert s.syncer.deadline_ns() is None, "any other failure ends it, with the reason"


def test_a_first_life_and_one_that_found_something_rescue_nothing() -> None:
    for syncer_life, saved in ((1, {}), (2, {"fragment/0": _saved(3)})):
        s = Script(saved, syncer_life)
        s.hello(0, (3, 0))
        s.hello(1, (3, 0))
        s.hello(2, (3, 0))
        assert asked(s) == []


def _saved(version: int) -> dict[str, Any]:
    return {"clock": 4, "version": version, "digest": "d", "merged": {}}


def test_versions_begin_beyond_the_next_round_number() -> None:
    rescue = Rescue(PARAMS)
    rescue.begin((0, 0), 2)
    rescue.heard("learner-0", (EPOCH + 4, 3), 0)
    rescue.heard("learner-1", None, 0)
    rescue.heard("learner-2", None, 0)
    found = rescue.decide(0)
    assert (found[0].version, found[1].version) == (2 * EPOCH, EPOCH), "a second loss, a third one"


def test_no_life_of_the_syncer_gives_a_version_of_another_one() -> None:
    """Where everybody began anew, nobody knows how far an earlier rescue had come."""
    for lives in (2, 3, 9):
        rescue = Rescue(PARAMS)
        rescue.begin((0, 0), lives)
        for name in ("learner-0", "learner-1", "learner-2"):
            rescue.heard(name, None if name == "learner-2" else (0, 0), 0)
        found = rescue.decide(0)
        assert [found[p].version for p in (0, 1)] == [(lives - 1) * EPOCH] * 2


def test_a_learner_hands_over_what_it_held_at_one_instant() -> None:
    handing = Handing("syncer")
    (copy,) = handing.asked((7, 6), (10, 11))
    assert isinstance(copy, Work)
    reads = [e.job for e in handing.copied(copy.job) if isinstance(e, Work)]
    assert [job.number for job in reads] == [0, m.STATE_KINDS]
    first = handing.part(reads[0], PAYLOAD, {"a": 1})
    last = handing.part(reads[1], PAYLOAD, {"a": 2})
    assert first == [Send("syncer", m.Fragment(0, 7, 10, PAYLOAD, {"a": 1}))]
    assert last[0] == Send("syncer", m.Fragment(1, 6, 11, PAYLOAD, {"a": 2}))
    assert last[1] == Work(m.DropState(copy.job.transfer), lane=copy.lane)
    # A syncer that died meanwhile asks again, and gets nothing of the first time.
    drop, again = handing.asked((8, 6), (12, 11))
    assert drop == Work(m.DropState(copy.job.transfer), lane=copy.lane)
    assert isinstance(again, Work)
    assert handing.part(reads[0], PAYLOAD, {}) == []


def test_a_learner_without_state_has_nothing_to_hand_over() -> None:
    learner = Learner("learner-0", PARAMS)
    learner.handle(Started(1), 0)
    assert not any(
        isinstance(e, Work) and isinstance(e.job, m.CopyState)
        for e in learner.handle(_said(m.NeedState("lost", {})), 0)
    )
    assert isinstance(Syncer("syncer", PARAMS, ["learner-0"], "L").pending(), str)


def _said(message: Any) -> Any:
    from targets.base import Received

    return Received("syncer", message)
