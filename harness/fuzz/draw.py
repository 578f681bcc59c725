"""Experiments from a seed: a topology, a protocol setting, and faults piled on faults.

Everything is explicit in the table that comes out (victims, instants, durations), so an
experiment can lose a fault without changing the others, and a file of it needs no luck to repeat.
Half of all experiments are *calm*: one to three faults, far apart, where a bug in the handling
of a single fault shows best; the others are storms.
"""

from __future__ import annotations

from random import Random
from typing import Any

from harness.seeds import stream

Table = dict[str, Any]

STEP_TIMES_S = (0.1, 0.2, 0.3, 0.5)
WINDOW_S = 35.0
TAIL_S = 25.0


def draw(seed: int) -> Table:
    """The experiment of ``seed``; run it with the same seed."""
    rng = stream(seed, "fuzz")
    params = _params(rng)
    # From a stream of its own: whether there are checkpoints changes nothing else.
    apart = stream(seed, "fuzz", "checkpoints")
    if apart.random() < 0.4:
        params["checkpoint_every"] = apart.choice((3, 5, 8, 20))
    learners = [f"learner-{i}" for i in range(params["learners"])]
    calm = rng.random() < 0.5
    count = rng.randint(1, 3) if calm else rng.randint(4, 12)
    faults = [_fault(rng, learners) for _ in range(count)]
    faults.sort(key=lambda f: float(f["at_s"]))
    return {
        "title": f"Drawn from seed {seed}",
        "runtime": "simulated",
        "duration_s": WINDOW_S,
        "quiet_tail_s": TAIL_S,
        "seed": seed,
        "target": {"name": "diloco", "params": params},
        "runtime_options": _options(rng, params),
        "fault": faults,
    }


def _params(rng: Random) -> Table:
    learners = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6))
    quorum = rng.choice((1, 1, rng.randint(1, learners), learners))
    grace = rng.random() < 0.75
    every = rng.choice((1, 2, 3, 4, 6, 8))
    if every <= 2:
        # A fragment is adopted about a step after its merge. With merges that close together,
        # whoever trails the quorum by a moment always finds its counters just restarted when it
        # is asked: by design it is never heard.
        quorum = learners
    elif not grace and quorum < learners:
        # Likewise where steps race ahead with every report: merges must be rarer than reports.
        learners, every = min(learners, 3), rng.choice((6, 8))
        quorum = min(quorum, learners)
    params: Table = {
        "learners": learners,
        "quorum": quorum,
        "grace": grace,
        "fragments": rng.randint(1, every),
        "sync_every": every,
        "trainer": "scripted",
        "step_time_s": rng.choice(STEP_TIMES_S),
        "merge": rng.choice(("rda", "avg")),
    }
    if rng.random() < 0.15:
        params["blocking"] = True
    if rng.random() < 0.2:
        params["stale_steps_max"] = every * rng.randint(1, 4)
    if rng.random() < 0.1:
        params["trainer"] = "quadratic"
    if rng.random() < 0.15:
        params["heartbeat_ms"] = rng.choice((100, 400))
        params["silence_ms_max"] = rng.choice((900, 3000))
    if rng.random() < 0.2:
        params["pull_ms_max"] = rng.choice((100, 250, 1000))
    if rng.random() < 0.3:
        # The syncer waits for the slowest of a quorum, never for more than a step of grace.
        params["speeds"] = [rng.choice((0.7, 0.85, 1.0, 1.0, 1.15)) for _ in range(learners)]
    if rng.random() < 0.2:
        params["batches"] = [rng.choice((4, 8, 16)) for _ in range(learners)]
    return params


def _options(rng: Random, params: Table) -> Table:
    options: Table = {}
    locked = "speeds" in params and params.get("blocking", False)
    if (locked or not params["grace"]) and params["quorum"] < params["learners"]:
        # Steps of exactly one length would let the same learner win every race for ever; where
        # all wait for merges, the race for one and the same fragment.
        options["step_jitter_ms"] = round(300.0 * params["step_time_s"], 3)
    if rng.random() < 0.3:
        options["stall_heals"] = rng.choice(("recreate", "either"))
    if rng.random() < 0.2:
        options["latency_ms"] = [rng.choice((1.0, 10.0)), rng.choice((20.0, 60.0))]
    if rng.random() < 0.2:
        options["restart_ms"] = [500.0, rng.choice((1000.0, 4000.0))]
    if rng.random() < 0.2:
        options["fsync_ms"] = [5.0, rng.choice((20.0, 80.0))]
    if rng.random() < 0.2:
        units = ["syncer", *(f"learner-{i}" for i in range(params["learners"]))]
        options["clock_skew_ms"] = {rng.choice(units): rng.choice((500.0, 30_000.0))}
        options["clock_drift_ppm"] = {rng.choice(units): rng.choice((-500.0, 200.0))}
    return options


def _fault(rng: Random, learners: list[str]) -> Table:
    at_s = round(rng.uniform(0.5, WINDOW_S - 5), 2)
    for_s = round(min(rng.choice((0.3, 1.0, 2.5, 6.0, 12.0)) * rng.uniform(0.5, 1.5), 20.0), 2)
    kind = rng.choice(_KINDS)
    syncer = kind in _DURABLE or (kind in _SYNCER_TOO and rng.random() < 0.25)
    fault: Table = {
        "kind": kind,
        "where": ["syncer" if syncer else rng.choice(learners)],
        "at_s": at_s,
    }
    fault.update(_OWN.get(kind, lambda _: {})(rng))
    if kind not in _AT_ONCE:
        fault["for_s"] = for_s
    return fault


_DURABLE = {"lose_checkpoint", "corrupt_checkpoint", "torn_write", "disk_full"}
"""Of the syncer: learners keep nothing that outlives them."""
_AT_ONCE = {"kill", "terminate", "crash_loop", "oom"} | _DURABLE - {"disk_full"}
_SYNCER_TOO = {"kill", "terminate", "crash_loop", "pause", "oom"}
_KINDS = (
    *("kill",) * 4,
    *("terminate", "crash_loop", "hang", "straggle", "throttle", "bandwidth", "cut", "flap"),
    *("duplicate_update", "stale_update", "corrupt_update"),
    *("pause", "partition", "partition_oneway", "stall", "reset") * 2,
    *("refuse", "latency", "disconnect"),
    *("oom", "lose_checkpoint", "corrupt_checkpoint", "torn_write", "disk_full"),
)
_OWN = {
    "terminate": lambda rng: {"grace_s": rng.choice((0.2, 2.0, 10.0))},
    "crash_loop": lambda rng: {"times": rng.randint(2, 4), "every_s": rng.choice((0.6, 1.9, 4.0))},
    # A flipped sign or scale is data corruption that no protocol can see; broken numbers it can.
    "corrupt_update": lambda rng: {"how": rng.choice(("nan", "inf", "bitflip"))},
    "straggle": lambda rng: {"factor": rng.choice((1.5, 2.0, 5.0))},
    "throttle": lambda rng: {"cpu_share": rng.choice((0.1, 0.25, 0.5))},
    "partition_oneway": lambda rng: {"direction": rng.choice(("up", "down"))},
    "latency": lambda rng: {"latency_ms": rng.choice((20.0, 120.0, 700.0))},
    "bandwidth": lambda rng: {"kb_s": rng.choice((20.0, 200.0))},
    "cut": lambda rng: {"after_bytes": rng.choice((2_000, 50_000))},
    "flap": lambda rng: {"down_s": rng.choice((0.2, 1.0)), "up_s": rng.choice((0.3, 2.0))},
}
