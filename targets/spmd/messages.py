"""What the launcher and the workers say to each other, and the jobs they give to their workers.

Only control goes this way; gradients go from worker to worker, inside the jitted step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import msgspec

from targets.diloco.evaluation import Evaluate


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Root of all messages."""


class Hello(Message, frozen=True, kw_only=True):
    """A fresh process is there; ``held`` are the steps whose checkpoints it holds, 0 included."""

    held: tuple[int, ...]


class Beat(Message, frozen=True, kw_only=True):
    """A sign of life. ``world`` is 0 outside of one; ``step`` is the last one taken."""

    world: int = 0
    step: int = 0


class Failed(Message, frozen=True, kw_only=True):
    """A collective of ``world`` failed here; the sender ends."""

    world: int
    why: str


class Leaving(Message, frozen=True, kw_only=True):
    """The sender ends after step ``step`` of ``world``, as it was told to."""

    world: int
    step: int


class Reached(Message, frozen=True, kw_only=True):
    """The sender's part of ``step`` is done (only where the launcher is the barrier)."""

    world: int
    step: int


class Form(Message, frozen=True, kw_only=True):
    """``members`` form ``world`` at ``address``, ranks in this order, and go on after ``step``.

    ``share`` is the rank that gives its checkpoint to the others, -1 when each has its own.
    """

    world: int
    members: tuple[str, ...]
    address: str
    step: int
    share: int = -1
    tokens: int = 0
    """Tokens in the parameters after ``step``; only counted where something is evaluated."""


class Break(Message, frozen=True, kw_only=True):
    """``world`` is over."""

    world: int
    why: str


class Regroup(Message, frozen=True, kw_only=True):
    """End after step ``at_step`` of ``world``, once its checkpoint is kept."""

    world: int
    at_step: int
    why: str


class Proceed(Message, frozen=True, kw_only=True):
    """Everybody reached ``step`` of ``world``."""

    world: int
    step: int


AnyMessage: TypeAlias = Hello | Beat | Failed | Leaving | Reached | Form | Break | Regroup | Proceed

# --- jobs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Which checkpoints are there and whole? Result: :class:`Held`."""


@dataclass(frozen=True, slots=True)
class Held:
    """Steps, ascending; 0 is the initial state, which needs no file. ``damaged`` says why files
    were left out."""

    steps: tuple[int, ...]
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enter:
    """Join the world and take up its state. Result: :class:`Entered`."""

    form: Form
    rank: int


@dataclass(frozen=True, slots=True)
class Entered:
    """``program`` says where the compiled step came from; ``took_ns`` is for making it ready."""

    digest: str = ""
    program: str = ""
    took_ns: int = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """Take one step together with all others. Result: :class:`Advanced`."""

    paced: ClassVar[bool] = True
    step: int


class Advanced(msgspec.Struct, frozen=True):
    """``waited`` is (from, to) of a wait for the others that is worth mentioning; the step itself
    began after it. Instants are on the clock of ``now_ns``."""

    tokens: int
    began_at_ns: int = 0
    compute_ns: int = 0
    nominal_ns: int = 0
    loss: float | None = None
    waited: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Make a checkpoint of the state after ``step``; lane ``io``. Result: nothing."""

    step: int


@dataclass(frozen=True, slots=True)
class OpenWorld:
    """Launcher: make the meeting point of ``size`` processes. Result: its address."""

    world: int
    size: int


@dataclass(frozen=True, slots=True)
class CloseWorlds:
    """Launcher: nobody needs the meeting points of worlds before ``before`` any more."""

    before: int


JobOfWorker: TypeAlias = Look | Enter | Advance | Keep | Evaluate
JobOfLauncher: TypeAlias = OpenWorld | CloseWorlds
