"""Settings of the Decoupled DiLoCo target, with units in their names, validated together.

A plain dataclass, so that a unit's process need not import pydantic; the bounds are
``annotated_types`` metadata, which pydantic enforces when an experiment is composed and turns
into the JSON schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class DilocoParams:
    """Parameters of ``[target] name = "diloco"``."""

    preset: Literal["", "decoupled", "streaming", "diloco", "lockstep"] = ""
    """A way of training by name, which sets others of these (``targets.diloco.presets``)."""
    learners: Annotated[int, Ge(1), Le(64)] = 4
    """M: learner units, named learner-0 to learner-(M-1)."""
    quorum: Positive = 1
    """K: fresh reports that a syncer step needs (paper 3.2)."""
    grace: bool = True
    """Whether the adaptive grace window follows the quorum (paper eq. 3)."""
    grace_gamma: Annotated[float, Gt(0), Le(1)] = 0.9
    """Safety factor of the grace window; the paper says only < 1."""
    ema_alpha: Annotated[float, Gt(0), Le(1)] = 0.2
    """Weight of the newest sample in the moving averages behind the grace window."""
    fragments: Positive = 24
    """P: disjoint groups of parameters; the embedding has one of its own."""
    sync_every: Positive = 24
    """H: global steps between two merges of one fragment."""
    tau: Positive = 2
    """Steps within which a merge should have come back (paper section 2)."""
    blocking: bool = False
    """Learners wait for the merge of every fragment that is due (streaming, diloco, lockstep)."""
    merge: Literal["rda", "avg"] = "rda"
    """Rule for all fragments but the embedding, which is always averaged (paper D.2)."""
    outer_lr: Annotated[float, Gt(0)] = 0.7
    outer_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    stale_steps_max: Positive | None = None
    """Oldest base (in global steps) a contribution may have; None means 2 * sync_every."""
    pull_ms_max: Positive = 500
    """How long the syncer waits for pulled fragments before it merges without the late ones."""
    heartbeat_ms: Positive = 250
    """Each side sends at least this often."""
    silence_ms_max: Positive = 1500
    """A peer that was not heard for so long is given up and the link is made anew."""
    wire_up: Literal["f32", "bf16", "int4"] = "f32"
    """How fragments travel from learner to syncer; ``int4``: only their change since the version
    that they build upon, in four bits an element (``targets.diloco.int4``)."""
    wire_down: Literal["f32", "bf16", "int4"] = "f32"
    """How they travel back; ``int4``: only their change since the version before, and whole in
    f32 to whoever lacks that one."""
    error_feedback: bool = False
    """With ``wire_up = "int4"``: what rounding left out of a push is added to the next one."""

    recovery: Literal["peer", "syncer"] = "peer"
    """Where a restarted learner's state comes from: a healthy peer's parameters and inner
    optimizer state (paper E.3), or the syncer's parameters with fresh inner state."""
    recovery_steps_max: Positive | None = None
    """Global steps that one donor may take; then another one is asked. None: ``sync_every``."""
    recovery_peers: Positive = 3
    """Learners that each learner has a link to for recovery, those that follow it in a ring."""

    evaluate_every: Annotated[int, Ge(0)] = 0
    """Global steps between two evaluations of the global parameters on held-out data; 0: never.
    They cost no virtual time; a real syncer does them beside its other work."""

    checkpoint_every: Annotated[int, Ge(0)] = 0
    """T_c: global steps between two snapshots of the whole cluster (paper E.2); 0: never."""

    trainer: Literal["lm", "quadratic", "scripted"] = "lm"
    step_time_s: Annotated[float, Ge(0)] = 0.1
    """Emulated duration of one inner step; 0 runs as fast as the host can."""
    speeds: Annotated[tuple[float, ...], MinLen(0)] = ()
    """Speed of each learner's emulated chip (1.0 nominal); empty means all 1.0."""
    groups: tuple[str, ...] = ()
    """Region of each learner; empty means one region."""
    batch: Positive = 8
    """Sequences per inner step."""
    batches: tuple[int, ...] = ()
    """Sequences per inner step of each learner (mixed hardware); empty means ``batch``."""
    sequence: Annotated[int, Ge(8)] = 64
    """Bytes per sequence."""
    model: Literal["micro", "tiny", "small", "base", "100m"] = "tiny"
    """tiny has about 115 k parameters; see targets.diloco.trainers.lm for the others."""
    form: Literal["dense", "moe"] = "dense"
    """Feed-forward blocks: one for all tokens, or a mixture of experts."""
    experts: Annotated[int, Ge(2), Le(64)] = 4
    """Experts of each layer (``form = "moe"``)."""
    experts_chosen: Positive = 2
    """Experts that each token goes through."""
    data: str = "cpython-docs"
    """cpython-docs, cpython-library, synthetic, or the path of a file or folder to train on."""
    inner_lr: Annotated[float, Gt(0)] = 3e-3
    warmup_steps: Annotated[int, Ge(0)] = 20
    horizon_steps: Annotated[int, Ge(0)] = 0
    """Inner steps after which the learning rate of trainer ``lm`` has fallen to a tenth, as a
    cosine; 0: no horizon, a slow decay without end."""
    weight_decay: Annotated[float, Ge(0)] = 0.1
    scripted_elements: Positive = 4096
    """Parameters of the scripted and quadratic trainers."""

    @property
    def stale_limit(self) -> int:
        """The staleness bound in force, in global steps."""
        return self.stale_steps_max or 2 * self.sync_every

    @property
    def recovery_limit(self) -> int:
        """Global steps that a recovery from one donor may take."""
        return self.recovery_steps_max or self.sync_every

    def donors(self, index: int) -> tuple[str, ...]:
        """Learners that the one with number ``index`` may recover from, in the order of asking."""
        if self.recovery == "syncer":
            return ()
        count = min(self.recovery_peers, self.learners - 1)
        return tuple(self.learner_name((index + 1 + i) % self.learners) for i in range(count))

    def problems(self) -> list[str]:
        """Every mistake that needs more than one field to see; empty when sound."""
        found = []
        if self.quorum > self.learners:
            found.append(f"quorum is {self.quorum} but there are only {self.learners} learners")
        if self.fragments > self.sync_every:
            found.append(
                f"fragments is {self.fragments} but sync_every is {self.sync_every}: "
                "each fragment needs a step of its own, so fragments <= sync_every"
            )
        if self.stale_steps_max is not None and self.stale_steps_max < self.sync_every:
            found.append(
                f"stale_steps_max is {self.stale_steps_max} but sync_every is {self.sync_every}: "
                "a contribution's base is at least one cycle old, so every one would be refused"
            )
        if self.silence_ms_max <= 2 * self.heartbeat_ms:
            found.append(
                f"silence_ms_max is {self.silence_ms_max} but heartbeat_ms is "
                f"{self.heartbeat_ms}: allow at least two heartbeats"
            )
        for name in ("speeds", "groups", "batches"):
            values = getattr(self, name)
            if values and len(values) != self.learners:
                found.append(f"{name} has {len(values)} entries for {self.learners} learners")
        if self.error_feedback and self.wire_up != "int4":
            found.append(
                f'error_feedback has nothing to feed back: wire_up is "{self.wire_up}", not "int4"'
            )
        if self.experts_chosen > self.experts:
            found.append(
                f"experts_chosen is {self.experts_chosen} but there are only {self.experts} experts"
            )
        if self.evaluate_every and self.trainer == "scripted":
            found.append("evaluate_every: the scripted trainer learns nothing to evaluate")
        if any(s <= 0 for s in self.speeds):
            found.append("speeds must be positive")
        if any(b < 1 for b in self.batches):
            found.append("batches must be positive")
        return found

    def cautions(self) -> list[str]:
        """Settings that are allowed and seldom meant, one sentence each with what they lead to."""
        if self.quorum >= self.learners:
            return []
        found = []
        few = f"quorum is {self.quorum} of {self.learners}"
        if self.sync_every <= 2:
            found.append(
                f"sync_every is {self.sync_every} and {few}: "
                "a learner that trails the quorum may have adopted the fragment anew whenever it "
                "is asked for it, and then none of its steps is ever merged; with sync_every above "
                f"2, or quorum = {self.learners}, that cannot last"
            )
        if self.blocking and len(set(self.speeds)) > 1:
            found.append(
                f"blocking, {few} and speeds differ: learners that wait for merges keep step, so a "
                "slower one may come too late for the same fragments in every round, and then "
                f"never be merged into them; with quorum = {self.learners} that cannot happen"
            )
        return found

    def learner_name(self, index: int) -> str:
        """Name of the learner with number ``index``."""
        return f"learner-{index}"

    def speed(self, index: int) -> float:
        """Speed of the learner with number ``index``."""
        return self.speeds[index] if self.speeds else 1.0

    def group(self, index: int) -> str:
        """Region of the learner with number ``index``."""
        return self.groups[index] if self.groups else "region-0"

    def batch_of(self, index: int) -> int:
        """Sequences per step of the learner with number ``index``."""
        return self.batches[index] if self.batches else self.batch

    def step_ns(self, index: int) -> int:
        """Nominal duration of an inner step of the learner with number ``index``."""
        return round(self.step_time_s * 1e9 / self.speed(index))
