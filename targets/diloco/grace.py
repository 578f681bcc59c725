"""The adaptive grace window (paper section 3.2, equation 3): how long to wait after a quorum.

``xi_slack = tau * xi_step - (xi_quorum + xi_sync)``; the window is ``gamma * xi_slack``, at least
nothing and at most one step. The three durations are exponential moving averages of what was
seen. The paper gives no number for gamma or for the averages: they are parameters here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# A learner that was frozen for seconds reports that as one step. Without a cap one such report
# would open windows many steps long for everyone; a straggler up to four times slower passes.
OUTLIER_FACTOR = 4


def ema(average: float | None, sample: float, alpha: float) -> float:
    """Exponential moving average; the first sample is taken as it is."""
    return sample if average is None else average + alpha * (sample - average)


@dataclass(slots=True)
class Pace:
    """Moving averages of xi_step, xi_quorum and xi_sync, in ns; None until first seen."""

    alpha: float
    tau: int
    step_ns: float | None = field(default=None, init=False)
    quorum_ns: float | None = field(default=None, init=False)
    sync_ns: float | None = field(default=None, init=False)

    def saw_step(self, duration_ns: int) -> None:
        """One learner's inner step took ``duration_ns``."""
        average = self.step_ns
        if average is None:
            self.step_ns = float(duration_ns)
        else:
            # An average that far above one whole step began with an outlier: a syncer may start
            # anew just when somebody who was frozen comes back.
            average = min(average, OUTLIER_FACTOR * duration_ns)
            sample = min(duration_ns, OUTLIER_FACTOR * average)
            self.step_ns = average + self.alpha * (sample - average)

    def saw_quorum(self, duration_ns: int) -> None:
        """Reaching a quorum took ``duration_ns`` from the opening of the step."""
        sample = float(duration_ns)
        if self.step_ns is not None:
            # Beyond tau steps there is no slack in any case; an outage need not linger.
            sample = min(sample, self.tau * self.step_ns)
        self.quorum_ns = ema(self.quorum_ns, sample, self.alpha)

    def saw_sync(self, duration_ns: int) -> None:
        """Pulling, merging and sending took ``duration_ns`` from the end of the collection."""
        self.sync_ns = ema(self.sync_ns, float(duration_ns), self.alpha)


def window(pace: Pace, gamma: float) -> tuple[int, str]:
    """(length of the window in ns, sentence that says how it came about)."""
    if pace.step_ns is None:
        return 0, "no grace: no step time is known yet"
    slack = pace.tau * pace.step_ns - ((pace.quorum_ns or 0.0) + (pace.sync_ns or 0.0))
    if slack <= 0:
        return 0, "no grace: quorum and sync use up all slack"
    if gamma * slack >= pace.step_ns:
        return int(pace.step_ns), "grace up to one step"
    return int(gamma * slack), "grace up to gamma times the slack"
