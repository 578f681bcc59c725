"""How long and how large: all reports of a journal of 100,000 events.

Run with ``python -m tests.bench.report_page``. The bars are 3 s and 1.5 MB for the page; reading
the journal is part of the time.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from reports.build import analyse
from reports.history import read_history
from reports.write import documents
from tests.reports.builder import Cluster, Kill, Scripted, Straggle, write


def main() -> None:
    """Print one line with the figures beside their bars."""
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
    page = len(files["report.html"])
    print(
        f"{len(events)} events: {done - begin:.2f} s (bar 3 s; read {read - begin:.2f}, analyse "
        f"{analysed - read:.2f}, write {done - analysed:.2f}), report.html {page / 1e6:.2f} MB "
        "(bar 1.5 MB)"
    )


if __name__ == "__main__":
    main()
