"""What breaks how often, by counts: mixes of faults from which every arrival draws one.

A mix is a list of rows as a spec author would write them below ``[[fault]]``:
``component``, ``count``, ``kind``, that kind's own parameters, and optionally ``where``, ``for_s``,
``repair`` or ``then`` (a second act on the same victims, ``after_s`` later).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

REPAIR: Row = {"process": "lognormal", "median_s": 3.0, "sigma": 0.6}
"""How long lasting members of a built-in mix last when the spec does not say. Repairs of real
clusters are lognormal (LANL's failure data); the median is that of a minutes-long experiment."""

LLAMA3: Sequence[Row] = (
    # Llama 3 405B, 54 days on 16,384 H100: 419 unexpected interruptions. By count, because the
    # published percentages do not add up (148 / 419 is 35.3 %, printed as 30.1 %).
    {"component": "faulty GPU", "count": 148, "kind": "kill"},
    {"component": "GPU HBM3 memory", "count": 72, "kind": "kill"},
    {"component": "software bug", "count": 54, "kind": "crash_loop", "times": 2, "every_s": 4.0},
    {"component": "network switch or cable", "count": 35, "kind": "partition", "where": "group"},
    {"component": "host maintenance", "count": 32, "kind": "terminate", "grace_s": 5.0},
    {"component": "GPU SRAM", "count": 19, "kind": "kill"},
    {
        "component": "GPU system processor",
        "count": 17,
        "kind": "hang",
        "for_s": 1.5,
        "then": {"kind": "kill", "after_s": 1.5},
    },
    {"component": "NIC", "count": 7, "kind": "partition"},
    {"component": "NCCL watchdog timeout", "count": 7, "kind": "stall"},
    {"component": "silent data corruption", "count": 6, "kind": "corrupt_update", "how": "bitflip"},
    {"component": "GPU thermal and sensor", "count": 6, "kind": "straggle", "factor": 2.0},
    # A host whose disk fails is taken out of service: to the training it is a death.
    {"component": "SSD", "count": 3, "kind": "kill"},
    {"component": "power supply", "count": 3, "kind": "kill_group", "where": "group"},
    {"component": "server chassis", "count": 2, "kind": "kill_group", "where": "group"},
    {"component": "IO expansion board", "count": 2, "kind": "kill_group", "where": "group"},
    {"component": "dependency", "count": 2, "kind": "kill", "where": "syncer"},
    {"component": "CPU", "count": 2, "kind": "kill"},
    # Out of memory ends a process by SIGKILL.
    {"component": "system memory", "count": 2, "kind": "kill"},
)

MIXES: Mapping[str, Sequence[Row]] = {"llama3": LLAMA3}
"""Name to rows; the one visible table."""
