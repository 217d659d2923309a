"""Profiles of classes of tasks, learned from finished attempts: run time, memory, CPU and device use."""

from collections.abc import Callable
from math import exp, sqrt
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
"""Upper limit, in thousandths, for the ratio of a run time to the declared one: a declaration may be
arbitrarily wrong.
"""

BRIEF = 200 * MILLISECOND
"""Run times up to one scheduling round: shorter than the time until the control plane's next look."""

ENOUGH_RUNS = 3
"""Finished runs of a class before its run time is trusted."""

CERTAIN = 2
"""Mean deviations added to a mean for a bound that nearly all runs stay under. For a normal distribution a mean
deviation is 0.8 standard deviations, so about 95 % of runs are shorter.
"""

UNLIKE = 2 * CERTAIN
"""Distance of a declared run time from that of its class from which it counts as different: the difference of their
logarithms, in summed relative mean deviations. Of estimates with lognormal noise one in a thousand exceeds it, and one
in ten exceeds `CERTAIN`.
"""


COMBINED = "declared and history"
"""Source of an estimate from a declared time and from the runs of its class."""

PARTS = 16
"""Weights of the two are rounded to this fraction."""

FURTHEST = 100.0
"""Upper limit of a logarithm: its exponential is far above any ratio of run times."""

EXACT = 2**62
"""Products up to this are exact as int64."""


class Profile(msgspec.Struct, frozen=True):
    """Exponentially weighted means and mean deviations of a class.

    Run time in nanoseconds (`mean`, `deviation`), peak memory in bytes (`memory`; `peak` is the maximum), CPU in
    milli-CPU, device use in thousandths, peak device memory in bytes. `failures` is the fraction of attempts that
    failed by themselves, in thousandths; `ratio` is the run time relative to the declared one, in thousandths (0: none
    was declared). `seen` is the revision of the last run; profiles that have been unused for longest are forgotten
    first.
    """

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
        """Return the profile with one more finished run (the update of RFC 6298, section 2). `run` is the run time of
        all its work, if it differs from that of its last attempt, and `declared` the declared run time (0: none).
        """
        cpu = ending.cpu * 1000 // ending.run if ending.run >= BRIEF else self.cpu  # startup dominates a brief run
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

    def observe_use(self, ending: Ending) -> "Profile":
        """Return the profile with the resources that another task of the same run used."""
        cpu = ending.cpu * 1000 // ending.run if ending.run >= BRIEF else self.cpu
        memory, memory_deviation = _follow(self.memory, self.memory_deviation, ending.peak)
        of_cpu, cpu_deviation = _follow(self.cpu, self.cpu_deviation, cpu)
        device, device_deviation = _follow(self.device, self.device_deviation, ending.device)
        return msgspec.structs.replace(
            self, peak=max(self.peak, ending.peak), memory=memory, memory_deviation=memory_deviation,
            cpu=of_cpu, cpu_deviation=cpu_deviation, device=device, device_deviation=device_deviation,
            device_memory=max(self.device_memory, ending.device_peak),
        )  # fmt: skip

    @property
    def missed_by(self) -> tuple[float, float]:
        """Mean relative deviation of runs from their declared run times, times the weight of the observations, and that
        weight. It excludes the one half that is assumed with the first run.
        """
        assumed = (1 - ALPHA) ** (self.count - 1)
        return max(0.0, self.ratio_deviation / self.ratio - assumed / 2) if self.ratio else 0.0, 1 - assumed

    def failed(self, seen: int = 0) -> "Profile":
        """Return the profile with one more attempt that failed by itself; its resource use says nothing about
        successful ones.
        """
        failures = self.failures + int(ALPHA * (1000 - self.failures))
        return msgspec.structs.replace(self, failures=failures, seen=seen)


class Estimate(NamedTuple):
    """A predicted amount, its mean deviation, and its source, as listed in `policy/predict.py`."""

    mean: int
    deviation: int
    source: str

    @property
    def most(self) -> int:
        """The bound that nearly all runs stay under."""
        return self.mean + CERTAIN * self.deviation


ENDLESS = 2**60
NO_END = Estimate(ENDLESS, 0, SERVES)
"""Run time of a unit that serves: it runs until it is stopped. In nanoseconds it exceeds any other time (36 years)."""


def expected_run(profile: Profile | None, declared: int) -> int:
    """Return the expected nanoseconds of a run: from history, else as declared, else one second."""
    return estimate_run(profile, declared).mean


def estimate_run(profile: Profile | None, declared: int, *, combine: bool = True) -> Estimate:
    """Return the expected run time with its uncertainty: as observed, half of a declared time, and all of a default. A
    declared time of a class that has run is corrected by the class's ratio, and combined with the class's mean
    (`_Combined`). If one of them is much more certain, it is used alone; and the declared one, if it differs so much
    that the run cannot be like its class.
    """
    if profile is not None and profile.count:
        if declared and profile.ratio:
            mean = declared * profile.ratio // 1000
            deviation = mean * profile.ratio_deviation // profile.ratio
            both = _combined_by(profile) if combine else None
            if _is_unlike(profile, mean) or (both is None and _keeps_to_declared(profile)):
                return Estimate(max(1, mean), deviation, "declared")
            if both is not None:
                mean = max(1, int(max(1, mean) * _power(profile.mean / max(1, mean), both.part, sqrt)))
                return Estimate(mean, int(mean * both.varies), COMBINED)
        return Estimate(max(1, profile.mean), profile.deviation, "history")
    if declared:
        return Estimate(declared, declared // 2, "declared")
    return Estimate(DEFAULT_RUN, DEFAULT_RUN, UNKNOWN)


class _Combined(NamedTuple):
    """How the mean of a class and a declared time are combined: the weighted geometric mean of both, since errors are
    factors, with weights of one over the square of each one's relative deviation. That is the most likely run time if
    both errors are lognormal and independent. `part` is the weight of the class's mean, in `PARTS`; `varies` is the
    relative deviation of the result.
    """

    part: int
    varies: float


def _combined_by(profile: Profile) -> _Combined | None:
    """Return how to combine both; None if one of them has all the weight."""
    of_class, of_declared = profile.deviation / max(1, profile.mean), profile.ratio_deviation / profile.ratio
    if not (of_class and of_declared):
        return None
    weights = 1 / (of_class * of_class), 1 / (of_declared * of_declared)
    part = round(PARTS * weights[0] / sum(weights))
    return _Combined(part, 1 / sqrt(sum(weights))) if 0 < part < PARTS else None


def _keeps_to_declared(profile: Profile) -> bool:
    """Whether the declared times of a class are closer to its runs than its mean is."""
    return 0 < profile.ratio_deviation * profile.mean <= profile.deviation * profile.ratio


def _power(of: Any, part: int, root: Callable[[Any], Any]) -> Any:
    """Return the power `part / PARTS` of a number or of each of an array, by square roots alone: their result is the
    same on every machine, and for a number and an array.
    """
    power: Any = 1.0
    for bit in (PARTS >> step for step in range(1, PARTS.bit_length())):
        of = root(of)
        if part & bit:
            power = power * of
    return power


def estimate_each(profile: Profile, declared: Any) -> tuple[Any, Any]:
    """Vectorized `estimate_run` for a class with finished runs: return the means and deviations for these declared run
    times, an array of int64.
    """
    most = int(declared.max(initial=0)) * max(1, profile.ratio) // 1000
    if most * max(1000, profile.ratio_deviation) > EXACT:  # plain integers have no limit
        each = [estimate_run(profile, one) for one in declared.tolist()]
        return np.array([one.mean for one in each], np.int64), np.array([one.deviation for one in each], np.int64)
    means, deviations = np.full(len(declared), max(1, profile.mean)), np.full(len(declared), profile.deviation)
    if not profile.ratio:
        return means, deviations
    mean, counts = declared * profile.ratio // 1000, declared > 0
    alone = _is_unlike(profile, mean)
    if (both := _combined_by(profile)) is not None:
        here = np.maximum(1, mean)
        combined = np.maximum(1, (here * _power(profile.mean / here, both.part, np.sqrt)).astype(np.int64))
        means = np.where(counts, combined, means)
        deviations = np.where(counts, (combined * both.varies).astype(np.int64), deviations)
        counts &= alone
    elif not _keeps_to_declared(profile):
        counts &= alone
    means[counts] = np.maximum(1, mean[counts])
    deviations[counts] = mean[counts] * profile.ratio_deviation // profile.ratio
    return means, deviations


def _is_unlike(profile: Profile, mean: Any) -> Any:
    """Whether a run with this declared time, or each of an array, cannot be like its class: it is longer or shorter by
    a factor that neither the variation of the class nor that of the declarations explains. Both errors are factors:
    half as long is as far away as twice as long.
    """
    varies = profile.ratio_deviation / profile.ratio + profile.deviation / max(1, profile.mean)
    factor = exp(min(FURTHEST, UNLIKE * varies))
    return (mean > profile.mean * factor) | (mean * factor < profile.mean)


def remaining(elapsed: int, expected: int, deviation: int) -> int:
    """Return the expected remaining nanoseconds of a run.

    A run that has exceeded its estimate by more than its uncertainty is re-estimated: as long again as it has already
    run. That is the expectation of a Pareto-distributed run time of shape 2, `E[T - t | T > t] = t`; run times of
    training jobs are heavy-tailed (Jeon et al., 2019, on the Philly trace).
    """
    left = expected - elapsed
    if elapsed <= expected + CERTAIN * deviation:
        return max(left, deviation // 2)
    return elapsed


def remaining_each(elapsed: Any, expected: Any, deviation: Any) -> Any:
    """Vectorized `remaining`: arrays of int64 of one shape."""
    left = np.maximum(expected - elapsed, deviation // 2)
    return np.where(elapsed <= expected + CERTAIN * deviation, left, elapsed)


def outlasting(estimate: Estimate, outlived: int) -> Estimate:
    """Return the estimate for work whose earlier attempt was stopped after `outlived` nanoseconds without
    having ended.
    """
    if outlived <= 0:
        return estimate
    longer = outlived + remaining(outlived, estimate.mean, estimate.deviation)
    return estimate._replace(mean=max(estimate.mean, longer))


def is_brief(profile: Profile | None, shape: Shape, tasks: int) -> bool:
    """Whether a unit is known to end so soon that others of its shape may queue right behind it, and it behind them.

    A gang or a unit with devices never is: it needs all its resources at once.
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
