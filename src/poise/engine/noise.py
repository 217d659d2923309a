"""Distributions of how much longer work takes than foreseen, as factors."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import NormalDist
from typing import Protocol

from poise.model.profiles import ENOUGH_RUNS

USUAL = 0.8
"""The mean deviation of the logarithms of a class's run times, where none has run often enough to tell: that of a
lognormal distribution whose logarithms have a standard deviation of 1."""

SHAPE = 0.5
"""Of the tail of run times beyond all that is known: Pareto's of shape 2, as `model/profiles.remaining` has it."""

MEAN_DEVIATION = 0.8
"""Of a normal variable, in standard deviations: the square root of 2 / pi."""

OVERRUN = 2.326
"""Standard deviations that 99 of 100 normal variables stay below."""

_NORMAL = NormalDist()


class Errors(Protocol):
    """How much longer work takes than foreseen, as a factor: a distribution."""

    @property
    def ends(self) -> float: ...

    def draw(self, chance: float, beyond: float) -> float:
        """The factor that a `chance` of all exceed no more, of those that are larger than `beyond`."""
        ...


class Seen:
    """Errors as they were. The next one falls into each of the gaps between those that were seen with the same chance,
    which holds for any distribution if they are exchangeable (Vovk et al., 2005); beyond the largest and below the
    smallest they thin out by Pareto's law, in step with how widely they are spread.

    Of a few the spread says little: it is taken together with what is `usual`, which counts as much as three of them.

    `unfinished` are runs that have come so far and go on. That they are not over tells of those that will come: the
    gaps beyond them weigh more, by the product-limit estimate (Kaplan and Meier, 1958). Else a class would be taken for
    as brief as those of its runs that happen to be over.
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
        """Beyond this factor another law holds: it overruns all that was seen."""
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
        """The chance of an error of at most this logarithm."""
        logs, chances = self._logs, self._chances
        if at <= logs[0]:
            return chances[0] * exp((at - logs[0]) / self._below_all)
        if at >= logs[-1]:
            return 1 - (1 - chances[-1]) * exp((logs[-1] - at) / self._above_all)
        above = bisect_right(logs, at)
        width = logs[above] - logs[above - 1]
        return chances[above - 1] + (at - logs[above - 1]) / width * (chances[above] - chances[above - 1])


def _spread(logs: Sequence[float]) -> float:
    """The mean distance of sorted logarithms from their median, for as many as there are: that of a few is less than
    that of all.
    """
    count = len(logs)
    middle = logs[count // 2]
    return sum(abs(each - middle) for each in logs) / max(1, count - 1) * (count + 1) / max(1, count)


def _excess(chance: float, count: int) -> float:
    """Mean excess of a normal variable over what it exceeds with this chance, over its mean deviation. Tails get
    thinner further out; how much is not known where values are few.
    """
    at = _NORMAL.inv_cdf(1 - chance)
    return min(1.0, (1 + 2 / count) * (_NORMAL.pdf(at) / chance - at) / MEAN_DEVIATION)


class Unseen:
    """Errors of an estimate of which nothing is known but its mean deviation, as a part of it: lognormal around a
    median of 1, since run times are products of many things and heavy-tailed.

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
