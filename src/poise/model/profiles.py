"""What has been learned of a class of tasks from its finished attempts: run time, memory, CPU and device use."""

from math import log
from typing import Any, NamedTuple

import msgspec
import numpy as np

from poise.model.decisions import SERVES, UNKNOWN
from poise.model.jobs import Ending
from poise.model.resources import Shape
from poise.units import MILLISECOND, SECOND

ALPHA = 0.2
"""Weight of the newest run in the exponentially weighted mean. RFC 6298 uses 1/8 for the same purpose; 1/5 follows
faster."""

DEFAULT_RUN = 1 * SECOND

MOST_RATIO = 1_000_000
"""Thousandths of what was declared that a run is counted with at most: a declaration may be wrong without bounds."""

BRIEF = 200 * MILLISECOND
"""Runs up to one round of deciding: shorter than the time that passes until the control plane looks again."""

ENOUGH_RUNS = 3
"""Finished runs of a class before its run time is trusted."""

CERTAIN = 2
"""Mean deviations added to a mean for what nearly all runs stay under. For a normal distribution a mean deviation is
0.8 standard deviations, so that about 95 % of runs are shorter."""

UNLIKE = 2 * CERTAIN
"""Mean deviations, as shares of their means and added up, by which the logarithm of what is declared must lie away from
that of a class. Of estimates with lognormal noise one in a thousand does, and one in ten at `CERTAIN`."""


class Profile(msgspec.Struct, frozen=True):
    """Exponentially weighted means and mean deviations of a class.

    Run time in nanoseconds (`mean`, `deviation`), peak memory in bytes (`memory`; `peak` is the most ever seen), CPU in
    milli-CPU, device use in thousandths, peak device memory in bytes. `failures` is the share of attempts that failed
    by themselves, in thousandths; `ratio` what runs took of what their users had declared, in thousandths, where they
    had (0: none has). `seen` is the revision of the last run; what was not seen for longest is forgotten
    first."""

    count: int = 0
    mean: int = 0
    deviation: int = 0
    peak: int = 0
    seen: int = 0
    memory: int = 0
    memory_deviation: int = 0
    cpu: int = 0
    cpu_deviation: int = 0
    device: int = 0
    device_deviation: int = 0
    device_memory: int = 0
    failures: int = 0
    ratio: int = 0
    ratio_deviation: int = 0

    def observe(self, ending: Ending, seen: int = 0, run: int | None = None, declared: int = 0) -> "Profile":
        """With one more finished run (the update of RFC 6298, section 2); `run` is what all of its work took, where
        that is not what its last attempt took, and `declared` what its user had said that it would (0: nothing).
        """
        cpu = ending.cpu * 1000 // ending.run if ending.run >= BRIEF else self.cpu  # starting is most of a brief run
        run, peak = ending.run if run is None else run, ending.peak
        failures = self.failures - int(ALPHA * self.failures)
        kept_to = min(MOST_RATIO, max(1, run * 1000 // declared)) if declared else 0
        if not declared:
            ratio = (self.ratio, self.ratio_deviation)
        elif not self.ratio:
            ratio = (kept_to, kept_to // 2)
        else:
            ratio = _follow(self.ratio, self.ratio_deviation, kept_to)
        if self.count == 0:
            return Profile(
                1, run, run // 2, peak, seen, peak, peak // 2, cpu, cpu // 2, ending.device, ending.device // 2,
                ending.device_peak, failures, *ratio,
            )  # fmt: skip
        return Profile(
            self.count + 1,
            *_follow(self.mean, self.deviation, run),
            max(self.peak, peak),
            seen,
            *_follow(self.memory, self.memory_deviation, peak),
            *_follow(self.cpu, self.cpu_deviation, cpu),
            *_follow(self.device, self.device_deviation, ending.device),
            max(self.device_memory, ending.device_peak),
            failures,
            *ratio,
        )

    @property
    def missed_by(self) -> tuple[float, float]:
        """How far runs were from what was declared of them: their mean deviation as a part, times the weight of what
        was seen, and that weight. What was assumed with the first run, a half, is not in it.
        """
        assumed = (1 - ALPHA) ** (self.count - 1)
        return max(0.0, self.ratio_deviation / self.ratio - assumed / 2) if self.ratio else 0.0, 1 - assumed

    def failed(self, seen: int = 0) -> "Profile":
        """With one more attempt that failed by itself: what it took says nothing of those that succeed."""
        failures = self.failures + int(ALPHA * (1000 - self.failures))
        return msgspec.structs.replace(self, failures=failures, seen=seen)


class Estimate(NamedTuple):
    """A foreseen amount, its mean deviation, and where it comes from, as `policy/predict.py` lists it."""

    mean: int
    deviation: int
    source: str

    @property
    def most(self) -> int:
        """What nearly all stay under."""
        return self.mean + CERTAIN * self.deviation


ENDLESS = 2**60
NO_END = Estimate(ENDLESS, 0, SERVES)
"""Of what serves: it goes on until it is ended. In nanoseconds that is longer than anything (36 years)."""


def expected_run(profile: Profile | None, declared: int) -> int:
    """Nanoseconds a run is expected to take: from history, else as declared, else one second."""
    return estimate_run(profile, declared).mean


def estimate_run(profile: Profile | None, declared: int) -> Estimate:
    """The same with its uncertainty: as seen, half of what a user declared, and all of a guess. Where runs of the class
    keep closer to what is declared of each than to their mean, they are foreseen by that; and so is one of which so
    different a time is declared that it cannot be like them.
    """
    if profile is not None and profile.count:
        if declared and profile.ratio:
            mean = declared * profile.ratio // 1000
            deviation = mean * profile.ratio_deviation // profile.ratio
            closer = 0 < profile.ratio_deviation * profile.mean <= profile.deviation * profile.ratio
            if closer or _is_unlike(profile, mean):
                return Estimate(max(1, mean), deviation, "declared")
        return Estimate(profile.mean, profile.deviation, "history")
    if declared:
        return Estimate(declared, declared // 2, "declared")
    return Estimate(DEFAULT_RUN, DEFAULT_RUN, UNKNOWN)


def _is_unlike(profile: Profile, mean: int) -> bool:
    """Whether a run that is declared to take so long cannot be like its class: it is as many times longer, or shorter,
    as neither what is seen of the class nor how closely runs keep to what is declared can make up. Both err by factors:
    half as long is as far away as twice as long.
    """
    varies = profile.ratio_deviation / profile.ratio + profile.deviation / max(1, profile.mean)
    return abs(log(max(1, mean) / max(1, profile.mean))) > UNLIKE * varies


def remaining(elapsed: int, expected: int, deviation: int) -> int:
    """Nanoseconds that a run is still expected to take.

    What has overrun by more than its uncertainty is estimated anew: as long again as it has run already. That is the
    expectation of a Pareto-distributed run time of shape 2, `E[T - t | T > t] = t`; run times of training jobs are
    heavy-tailed (Jeon et al., 2019, on the Philly trace).
    """
    left = expected - elapsed
    if elapsed <= expected + CERTAIN * deviation:
        return max(left, deviation // 2)
    return elapsed


def remaining_each(elapsed: Any, expected: Any, deviation: Any) -> Any:
    """The same of many: arrays of int64, all of one shape."""
    left = np.maximum(expected - elapsed, deviation // 2)
    return np.where(elapsed <= expected + CERTAIN * deviation, left, elapsed)


def outlasting(estimate: Estimate, outlived: int) -> Estimate:
    """The estimate for work of which an earlier attempt was stopped, and had not ended after `outlived` nanoseconds."""
    if outlived <= 0:
        return estimate
    longer = outlived + remaining(outlived, estimate.mean, estimate.deviation)
    return estimate._replace(mean=max(estimate.mean, longer))


def is_brief(profile: Profile | None, shape: Shape, tasks: int) -> bool:
    """Whether a unit is known to end so soon that others of its shape may wait right behind it, and it behind them.

    A gang and a unit with devices never are: they need all their room at once.
    """
    return (
        profile is not None
        and profile.count >= ENOUGH_RUNS
        and profile.mean <= BRIEF
        and tasks == 1
        and shape.gpus == 0
    )


def _follow(mean: int, deviation: int, seen: int) -> tuple[int, int]:
    error = seen - mean
    return mean + int(ALPHA * error), deviation + int(ALPHA * (abs(error) - deviation))
