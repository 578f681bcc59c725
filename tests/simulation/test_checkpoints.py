"""Checkpoints of the simulated cluster: consistent cuts under faults, and resuming from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from harness.errors import SpecError
from harness.events import (
    Checkpointed,
    Joined,
    Merged,
    Resumed,
    SnapshotComplete,
    Step,
    UnitNote,
)
from reports.seam import across
from targets.diloco import resuming
from targets.diloco.checkpointing import Checkpointing
from targets.diloco.checkpoints import MemoryCheckpoints, Part
from targets.diloco.snapshots import Seam, Snapshots
from tests.simulation.cuts import SYNCER, Run
from tests.simulation.helpers import experiment, fault

S = 1_000_000_000
FAULTS = ("kill", "pause", "partition", "reset", "latency", "straggle")
LOCKSTEP: dict[str, Any] = {"quorum": 4, "grace": False, "blocking": True, "trainer": "quadratic"}


def drawn(seed: int, **params: Any) -> dict[str, Any]:
    """A short run with a few faults at random places; the syncer may be hit, too."""
    rng = Random(seed)
    faults = []
    for _ in range(rng.randrange(4)):
        kind = rng.choice(FAULTS)
        where = rng.choice(["learner-0", "learner-1", "learner-2"])
        if kind == "kill" and rng.random() < 0.4:
            where = SYNCER
        own: dict[str, Any] = {"latency": {"latency_ms": 250}, "straggle": {"factor": 2.5}}
        lasts = None if kind in ("kill", "reset") else rng.choice([0.8, 3.0])
        if kind == "reset":
            lasts = 0.5
        faults.append(fault(kind, where, round(rng.uniform(0, 11), 2), lasts, **own.get(kind, {})))
    return experiment(
        *faults,
        duration_s=12,
        quiet_tail_s=10,
        options={"latency_ms": [0.2, rng.choice([1.0, 60.0, 180.0])]},
        quorum=rng.choice([1, 2, 4]),
        checkpoint_every=rng.choice([5, 8, 13]),
        sync_every=rng.choice([4, 6]),
        **params,
    )


@pytest.mark.parametrize("seed", range(10))
def test_every_cut_is_consistent_whatever_happens(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(drawn(seed), seed, tmp_path / "run", monkeypatch)
    assert run.violations() == []
    assert run.of(SnapshotComplete)


def test_messages_are_in_flight_and_recorded_where_not_everybody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = experiment(
        fault("latency", "learner-1", 0, 20, latency_ms=300),
        duration_s=20,
        checkpoint_every=12,
        silence_ms_max=4000,
    )
    run = Run(table, 3, tmp_path / "run", monkeypatch)
    assert run.violations() == []
    counts = [c.in_flight for c in run.of(SnapshotComplete)]
    # Its number differs from learner to learner.
    assert any(c["learner-1"] > max(c["learner-0"], c["learner-2"]) for c in counts)


def test_a_learner_that_dies_is_omitted_and_the_others_complete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = experiment(duration_s=8, checkpoint_every=16)
    calm = Run(quick, 5, tmp_path / "calm", monkeypatch)
    cut = next(c.t_ns for c in calm.of(Checkpointed, SYNCER) if c.marker == 32)
    steady_ns = calm.history.start_ns
    assert steady_ns is not None
    at_s = (cut - steady_ns) / S - 0.05
    slow = {"latency_ms": [90.0, 110.0]}
    table = experiment(
        fault("kill", "learner-2", at_s), duration_s=8, checkpoint_every=16, options=slow
    )
    run = Run(table, 5, tmp_path / "run", monkeypatch)
    assert run.violations() == []
    omitted = [c for c in run.of(SnapshotComplete) if "learner-2" in c.omitted]
    assert omitted
    assert set(omitted[0].members) == {"learner-0", "learner-1", "learner-3"}
    assert "learner-2" not in omitted[0].in_flight


def test_two_complete_checkpoints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(experiment(checkpoint_every=8), 1, tmp_path / "run", monkeypatch)
    done = [c.marker for c in run.of(SnapshotComplete)]
    assert len(done) > 4
    for unit, store in run.stores().items():
        assert store.markers()[:2] == tuple(done[-2:]), unit
        assert len(store.markers()) <= 3
    assert run.target.parts(SYNCER).markers(sealed=True) == tuple(done[-2:])


def test_nothing_is_checkpointed_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(experiment(duration_s=8), 1, tmp_path / "run", monkeypatch)
    assert run.of(Checkpointed) == []
    assert not (tmp_path / "run" / resuming.FOLDER).exists()


@pytest.mark.parametrize("unit", ["learner-1", SYNCER])
def test_a_disk_that_fails_costs_the_part_and_not_the_run(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = MemoryCheckpoints.keep

    def keep(self: MemoryCheckpoints, part: Part, read: Any) -> Part:
        if part.unit == unit and 20 <= part.marker <= 30:
            raise OSError("no space left")
        return sound(self, part, read)

    monkeypatch.setattr(MemoryCheckpoints, "keep", keep)
    run = Run(experiment(duration_s=12, checkpoint_every=10), 3, tmp_path / "run", monkeypatch)
    assert run.violations() == []
    told = [n.detail for n in run.of(UnitNote, unit) if n.what == "checkpoint-failed"]
    assert len(told) == 2
    assert all("no space left" in detail for detail in told)
    done = {c.marker: c for c in run.of(SnapshotComplete)}
    if unit == SYNCER:
        assert not done.keys() & {20, 30}
    else:
        assert "no space left" in done[20].omitted[unit]
    assert unit in {**done[40].members, SYNCER: 1}


# --- resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_resumed_run_goes_on_and_counts_nothing_twice(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(drawn(seed), seed, tmp_path / "first", monkeypatch)
    table = drawn(seed)
    table["fault"] = drawn(seed + 1000)["fault"]
    second = Run(table, seed, tmp_path / "second", monkeypatch, first)
    assert second.violations() == []
    assert across(first.history, second.history) == []
    marker = first.of(SnapshotComplete)[-1].marker
    seam = second.of(Resumed, SYNCER)[0]
    assert (seam.marker, seam.step) == (marker, marker)
    assert min(m.clock for m in second.of(Merged)) > marker


def test_from_files_and_from_memory_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(drawn(2, trainer="quadratic"), 2, tmp_path / "first", monkeypatch)
    stores: list[Run | Path] = [first, tmp_path / "first"]
    runs = [
        Run(drawn(2, trainer="quadratic"), 2, tmp_path / f"second-{i}", monkeypatch, earlier)
        for i, earlier in enumerate(stores)
    ]
    assert runs[0].ran.journal == runs[1].ran.journal
    assert runs[0].of(Resumed)


@pytest.mark.parametrize("wires", [{}, {"wire_up": "int4", "wire_down": "bf16"}])
@pytest.mark.parametrize("sync_every", [4, 6])
def test_in_lockstep_the_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    sync_every: int, wires: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {
        **LOCKSTEP,
        "checkpoint_every": 10,
        "sync_every": sync_every,
        "wire_up": "f32",
    }
    whole = Run(
        experiment(duration_s=14, quiet_tail_s=2, **own), 4, tmp_path / "whole", monkeypatch
    )
    first = Run(experiment(duration_s=5, quiet_tail_s=1, **own), 4, tmp_path / "1", monkeypatch)
    second = Run(
        experiment(duration_s=5, quiet_tail_s=1, **own), 4, tmp_path / "2", monkeypatch, first
    )
    assert across(first.history, second.history) == []
    expected = {(m.fragment, m.version): m.digest for m in whole.of(Merged)}
    found = {(m.fragment, m.version): m.digest for m in second.of(Merged)}
    assert len(found) >= 15
    assert found.items() <= expected.items()
    losses = {(s.unit, s.step): s.loss for s in whole.of(Step)}
    again = {(s.unit, s.step): s.loss for s in second.of(Step)}
    assert again.items() <= losses.items()


def test_resuming_twice_goes_on_from_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {**LOCKSTEP, "checkpoint_every": 10}
    runs: list[Run] = []
    for i in range(3):
        earlier = runs[-1] if runs else None
        table = experiment(duration_s=5, quiet_tail_s=1, **own)
        runs.append(Run(table, 4, tmp_path / str(i), monkeypatch, earlier))
    whole = Run(
        experiment(duration_s=20, quiet_tail_s=1, **own), 4, tmp_path / "whole", monkeypatch
    )
    expected = {(m.fragment, m.version): m.digest for m in whole.of(Merged)}
    found = {(m.fragment, m.version): m.digest for m in runs[2].of(Merged)}
    assert found.items() <= expected.items()
    assert min(v for _, v in found) > max(v for f, v in _versions(runs[1], upto=runs[2]))


def _versions(run: Run, upto: Run) -> list[tuple[int, int]]:
    marker = upto.of(Resumed, SYNCER)[0].marker
    return [(m.fragment, m.version) for m in run.of(Merged) if m.clock <= marker - 4]


@pytest.mark.parametrize("wires", [("int4", "bf16"), ("int4", "int4"), ("bf16", "bf16")])
def test_resuming_with_compressed_fragments(
    wires: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down = wires
    own: dict[str, Any] = {
        "trainer": "quadratic",
        "checkpoint_every": 10,
        "wire_up": up,
        "wire_down": down,
    }
    table = experiment(duration_s=6, quiet_tail_s=4, **own)
    first = Run(table, 4, tmp_path / "1", monkeypatch)
    second = Run(table, 4, tmp_path / "2", monkeypatch, first)
    assert second.violations() == []
    assert across(first.history, second.history) == []
    # Nobody is refused for an anchor of the earlier run.
    assert [m.excluded for m in second.of(Merged) if "refused" in str(m.excluded)] == []


def test_a_learner_without_a_part_recovers_from_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = experiment(duration_s=8, checkpoint_every=10)
    first = Run(table, 6, tmp_path / "1", monkeypatch)
    marker = first.of(SnapshotComplete)[-1].marker
    first.target.parts("learner-1").drop([marker])
    second = Run(table, 6, tmp_path / "2", monkeypatch, first)
    assert any("learner-1" in note and "recovers" in note for note in second.notes)
    joined = second.of(Joined, "learner-1")[0]
    assert joined.source not in ("checkpoint", "initial", "syncer")
    assert second.violations() == []
    assert [r.unit for r in second.of(Resumed)].count("learner-1") == 0


def test_all_that_die_before_they_load_recover_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life after the first one never goes on from the part: its steps may be merged by then."""
    table = experiment(duration_s=8, checkpoint_every=10)
    first = Run(table, 6, tmp_path / "1", monkeypatch)
    table = experiment(fault("kill", "learner-1", 0.5), duration_s=8, checkpoint_every=10)
    second = Run(table, 6, tmp_path / "2", monkeypatch, first)
    sources = [j.source for j in second.of(Joined, "learner-1")]
    assert sources[0] == "checkpoint"
    assert "checkpoint" not in sources[1:]
    assert second.violations() == []


def test_the_syncer_of_a_resumed_run_may_die_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(experiment(duration_s=8, checkpoint_every=10), 6, tmp_path / "1", monkeypatch)
    for at_s in (0.05, 1.0):
        table = experiment(fault("kill", SYNCER, at_s), duration_s=8, checkpoint_every=10)
        second = Run(table, 6, tmp_path / f"2-{at_s}", monkeypatch, first)
        assert second.violations() == []
        assert across(first.history, second.history) == []


# --- what cannot be resumed from ----------------------------------------------------------------


def refused(run: Run, table: dict[str, Any], seed: int, tmp_path: Path, patch: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        Run(table, seed, tmp_path / "refused", patch, run)
    return list(caught.value.problems)


def test_another_seed_or_layout_is_refused_with_every_checkpoint_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = experiment(duration_s=8, checkpoint_every=10)
    first = Run(table, 6, tmp_path / "1", monkeypatch)
    problems = refused(first, table, 7, tmp_path, monkeypatch)
    assert len(problems) == 2
    assert all("another parameter layout or seed" in p for p in problems)
    other = experiment(duration_s=8, checkpoint_every=10, fragments=2)
    assert refused(first, other, 6, tmp_path, monkeypatch) == problems


def test_a_run_without_a_complete_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(experiment(duration_s=8), 6, tmp_path / "1", monkeypatch)
    table = experiment(duration_s=8)
    assert refused(first, table, 6, tmp_path, monkeypatch) == [
        "no complete checkpoint: there is none"
    ]
    first.target.parts(SYNCER)._parts[10] = msgspec.structs.replace(
        _any_part(tmp_path, monkeypatch)
    )
    assert refused(first, table, 6, tmp_path, monkeypatch) == [
        "no complete checkpoint: 1 were begun and none was completed"
    ]


def _any_part(tmp_path: Path, patch: pytest.MonkeyPatch) -> Any:
    run = Run(experiment(duration_s=8, checkpoint_every=10), 6, tmp_path / "any", patch)
    store = run.target.parts(SYNCER)
    return store.load(store.markers()[0])


def test_a_damaged_part_of_the_syncer_falls_back_to_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = experiment(duration_s=8, checkpoint_every=10, trainer="quadratic")
    first = Run(table, 6, tmp_path / "1", monkeypatch)
    older, newer = first.target.parts(SYNCER).markers(sealed=True)
    folder = tmp_path / "1" / resuming.FOLDER / SYNCER
    path = folder / f"{newer:08d}" / "fragment-001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    second = Run(table, 6, tmp_path / "2", monkeypatch, tmp_path / "1")
    assert second.of(Resumed, SYNCER)[0].marker == older
    assert any(str(newer) in note and "the one before it" in note for note in second.notes)
    (folder / f"{older:08d}" / "MANIFEST.json").write_text("{}")
    with pytest.raises(SpecError) as caught:
        Run(table, 6, tmp_path / "3", monkeypatch, tmp_path / "1")
    assert len(caught.value.problems) == 2


# --- planted bugs -------------------------------------------------------------------------------


def ignores_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpointing, "passed", lambda self, clock: 0)


def cuts_late(patch: pytest.MonkeyPatch) -> None:
    sound = Checkpointing.passed

    def passed(self: Any, clock: dict[str, int]) -> int:
        return sound(self, {n: max(0, c - 6) if n == SYNCER else c for n, c in clock.items()})

    patch.setattr(Checkpointing, "passed", passed)


def loses_in_flight(patch: pytest.MonkeyPatch) -> None:
    sound = Snapshots.heard

    def heard(self: Any, name: str, message: Any) -> Any:
        effects = sound(self, name, message)
        if self._open is not None:
            self._open.in_flight.clear()
        return effects

    patch.setattr(Snapshots, "heard", heard)


def forgets_what_was_merged(patch: pytest.MonkeyPatch) -> None:
    sound = resuming.seam_of

    def seam_of(*given: Any) -> Seam:
        seam = sound(*given)
        for saved in seam.fragments:
            saved["merged"] = {name: [1, 0, 0] for name in saved["merged"]}
        return seam

    patch.setattr(resuming, "seam_of", seam_of)


def resumes_again_in_later_lives(patch: pytest.MonkeyPatch) -> None:
    sound = resuming.Resumption.seam

    def seam(self: Any) -> Seam:
        found: Seam = sound(self)
        for saved in found.fragments:
            saved["version"] -= 1
        return found

    patch.setattr(resuming.Resumption, "seam", seam)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "the marker is ignored": (ignores_marker, {"checkpoints"}),
    "the cut is made late": (cuts_late, {"checkpoints", "cut"}),
    "messages in flight are lost": (loses_in_flight, {"in-flight"}),
    "what was merged is merged again": (forgets_what_was_merged, {"tokens-once", "seam"}),
    "versions fall back": (resumes_again_in_later_lives, {"versions", "seam", "checkpoints"}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bugs_are_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, checks = MUTANTS[name]
    names: set[str] = set()
    with monkeypatch.context() as patch:
        plant(patch)
        for seed in range(8):
            first = Run(drawn(seed), seed, tmp_path / f"1-{seed}", monkeypatch)
            names |= {v.check for v in first.violations()}
            if first.of(SnapshotComplete):
                second = Run(drawn(seed), seed, tmp_path / f"2-{seed}", monkeypatch, first)
                names |= {v.check for v in second.violations()}
                names |= {"seam" for _ in across(first.history, second.history)}
            if names & checks:
                return
    pytest.fail(f"{name}: only {sorted(names)} spoke")


def test_notes_tell_of_snapshots_that_were_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link so slow that the marker is not back before the next one is due."""
    table = experiment(
        fault("latency", "learner-1", 0, 12, latency_ms=900),
        duration_s=12,
        quiet_tail_s=6,
        checkpoint_every=4,
        silence_ms_max=6000,
    )
    run = Run(table, 3, tmp_path / "run", monkeypatch)
    told = [n.detail for n in run.of(UnitNote, SYNCER) if n.what == "snapshot-given-up"]
    assert any("learner-1" in detail and "is due" in detail for detail in told)
    assert run.violations() == []
