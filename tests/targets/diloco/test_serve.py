"""Real units, end to end: processes that train together over gRPC and die in various ways."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from faults.base import Tuning
from harness.events import (
    Adopted,
    Joined,
    LinkDown,
    LinkUp,
    Merged,
    RolledBack,
    Step,
    UnitEnded,
    UnitNote,
    UnitReady,
    UnitStarted,
    UpdateRefused,
)
from targets.diloco.transport import DETECTION_BOUND_S
from tests.targets.diloco.cluster import Cluster, cluster

pytestmark = [pytest.mark.live, pytest.mark.slow]


def merges(units: Cluster, at_least: int) -> bool:
    """Whether every fragment was merged so often, with both learners heard."""
    found = units.events("syncer", Merged)
    counts = [sum(m.fragment == p for m in found) for p in range(units.params["fragments"])]
    heard = {c.unit for m in found for c in m.contributions}
    return min(counts) >= at_least and heard == set(units.learners())


def test_a_cluster_trains_and_ends_in_good_order(tmp_path: Path) -> None:
    with cluster(tmp_path) as units:
        units.until("three merges of every fragment", lambda: merges(units, 3))
        for learner in units.learners():
            assert units.stop(learner) == 0
        assert units.stop("syncer") == 0
        for unit in ("syncer", *units.learners()):
            events = units.events(unit)
            assert isinstance(events[0], UnitStarted)
            assert isinstance(events[1], UnitReady)
            assert events[1].import_ns > 0
            assert isinstance(events[-1], UnitEnded)
            assert "Traceback" not in units.log(unit)
        for learner in units.learners():
            (joined,) = units.events(learner, Joined)
            # Whoever starts last may find that the other has already been merged.
            others = {"syncer", *units.learners()} - {learner}
            assert joined.source in (others if joined.clock else {"initial"})
            losses = [step.loss for step in units.events(learner, Step)]
            assert losses[-1] < losses[0]
        merged = units.events("syncer", Merged)
        for fragment in range(3):
            versions = [m.version for m in merged if m.fragment == fragment]
            assert versions == list(range(1, len(versions) + 1))
        assert merged[-1].bytes_in > merged[0].bytes_in > 0
        assert merged[-1].bytes_out > merged[0].bytes_out > 0


def test_a_killed_learner_comes_back_as_another_life_and_is_merged_again(tmp_path: Path) -> None:
    with cluster(tmp_path) as units:
        units.until("both are merged", lambda: merges(units, 1))
        assert units.stop("learner-1", signal.SIGKILL) == -signal.SIGKILL
        units.until(
            "the syncer notices",
            lambda: any(e.peer == "learner-1" for e in units.events("syncer", LinkDown)),
        )
        before = len(units.events("syncer", Merged))
        units.until("the other goes on", lambda: len(units.events("syncer", Merged)) > before + 3)
        units.start("learner-1")

        def again() -> bool:
            return any(
                c.unit == "learner-1" and c.incarnation == 2
                for m in units.events("syncer", Merged)
                for c in m.contributions
            )

        units.until("merged again", again)
        assert [e.incarnation for e in units.events("learner-1", UnitStarted)] == [1, 2]
        joined = units.events("learner-1", Joined)[-1]
        assert (joined.source, joined.inner, joined.incarnation) == ("learner-0",) * 2 + (2,)
        assert joined.digests == joined.donor_digests
        assert set(joined.digests) == {"params", "moments", "step", "learning_rate"}
        assert joined.step > 0
        assert joined.digests["moments"] != units.events("learner-1", Joined)[0].digests["moments"]


def test_learners_outlive_a_syncer_that_restarts_where_it_was(tmp_path: Path) -> None:
    with cluster(tmp_path) as units:
        units.until("merges", lambda: merges(units, 2))
        units.stop("syncer", signal.SIGKILL)
        steps = len(units.events("learner-0", Step))
        units.until(
            "training goes on without it",
            lambda: len(units.events("learner-0", Step)) > steps + 5,
        )
        units.start("syncer")

        def merged_again() -> bool:
            return any(m.incarnation == 2 for m in units.events("syncer", Merged))

        units.until("merges again", merged_again)
        for fragment in range(3):
            versions = [m.version for m in units.events("syncer", Merged) if m.fragment == fragment]
            # The last one before the kill may have been saved and not yet journalled.
            gaps = [b - a for a, b in pairwise(versions)]
            assert set(gaps) <= {1, 2}
        for learner in units.learners():

            def linked_twice(unit: str = learner) -> bool:
                return len(units.events(unit, LinkUp)) == 2

            units.until("back", linked_twice)
            assert len(units.events(learner, UnitStarted)) == 1


@pytest.mark.parametrize("what", ["version", "arrays"])
def test_a_syncer_with_a_damaged_disk_says_so_and_goes_on_from_the_last_good_state(
    tmp_path: Path, what: str
) -> None:
    with cluster(tmp_path) as units:
        units.until("merges", lambda: merges(units, 3))
        units.stop("syncer", signal.SIGKILL)
        state = tmp_path / "syncer" / "state"
        pattern = "saved-*.bin" if what == "version" else "fragments/fragment-000-*.safetensors"
        newest = max(state.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        raw = bytearray(newest.read_bytes())
        raw[-5] ^= 0x40
        newest.write_bytes(raw)
        units.start("syncer")
        units.until("said", lambda: units.events("syncer", RolledBack))
        (back,) = units.events("syncer", RolledBack)
        assert newest.name in back.why

        def adopted() -> bool:
            return all(
                any(
                    a.fragment == back.fragment and a.version >= back.version
                    for a in units.events(unit, Adopted)
                )
                for unit in units.learners()
            )

        units.until("everybody has the version that replaces it", adopted)

        def merged() -> list[Merged]:
            found: list[Merged] = units.events("syncer", Merged)
            return [
                m for m in found if m.fragment == back.fragment and m.version > back.version + 1
            ]

        units.until("and it is merged again", merged)
        versions = [
            m.version for m in units.events("syncer", Merged) if m.fragment == back.fragment
        ]
        assert len(set(versions)) == len(versions)


def test_no_second_syncer_lives_beside_the_first(tmp_path: Path) -> None:
    with cluster(tmp_path) as units:
        units.until("merges", lambda: merges(units, 1))
        first = units.processes.pop("syncer")
        try:
            units.start("syncer")
            assert units.wait("syncer") == 1
            assert "is in use by another process" in units.log("syncer")
            count = len(units.events("syncer", Merged))
            units.until(
                "the first goes on", lambda: len(units.events("syncer", Merged)) > count + 3
            )
            assert {m.incarnation for m in units.events("syncer", Merged)} == {1}
        finally:
            first.kill()
            first.wait()


@pytest.mark.parametrize(
    ("update", "kinds"),
    [
        ("nan", {"non-finite"}),
        ("inf", {"non-finite"}),
        ("bitflip", {"checksum"}),
        ("truncate", {"truncated", "layout"}),
        ("stale", {"stale", "duplicate"}),
        ("duplicate", {"late", "duplicate"}),
    ],
)
def test_a_corrupted_update_is_refused_and_named(
    tmp_path: Path, update: str, kinds: set[str]
) -> None:
    with cluster(tmp_path) as units:
        units.until("merges", lambda: merges(units, 1))
        units.tune("learner-1", Tuning(update=update))

        def refused() -> list[str]:
            found = units.events("syncer", UpdateRefused)
            assert {e.sender for e in found} <= {"learner-1"}
            return [e.why.split(":")[0].split()[0] for e in found]

        units.until("refused", lambda: kinds & set(refused()))
        assert set(refused()) <= kinds
        units.tune("learner-1", Tuning())
        count = len(units.events("syncer", Merged))
        units.until("merges go on", lambda: len(units.events("syncer", Merged)) > count + 6)
        assert all(m.finite for m in units.events("syncer", Merged))


def test_a_hanging_learner_keeps_its_link_and_goes_on_afterwards(tmp_path: Path) -> None:
    with cluster(tmp_path, silence_ms_max=1000) as units:
        units.until("merges", lambda: merges(units, 1))
        units.tune("learner-0", Tuning(hang=True))

        def merged_alone() -> bool:
            # One learner's merges for longer than a silent link would have lasted.
            found = units.events("syncer", Merged)
            last = max(
                (m.t_ns for m in found if any(c.unit == "learner-0" for c in m.contributions)),
                default=0,
            )
            return bool(found[-1].t_ns - last > 1_500_000_000)

        units.until("it stands still", merged_alone)
        assert units.events("syncer", LinkDown) == []
        assert units.events("learner-0", LinkDown) == []
        steps = len(units.events("learner-0", Step))
        units.tune("learner-0", Tuning())
        units.until("it goes on", lambda: len(units.events("learner-0", Step)) > steps + 3)


def test_a_frozen_unit_is_noticed_and_taken_back(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Its kernel goes on acknowledging, so only unanswered heartbeats and pings tell."""
    with cluster(tmp_path) as units:
        units.until("merges", lambda: merges(units, 1))
        for victim, witness in (("learner-1", "syncer"), ("syncer", "learner-0")):
            frozen_ns = time.monotonic_ns()
            units.processes[victim].send_signal(signal.SIGSTOP)

            def noticed(victim: str = victim, witness: str = witness) -> list[LinkDown]:
                return [e for e in units.events(witness, LinkDown) if e.peer == victim]

            units.until("noticed", noticed, 2 * DETECTION_BOUND_S)
            seconds = (noticed()[0].t_ns - frozen_ns) / 1e9
            record_property(f"{witness}_noticed_{victim}_s", round(seconds, 3))
            units.processes[victim].send_signal(signal.SIGCONT)
            thawed_ns = time.monotonic_ns()

            def back(thawed_ns: int = thawed_ns) -> bool:
                """Whether every learner was merged since; nobody needed a new life."""
                late = [m for m in units.events("syncer", Merged) if m.t_ns > thawed_ns]
                return {c.unit for m in late for c in m.contributions} == set(units.learners())

            units.until("merged again", back)
        for unit in ("syncer", *units.learners()):
            assert len(units.events(unit, UnitStarted)) == 1


def test_a_straggler_takes_longer_by_its_factor(tmp_path: Path) -> None:
    with cluster(tmp_path, step_time_s=0.05) as units:
        units.until("steps", lambda: len(units.events("learner-0", Step)) > 3)
        units.tune("learner-0", Tuning(step_factor=4.0))
        count = len(units.events("learner-0", Step))
        units.until("slow steps", lambda: len(units.events("learner-0", Step)) > count + 3)
        last = units.events("learner-0", Step)[-1]
        assert last.nominal_ns == 50_000_000
        assert last.t_ns - last.began_at_ns > 150_000_000


@pytest.mark.parametrize(
    ("unit", "changes", "why"),
    [
        ("learner-0", {"unit": "learner-7"}, "'learner-7' is none of the 2 learners"),
        ("learner-0", {"peers": {}}, "was told no address of 'syncer'"),
        ("learner-0", {"role": "proxy"}, "not 'proxy'"),
        ("syncer", {"params": {"quorum": 9}}, "quorum is 9"),
        ("syncer", {"params": {"learner": 2}}, "learner"),
    ],
)
def test_a_unit_that_cannot_start_says_why(
    tmp_path: Path, unit: str, changes: dict[str, object], why: str
) -> None:
    with cluster(tmp_path, units=()) as units:
        units.start(unit, **changes)
        assert units.wait(unit) == 1
        started, ended = units.events(unit)
    assert isinstance(started, UnitStarted)
    assert isinstance(ended, UnitEnded)
    assert ended.why.startswith("fatal, while starting: ")
    assert why in ended.why


def test_a_learner_of_another_run_or_seed_is_turned_away(tmp_path: Path) -> None:
    with cluster(tmp_path, units=("syncer",)) as units:
        units.start("learner-0", run="run-2")
        units.start("learner-1", seed=8)

        def notes(unit: str) -> list[str]:
            return [n.detail for n in units.events(unit, UnitNote)]

        # The first dials on, in case it is a mistake that somebody mends; the second is told.
        assert units.wait("learner-1") == 1
        assert "refused: layout" in units.events("learner-1", UnitEnded)[0].why
        units.until("noted", lambda: notes("learner-0"))
        assert notes("learner-0") == ["syncer: run 'run-2' is not 'run-1'"]
        assert "learner-0: run 'run-2' is not 'run-1'" in notes("syncer")


def test_the_syncer_needs_no_jax(tmp_path: Path) -> None:
    with cluster(tmp_path, units=("syncer",), trainer="lm", fragments=4, sync_every=4) as units:
        units.until("ready", lambda: units.events("syncer", UnitReady))
        maps = Path(f"/proc/{units.processes['syncer'].pid}/maps").read_text()
        assert "grpc" in maps
        assert "jaxlib" not in maps


def test_sigterm_ends_a_unit_also_while_it_cannot_reach_anybody(tmp_path: Path) -> None:
    with cluster(tmp_path, units=("learner-0",)) as units:
        units.until("ready", lambda: units.events("learner-0", UnitReady))
        assert units.stop("learner-0") == 0
        assert isinstance(units.events("learner-0")[-1], UnitEnded)
