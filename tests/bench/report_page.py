"""How long and how large: all reports of a journal of 100,000 events.

The bars are 3 s and 1.5 MB for the page; reading the journal is part of the time.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from reports.build import analyse
from reports.history import read_history
from reports.write import documents
from tests.bench import Figure
from tests.reports.builder import Cluster, Kill, Scripted, Straggle, write


def measure() -> list[Figure]:
    """Seconds from journal to all reports, and the page's size."""
    faults: list[Scripted] = [
        f
        for i in range(60)
        for f in (
            Straggle(f"learner-{i % 4}", 20 + 9.0 * i, 3.0),
            Kill(f"learner-{4 + i % 4}", 21.03 + 9.0 * i, 0.5),
        )
    ]
    events = Cluster(
        learners=8, faults=faults, window_s=590, tail_s=10, fragments=(1000,) * 8
    ).events()
    with tempfile.TemporaryDirectory() as directory:
        run = write(Path(directory) / "run", events)
        begin = time.perf_counter()
        history = read_history(run)
        read = time.perf_counter()
        analysis = analyse(history)
        analysed = time.perf_counter()
        files = documents(analysis)
        done = time.perf_counter()
    page = len(files["report.html"]) / 1e6
    seconds = done - begin
    return [
        Figure("events", float(len(events)), "", "", True),
        Figure("journal to reports", seconds, "s", "<= 3 s", seconds <= 3),
        Figure("of that reading", read - begin, "s", "", True),
        Figure("of that analysing", analysed - read, "s", "", True),
        Figure("report.html", page, "MB", "<= 1.5 MB", page <= 1.5),
    ]
