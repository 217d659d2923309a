"""Distributions of the ratio of actual to estimated run time."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import NormalDist
from typing import Protocol

from poise.model.profiles import ENOUGH_RUNS

USUAL = 0.8
"""Mean deviation of the logarithms of a class's run times, where no class has enough runs to tell: that of a lognormal
distribution whose logarithms have a standard deviation of 1.
"""

SHAPE = 0.5
"""Shape of the tail of run times beyond all known ones: that of a Pareto distribution of shape 2, as in
`model/profiles.remaining`.
"""

MEAN_DEVIATION = 0.8
"""Mean deviation of a normal variable, in standard deviations: the square root of 2 / pi."""

OVERRUN = 2.326
"""The 99th percentile of a normal variable, in standard deviations."""

_NORMAL = NormalDist()


class Errors(Protocol):
    """A distribution of the ratio of actual to estimated run time."""

    @property
    def ends(self) -> float: ...

    def draw(self, chance: float, beyond: float) -> float:
        """Return the factor at the quantile `chance` of those that are larger than `beyond`."""
        ...


class Seen:
    """The empirical distribution of past errors. The next error falls into each of the gaps between the past ones with
    the same probability, which holds for any distribution if they are exchangeable (Vovk et al., 2005). Beyond the
    largest and below the smallest error the tails follow Pareto's law, scaled by the spread of the errors.

    A few errors say little about the spread: it is combined with the `usual` one, which counts as much as three errors.

    `unfinished` are lower limits from runs that still go on. They give the gaps beyond them more weight, by the
    product-limit estimate (Kaplan and Meier, 1958). Without them, a class would seem as short as those of its runs that
    have ended.
    """

    def __init__(self, errors: Iterable[float], unfinished: Iterable[float] = (), usual: float = USUAL) -> None:
        self._logs = sorted(log(max(error, 1e-9)) for error in errors)
        going = sorted(log(max(error, 1e-9)) for error in unfinished)
        count = len(self._logs)
        self._chances: list[float] = []
        left = 1.0
        for place, at in enumerate(self._logs):
            left *= 1 - 1 / (count - place + len(going) - bisect_left(going, at) + 1)
            self._chances.append(1 - left)
        spread = _spread(self._logs)
        if count >= ENOUGH_RUNS:
            self._scale = max(0.02, (spread * count + usual * ENOUGH_RUNS) / (count + ENOUGH_RUNS))
        else:
            self._scale = max(usual, spread)
        self._below_all = self._scale * _excess(self._chances[0], count)
        self._above_all = self._scale * _excess(1 - self._chances[-1], count)

    @property
    def ends(self) -> float:
        """The factor beyond which another law holds: it exceeds all past errors."""
        return exp(self._logs[-1] + 2 * self._scale)

    def draw(self, chance: float, beyond: float) -> float:
        logs, chances = self._logs, self._chances
        if beyond > 0:
            at = log(beyond)
            if beyond > self.ends:
                return exp(at - SHAPE * log(1 - chance))
            before = self._below(at)
            chance = before + chance * (1 - before)
        if chance <= chances[0]:
            return exp(logs[0] + self._below_all * log(max(chance, 1e-9) / chances[0]))
        if chance >= chances[-1]:
            return exp(logs[-1] - self._above_all * log(max(1 - chance, 1e-9) / (1 - chances[-1])))
        above = bisect_left(chances, chance)
        part = (chance - chances[above - 1]) / (chances[above] - chances[above - 1])
        return exp(logs[above - 1] + part * (logs[above] - logs[above - 1]))

    def _below(self, at: float) -> float:
        """Return the probability of an error of at most this logarithm."""
        logs, chances = self._logs, self._chances
        if at <= logs[0]:
            return chances[0] * exp((at - logs[0]) / self._below_all)
        if at >= logs[-1]:
            return 1 - (1 - chances[-1]) * exp((logs[-1] - at) / self._above_all)
        above = bisect_right(logs, at)
        width = logs[above] - logs[above - 1]
        return chances[above - 1] + (at - logs[above - 1]) / width * (chances[above] - chances[above - 1])


def _spread(logs: Sequence[float]) -> float:
    """Return the mean distance of sorted logarithms from their median, corrected for their number: a small sample
    underestimates it.
    """
    count = len(logs)
    middle = logs[count // 2]
    return sum(abs(each - middle) for each in logs) / max(1, count - 1) * (count + 1) / max(1, count)


def _excess(chance: float, count: int) -> float:
    """Return the mean excess of a normal variable over the value that it exceeds with this probability, divided by its
    mean deviation. Tails get thinner further out; how much is uncertain where values are few.
    """
    at = _NORMAL.inv_cdf(1 - chance)
    return min(1.0, (1 + 2 / count) * (_NORMAL.pdf(at) / chance - at) / MEAN_DEVIATION)


class Unseen:
    """The errors of an estimate whose mean deviation alone is known, as a fraction of the estimate: lognormal around a
    median of 1, since run times are products of many factors and heavy-tailed.

    The mean deviation of a lognormal variable is `2 (2 Φ(s/2) - 1)` times its mean (Aitchison and Brown, 1957), where
    `s` is the standard deviation of its logarithm.
    """

    def __init__(self, deviation: float) -> None:
        self.sigma = 2 * _NORMAL.inv_cdf(0.5 + min(max(deviation, 0.02), 1.8) / 4)
        self.ends = exp(OVERRUN * self.sigma)

    def draw(self, chance: float, beyond: float) -> float:
        if beyond > self.ends:
            return exp(log(beyond) - SHAPE * log(1 - chance))
        before = _NORMAL.cdf(log(beyond) / self.sigma) if beyond > 0 else 0.0
        place = before + chance * (1 - before)
        return exp(self.sigma * _NORMAL.inv_cdf(min(max(place, 1e-9), 1 - 1e-9)))
