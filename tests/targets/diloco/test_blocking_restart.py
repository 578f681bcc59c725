"""A syncer that comes back where learners wait for merges: what they say again is no news."""

from __future__ import annotations

from typing import Any

import pytest

from harness import events as ev
from targets.base import Save, WorkDone
from targets.diloco import messages as m
from tests.targets.diloco.pump import MS, Pump, audit, params_of
from tests.targets.diloco.test_syncer import PAYLOAD, Script


def after_one_merge(**params: Any) -> dict[str, Any]:
    """What a syncer saved that merged both learners' step 1 and died before it could say so."""
    s = Script(**params)
    s.join(0, 1)
    s.report(0, 1)
    s.report(1, 1)
    s.whole_step((0, {}), (1, {}))
    return {e.key: e.value for e in s.done if isinstance(e, Save)}


EVERYBODY: dict[str, Any] = {"learners": 2, "quorum": 2, "blocking": True, "fragments": 1}


def test_the_report_of_a_step_that_was_merged_is_not_one_of_the_next() -> None:
    params = {**EVERYBODY, "sync_every": 1}
    again = Script(saved=after_one_merge(**params), life=2, **params)
    assert again.syncer.step == 2
    for index in (0, 1):
        again.hello(index, versions=(0,), step=1)
        (read,) = again.jobs(m.ReadAll)
        again.report(index, 1)
        again.do(WorkDone(read, m.AllFragments((PAYLOAD,))))
    assert "step 2 waits for its quorum: 0 of 2" in again.syncer.pending()
    again.report(0, 2)
    again.report(1, 2)
    assert sorted(again.sent(m.Pull)) == ["learner-0", "learner-1"]


def test_the_report_of_the_open_step_counts_however_often_it_is_said() -> None:
    params = {**EVERYBODY, "sync_every": 1}
    again = Script(saved=after_one_merge(**params), life=2, **params)
    for index in (0, 1):
        again.hello(index, versions=(1,), step=2)
        again.report(index, 2)
    assert sorted(again.sent(m.Pull)) == ["learner-0", "learner-1"]


@pytest.mark.parametrize(("fragments", "sync_every"), [(1, 1), (1, 4), (2, 2), (3, 4)])
def test_every_merge_has_the_step_that_it_is_of_whenever_the_syncer_dies(
    fragments: int, sync_every: int
) -> None:
    settings: dict[str, Any] = {"quorum": 4, "grace": False, "blocking": True}
    for at_ms in range(1000, 1140, 7):
        pump = Pump(
            params_of(fragments=fragments, sync_every=sync_every, **settings),
            step_ms={"learner-3": 130},
        )
        pump.start().run(at_ms)
        pump.kill("syncer")
        pump.run(200)
        pump.spawn("syncer")
        back = pump.now
        pump.run(2500)
        audit(pump.notes, fragments)
        merges = pump.of(ev.Merged)
        assert len(pump.of(ev.Merged, back)) > (1 if sync_every > 2 else 5)
        late = [
            (g.clock, g.fragment, [c.step for c in g.contributions])
            for g in merges
            if any(c.step != g.clock for c in g.contributions)
        ]
        assert late == [], f"killed after {at_ms} ms"
        assert not pump.of(ev.UnitNote, back, what="collect-again")


def test_killed_between_saving_a_merge_and_sending_it() -> None:
    """The one instant in which what learners say again is of a step that is merged already."""
    settings: dict[str, Any] = {"quorum": 4, "grace": False, "blocking": True}
    pump = Pump(params_of(fragments=2, sync_every=4, **settings)).start().run(1000)
    pump.tamper = lambda sender, message: [] if isinstance(message, m.Fragment) else [message]
    seen = len(pump.of(ev.Merged))
    pump.run_until(lambda: len(pump.of(ev.Merged)) > seen, 2000, "a merge nobody hears of")
    pump.kill("syncer")
    pump.tamper = lambda sender, message: [message]
    pump.run(100).spawn("syncer")
    back = pump.now
    pump.run(3000)
    merges = pump.of(ev.Merged, back)
    assert len(merges) > 4
    for merged in merges:
        assert [c.step for c in merged.contributions] == [merged.clock] * 4
    assert back > 1000 * MS
