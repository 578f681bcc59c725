"""The real trainer: it learns, repeats itself bit for bit, and starts from its cache."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from targets.diloco import codec, data
from targets.diloco.params import DilocoParams
from targets.diloco.trainers import lm
from targets.diloco.trainers.base import Arrays

PARAMS = DilocoParams(batch=4, sequence=32, fragments=6, sync_every=6, data="synthetic", learners=2)
SEED = 11


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One compilation for the whole file."""
    return str(tmp_path_factory.mktemp("compiled"))


def trainer(cache: str, *, learner: int = 0, life: int = 1, loaded: bool = True) -> lm.LmTrainer:
    made = lm.create(PARAMS, learner, SEED, life=life, cache_dir=cache)
    if loaded:
        made.load(made.layout.split(lm.initial(PARAMS, SEED)))
    return made


def parameters(made: lm.LmTrainer) -> Arrays:
    snapshot = made.snapshot()
    return made.layout.join([snapshot.read(p) for p in range(PARAMS.fragments)])


def test_it_never_trains_on_parameters_that_nobody_gave_it(cache: str) -> None:
    made = trainer(cache, loaded=False)
    made.warm()
    with pytest.raises(RuntimeError, match="before any parameters"):
        made.step()


def test_warming_up_changes_nothing(cache: str) -> None:
    made = trainer(cache)
    before = made.digests()
    made.warm()
    assert made.digests() == before
    assert made.program is not None
    assert made.compile_ns > 0


def test_loss_falls_and_held_out_quality_rises(cache: str) -> None:
    made = trainer(cache)
    start = lm.evaluate(PARAMS, parameters(made), SEED, cache_dir=cache)
    losses = [made.step().loss for _ in range(120)]
    end = lm.evaluate(PARAMS, parameters(made), SEED, cache_dir=cache)
    first, last = (np.mean([x for x in part if x]) for part in (losses[:10], losses[-10:]))
    assert last < first - 0.5
    assert end.loss < start.loss - 0.5
    assert start.accuracy is not None
    assert end.accuracy is not None
    assert end.accuracy > start.accuracy
    assert end.floor is not None
    assert end.floor < end.loss  # nobody beats the entropy of text that was held out
    assert end.tokens == 512 * PARAMS.sequence


def test_a_mixture_of_experts_learns_and_is_exchanged_like_any_other(cache: str) -> None:
    params = replace(PARAMS, form="moe", experts=3, experts_chosen=1)
    made = lm.create(params, 0, SEED, cache_dir=cache)
    initial = lm.initial(params, SEED)
    made.load(made.layout.split(initial))
    seen = [made.step().loss or 0.0 for _ in range(25)]
    assert np.mean(seen[-5:]) < np.mean(seen[:5])
    elsewhere = lm.create(params, 1, SEED, cache_dir=cache)
    elsewhere.load(elsewhere.layout.split(initial))
    for p in range(params.fragments):
        elsewhere.write(p, made.snapshot().read(p))
    assert elsewhere.digests()["params"] == made.digests()["params"]


def test_experts_that_do_not_divide_are_a_problem() -> None:
    params = replace(PARAMS, form="moe", experts=8, experts_chosen=5)
    assert lm.problems(params) == [
        "experts_chosen is 5, which does not divide the 192 hidden elements of model tiny"
    ]


def test_a_step_counts_its_tokens(cache: str) -> None:
    assert trainer(cache).step().tokens == lm.tokens_per_step(PARAMS, 0) == 4 * 32


def test_snapshots_do_not_change_while_training_goes_on(cache: str) -> None:
    made = trainer(cache)
    made.step()
    snapshot = made.snapshot()
    before = [codec.digest(snapshot.read(p)) for p in range(PARAMS.fragments)]
    made.write(0, [np.zeros_like(a) for a in snapshot.read(0)])
    made.step()
    made.write(0, [np.zeros_like(a) for a in snapshot.read(0)])
    assert [codec.digest(snapshot.read(p)) for p in range(PARAMS.fragments)] == before
    assert not any(a.any() for a in made.snapshot().read(0))


def test_write_overwrites_one_fragment_and_leaves_the_rest(cache: str) -> None:
    made = trainer(cache)
    made.step()
    before, moments = made.snapshot(), made.digests()["moments"]
    new = [a + np.float32(1) for a in before.read(2)]
    made.write(2, new)
    after = made.snapshot()
    assert codec.digest(after.read(2)) == codec.digest(new)
    for p in (0, 1, 3, 4, 5):
        assert codec.digest(after.read(p)) == codec.digest(before.read(p))
    assert made.digests()["moments"] == moments


def aligned_ones(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """At a multiple of 64 bytes, which JAX would take over without a copy."""
    size = 4 * prod(shape)
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    ones = raw[start : start + size].view(np.float32).reshape(shape)
    ones[...] = 1
    return ones


def test_what_was_written_does_not_follow_the_callers_buffer(cache: str) -> None:
    made = trainer(cache)
    buffers = [aligned_ones(shape) for shape in made.layout.shapes(1)]
    made.write(1, buffers)
    for buffer in buffers:
        buffer[...] = 7
    assert all((a == 1).all() for a in made.snapshot().read(1))


def test_write_refuses_arrays_of_another_shape(cache: str) -> None:
    made = trainer(cache)
    wrong = [np.zeros((3,), np.float32) for _ in made.layout.fragments[1]]
    before = made.digests()
    with pytest.raises(ValueError, match="has shape"):
        made.write(1, wrong)
    assert made.digests() == before


def test_load_gives_fresh_moments_and_takes_up_the_step(cache: str) -> None:
    made = trainer(cache)
    fresh = made.digests()
    for _ in range(3):
        made.step()
    trained = made.digests()
    assert all(fresh[name] != trained[name] for name in fresh)
    made.load(made.layout.split(lm.initial(PARAMS, SEED)), step=40)
    again = made.digests()
    assert (again["params"], again["moments"]) == (fresh["params"], fresh["moments"])
    assert again["step"] != fresh["step"]


def test_batches_depend_on_learner_life_and_step_only(cache: str) -> None:
    def first_loss(learner: int, life: int, step: int = 0) -> float | None:
        made = trainer(cache, learner=learner, life=life)
        made.load(made.layout.split(lm.initial(PARAMS, SEED)), step=step)
        return made.step().loss

    assert first_loss(0, 1) == first_loss(0, 1)
    losses = [first_loss(0, 1), first_loss(1, 1), first_loss(0, 2), first_loss(0, 1, step=1)]
    assert len(set(losses)) == 4


def test_learning_rate_warms_up_with_the_moments_and_decays_with_the_steps() -> None:
    rates = [lm.learning_rate(PARAMS, s, s) for s in range(1, 200)]
    warm = PARAMS.warmup_steps
    assert rates[0] == pytest.approx(PARAMS.inner_lr / warm)
    assert rates[: warm - 1] == sorted(rates[: warm - 1])
    assert rates[warm - 1] == pytest.approx(PARAMS.inner_lr)
    assert rates[warm:] == sorted(rates[warm:], reverse=True)
    assert lm.learning_rate(PARAMS, 2020, 2020) == pytest.approx(PARAMS.inner_lr / 2**0.5)
    assert lm.learning_rate(PARAMS, 2020, 1) < lm.learning_rate(PARAMS, 2020, 2020)


def test_with_a_horizon_the_rate_falls_to_a_tenth_and_stays_there() -> None:
    params = replace(PARAMS, horizon_steps=100)
    rates = [lm.learning_rate(params, s, s) for s in range(1, 150)]
    warm = params.warmup_steps
    assert rates[warm - 1] == pytest.approx(params.inner_lr)
    assert rates[warm:100] == sorted(rates[warm:100], reverse=True)
    half = warm + (100 - warm) // 2
    assert rates[half - 1] == pytest.approx(0.55 * params.inner_lr, rel=0.02)
    assert rates[99:] == pytest.approx([0.1 * params.inner_lr] * 50)


@pytest.mark.parametrize("name", ["synthetic", "cpython-docs", "cpython-library"])
def test_a_sound_corpus_is_no_problem(name: str) -> None:
    assert lm.problems(DilocoParams(data=name)) == []


def test_a_bad_corpus_is_a_problem_and_an_error(tmp_path: Path) -> None:
    params = DilocoParams(data=str(tmp_path / "nowhere"))
    (problem,) = lm.problems(params)
    assert "nowhere" in problem
    with pytest.raises(data.DataError, match="nowhere"):
        lm.create(params, 0, SEED)


PROCESS = """
import json, sys
from targets.diloco.params import DilocoParams
from targets.diloco.trainers import lm
params = DilocoParams(**json.loads(sys.argv[1]))
made = lm.create(params, 0, int(sys.argv[2]), cache_dir=sys.argv[3])
made.warm()
made.load(made.layout.split(lm.initial(params, int(sys.argv[2]))))
losses = [made.step().loss for _ in range(6)]
heavy = sorted({"flax", "optax"} & set(sys.modules))
print(json.dumps([made.program.source, heavy, losses, dict(made.digests())]))
"""


@pytest.mark.slow
def test_two_processes_agree_bit_for_bit_and_the_second_does_not_compile(tmp_path: Path) -> None:
    settings = {"batch": 4, "sequence": 32, "data": "synthetic"}

    def run() -> list[object]:
        arguments = [json.dumps(settings), str(SEED), str(tmp_path / "cache")]
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        answer: list[object] = json.loads(done.stdout)
        return answer

    cold, warm = run(), run()
    assert cold[:2] == ["compiled", ["flax", "optax"]]
    assert warm[:2] == ["cache", []]
    assert cold[2:] == warm[2:]
