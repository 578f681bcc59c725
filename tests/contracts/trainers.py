"""What must hold for every trainer; plain functions, called by each trainer's own tests."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from targets.diloco import trainers
from targets.diloco.codec import digest
from targets.diloco.params import DilocoParams
from targets.diloco.trainers.base import Arrays, Layout, State, Trainer

SEED = 11


def loaded(params: DilocoParams, learner: int = 0, life: int = 1, steps: int = 0) -> Trainer:
    """A trainer at the initial parameters that took ``steps`` steps."""
    module = trainers.load(params.trainer)
    trainer = module.create(params, learner, SEED, life=life)
    trainer.load(trainer.layout.split(module.initial(params, SEED)))
    for _ in range(steps):
        trainer.step()
    return trainer


def held(trainer: Trainer) -> list[Arrays]:
    """All fragments of the trainer's present parameters."""
    snapshot = trainer.snapshot()
    return [snapshot.read(p) for p in range(len(trainer.layout.fragments))]


def same(a: Sequence[Arrays], b: Sequence[Arrays]) -> bool:
    return [digest(f) for f in a] == [digest(f) for f in b]


def check_trainer(params: DilocoParams, learns: bool = True) -> None:
    """Everything below. ``learns`` False for a trainer without arithmetic."""
    check_layout_and_initial(params)
    check_nobody_trains_on_a_model_of_its_own(params)
    check_reads_and_writes(params)
    check_snapshots_never_change(params, learns)
    check_repeats(params, learns)
    check_a_whole_state_moves(params)


def check_layout_and_initial(params: DilocoParams) -> None:
    module = trainers.load(params.trainer)
    tensors = module.tensors(params)
    assert len({t.name for t in tensors}) == len(tensors)
    assert sum(t.embedding for t in tensors) >= 1
    assert module.problems(params) == []
    first, again = module.initial(params, SEED), module.initial(params, SEED)
    assert digest(first) == digest(again)
    for tensor, array in zip(tensors, first, strict=True):
        assert array.shape == tensor.shape
        assert array.dtype == np.dtype(np.float32)
        assert np.isfinite(array).all()
    trainer = module.create(params, 0, SEED)
    assert trainer.layout == Layout.of(tensors, params.fragments)
    assert sum(trainer.layout.elements) == sum(t.elements for t in tensors)


def check_nobody_trains_on_a_model_of_its_own(params: DilocoParams) -> None:
    trainer = trainers.load(params.trainer).create(params, 0, SEED)
    trainer.warm()
    with pytest.raises(RuntimeError):
        trainer.step()


def check_reads_and_writes(params: DilocoParams) -> None:
    """What is loaded or written is read back to the bit; other fragments stay."""
    module = trainers.load(params.trainer)
    trainer = loaded(params)
    initial = trainer.layout.split(module.initial(params, SEED))
    assert same(held(trainer), initial)
    moments = trainer.digests()["moments"]
    for fragment in range(len(initial)):
        new = [np.asarray(a + np.float32(1), dtype=np.float32) for a in initial[fragment]]
        trainer.write(fragment, new)
        initial[fragment] = new
        assert same(held(trainer), initial)
    assert trainer.digests()["moments"] == moments


def check_snapshots_never_change(params: DilocoParams, learns: bool) -> None:
    trainer = loaded(params, steps=1)
    snapshot = trainer.snapshot()
    before = [digest(snapshot.read(p)) for p in range(params.fragments)]
    trainer.step()
    assert before == [digest(snapshot.read(p)) for p in range(params.fragments)]
    stepped = trainer.snapshot()
    digests = [digest(stepped.read(p)) for p in range(params.fragments)]
    trainer.write(0, [np.zeros_like(a) for a in stepped.read(0)])
    assert digests == [digest(stepped.read(p)) for p in range(params.fragments)]
    if learns:
        assert before != [digest(f) for f in held(trainer)]


def check_repeats(params: DilocoParams, learns: bool) -> None:
    """Equal (seed, learner, life, step) give equal bits; another learner or life other data."""
    trainer = loaded(params)
    results = [trainer.step() for _ in range(3)]
    tokens = trainers.load(params.trainer).tokens_per_step(params, 0)
    assert {r.tokens for r in results} == {tokens}
    again = loaded(params, steps=3)
    assert trainer.digests() == again.digests()
    assert same(held(trainer), held(again))
    assert set(trainer.digests()) == {"params", "moments", "step", "learning_rate"}
    if learns:
        assert all(r.loss is not None and math.isfinite(r.loss) for r in results)
        assert not same(held(trainer), held(loaded(params, learner=1, steps=3)))
        assert not same(held(trainer), held(loaded(params, life=2, steps=3)))


def check_needs_no_jax(params: DilocoParams) -> None:
    """What the syncer and the harness use of a trainer module imports no accelerator library."""
    code = f"""
import sys
from targets.diloco import trainers
from targets.diloco.params import DilocoParams
params = DilocoParams(trainer={params.trainer!r}, model={params.model!r}, data={params.data!r})
module = trainers.load(params.trainer)
module.tensors(params), module.problems(params), module.initial(params, 1)
module.tokens_per_step(params, 0)
assert not {{"jax", "flax", "optax"}} & set(sys.modules), "heavy imports"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def check_a_whole_state_moves(params: DilocoParams) -> None:
    """Another replica goes on from a snapshot's whole state as the first one would have."""
    module = trainers.load(params.trainer)
    donor = loaded(params, steps=3)
    snapshot = donor.snapshot()
    told = dict(snapshot.digests())
    assert told == dict(donor.digests())
    donor.step()  # what was handed out does not change
    count = range(len(donor.layout.fragments))
    inner = [snapshot.inner(p) for p in count]
    state = State(
        params=[snapshot.read(p) for p in count],
        first=[first for first, _ in inner],
        second=[second for _, second in inner],
        trained=snapshot.trained,
        moments=snapshot.moments,
    )
    for other in (module.create(params, 0, SEED, life=1), loaded(params, learner=0, steps=2)):
        other.restore(state)
        assert dict(other.digests()) == told
        assert other.snapshot().trained == 3
    twin = module.create(params, 0, SEED, life=1)
    twin.restore(state)
    assert twin.step() == loaded(params, steps=3).step()
    assert dict(twin.digests()) == dict(donor.digests())
