"""Generated fault schedules in two acts: nothing forbidden while faults rage, and a cluster that
is itself again once they are over."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import events as ev
from targets.diloco.params import DilocoParams
from tests.targets.diloco.pump import MS, Pump, audit, params_of, token_books

ACTIONS = (
    "kill",
    "spawn",
    "freeze",
    "thaw",
    "cut",
    "silence",
    "silence_up",
    "silence_down",
    "heal",
    "refuse",
    "poison",
    "slow",
)
LIVENESS_MS = 4000
"""Silence bound, redial, one cycle of fragments, one late pull: with room to spare."""

units = st.sampled_from(["syncer", "learner-0", "learner-1", "learner-2"])
schedules = st.lists(
    st.tuples(st.integers(1, 600), st.sampled_from(ACTIONS), units), min_size=1, max_size=14
)


@st.composite
def settings_drawn(draw: st.DrawFn) -> DilocoParams:
    fragments = draw(st.integers(1, 4))
    sync_every = draw(st.integers(fragments, 6))
    blocking = draw(st.booleans())
    return params_of(
        learners=3,
        quorum=3 if blocking else draw(st.integers(1, 3)),
        grace=draw(st.booleans()),
        blocking=blocking,
        fragments=fragments,
        sync_every=sync_every,
        pull_ms_max=draw(st.sampled_from([50, 300])),
        stale_steps_max=draw(st.sampled_from([None, sync_every, 8])),
        silence_ms_max=800,
        heartbeat_ms=200,
    )


def inflict(pump: Pump, action: str, name: str) -> None:
    unit = pump.units[name]
    if action == "kill" and unit.alive:
        pump.kill(name)
    elif action == "spawn" and not unit.alive:
        pump.spawn(name)
    elif action == "freeze" and unit.alive:
        pump.freeze(name)
    elif action == "thaw" and unit.alive:
        pump.thaw(name)
    elif name == "syncer":
        return
    elif action == "cut":
        pump.cut(name)
    elif action.startswith("silence"):
        pump.silence(name, up=action != "silence_down", down=action != "silence_up")
    elif action == "heal":
        pump.heal(name)
    elif action == "refuse":
        pump.wires[name].refused = True
        pump.cut(name)
    elif action == "poison":
        pump.poison[name] = "NaN"
    elif action == "slow":
        pump.step_ms[name] = 250


def restore(pump: Pump) -> None:
    pump.poison.clear()
    pump.step_ms = dict.fromkeys(pump.learners, 50)
    for name, unit in pump.units.items():
        if unit.alive:
            pump.thaw(name)
        if not pump.units[name].alive:
            pump.spawn(name)
        if name != "syncer":
            pump.heal(name)


@settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(params=settings_drawn(), schedule=schedules, latency=st.sampled_from([1, 20]))
def test_nothing_forbidden_and_then_everybody_is_heard(
    params: DilocoParams, schedule: list[tuple[int, str, str]], latency: int
) -> None:
    pump = Pump(params, step_ms=50, latency_ms=latency).start().run(400)
    for after_ms, action, name in schedule:
        pump.run(after_ms)
        inflict(pump, action, name)
    books(pump)
    restore(pump)
    healed = pump.now
    pump.run(LIVENESS_MS)
    books(pump)
    merges = pump.of(ev.Merged, healed)
    assert merges, f"nothing merged after healing: {pump.syncer.pending()}"
    assert merges[-1].t_ns > pump.now - 1000 * MS, f"merging ended: {pump.syncer.pending()}"
    # Racing (K < M without grace) may overwrite one learner's every step before it is pulled,
    # for as long as all steps take exactly the same time. That is the protocol, not a fault.
    if params.grace or params.quorum == params.learners:
        heard = {c.unit for merged in merges for c in merged.contributions}
        assert heard == set(pump.learners), f"not heard again: {pump.syncer.pending()}"


def books(pump: Pump) -> None:
    audit(pump.notes, pump.params.fragments)
    for book in token_books(pump):
        assert book["trained"] == book["merged"] + book["lost"] + book["in_flight"], book
