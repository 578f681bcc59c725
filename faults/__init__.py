"""Faults by name; the one visible table. Nothing is imported until it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from faults.base import Fault

FAULTS: dict[str, str] = {
    "noop": "faults.noop:Noop",
    # the unit itself
    "kill": "faults.kill:Kill",
    "terminate": "faults.terminate:Terminate",
    "pause": "faults.pause:Pause",
    "hang": "faults.hang:Hang",
    "crash_loop": "faults.crash_loop:CrashLoop",
    "kill_group": "faults.kill_group:KillGroup",
    "absent": "faults.absent:Absent",
    "oom": "faults.oom:Oom",
    # what it made durable
    "lose_checkpoint": "faults.checkpoints:LoseCheckpoint",
    "corrupt_checkpoint": "faults.checkpoints:CorruptCheckpoint",
    "torn_write": "faults.checkpoints:TornWrite",
    "disk_full": "faults.disk_full:DiskFull",
    # its speed
    "throttle": "faults.throttle:Throttle",
    "straggle": "faults.straggle:Straggle",
    # its link, through the proxy
    "partition": "faults.partition:Partition",
    "partition_oneway": "faults.partition_oneway:PartitionOneway",
    "refuse": "faults.refuse:Refuse",
    "stall": "faults.stall:Stall",
    "reset": "faults.reset:Reset",
    "latency": "faults.latency:Latency",
    "bandwidth": "faults.bandwidth:Bandwidth",
    "cut": "faults.cut:Cut",
    "flap": "faults.flap:Flap",
    # its network, through the engine
    "disconnect": "faults.disconnect:Disconnect",
    # ours
    "kill_proxy": "faults.kill_proxy:KillProxy",
    # what it pushes
    "corrupt_update": "faults.updates:CorruptUpdate",
    "stale_update": "faults.updates:StaleUpdate",
    "duplicate_update": "faults.updates:DuplicateUpdate",
    "truncated_update": "faults.updates:TruncatedUpdate",
}
"""Fault kind to the import path of its class."""


def load(kind: str) -> Fault:
    """The fault called ``kind``; raises ``KeyError`` for a name not in the table."""
    module, _, attribute = FAULTS[kind].partition(":")
    return cast("Fault", getattr(import_module(module), attribute)())
