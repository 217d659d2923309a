"""Whether a signal is unusual for its own past: for this hour of the week, or else for the last day.

>>> hours = [(week * WEEK + hour * 3600, 100 + 700 * (hour % 24 == 9)) for week in range(4) for hour in range(168)]
>>> unusual([(4 * WEEK + 9 * 3600, 800)], hours), unusual([(4 * WEEK + 3 * 3600, 800)], hours).usual
(None, 100)
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

HOUR, WEEK = 3600, 7 * 24 * 3600

LEAST_WEEKS = 2
"""Weeks of history from which on the hour of the week counts."""

LEAST_MINUTES = 60
"""Without those, minutes of history from which on the day counts."""

LATELY = 10
"""The latest minutes, of which the mean is judged."""

LIMIT = 6.0
"""Spreads from what is usual from which on a value is unusual."""

FLOOR, RELATIVE_FLOOR = 20.0, 0.05
"""The least spread: in units of the signal, and as a part of what is usual."""

CLIP = 3.0
"""Deviations by which one value moves an `Ewma` at most."""

At = tuple[int, int]
"""Seconds since 1970, and a value."""


class Unusual(NamedTuple):
    """The mean of the latest minutes, what is usual, and by how many spreads they are apart. `by` is `hour of week` or
    `day`.
    """

    value: int
    usual: int
    score: float
    by: str


class Ewma:
    """A mean and a variance with exponential decay. A value that is far away counts as one of `CLIP` deviations."""

    def __init__(self, weight: float = 0.05, floor: float = FLOOR) -> None:
        self._weight = weight
        self._floor = floor
        self._seen = 0
        self.mean = 0.0
        self.variance = 0.0

    def score(self, value: float) -> float:
        """Deviations from the mean, with sign."""
        return (value - self.mean) / self.deviation if self._seen else 0.0

    @property
    def deviation(self) -> float:
        return max(sqrt(self.variance), self._floor)

    def take(self, value: float) -> float:
        """Its score, before it is learned."""
        score = self.score(value)
        self._seen += 1
        weight = max(self._weight, 1.0 / self._seen)
        change = value - self.mean
        if self._seen > 1.0 / self._weight:
            change = max(-CLIP * self.deviation, min(CLIP * self.deviation, change))
        self.mean += weight * change
        self.variance = (1 - weight) * (self.variance + weight * change**2)
        return score


def robust(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the spread by the median absolute deviation, at least the floor."""
    from statistics import median  # dear: every command imports this module

    middle = median(values)
    spread = 1.4826 * median([abs(value - middle) for value in values])
    return middle, max(spread, FLOOR, RELATIVE_FLOOR * abs(middle))


def unusual(minutes: Sequence[At], hours: Sequence[At]) -> Unusual | None:
    """What is unusual about the latest of these minutes, oldest first. `hours` are means of earlier hours; of them the
    same hours of the week are compared.
    """
    if not minutes:
        return None
    now = minutes[-1][0]
    value = sum(of for _, of in minutes[-LATELY:]) / len(minutes[-LATELY:])
    alike = [of for at, of in hours if at < now - HOUR and (now // HOUR - at // HOUR) % (WEEK // HOUR) == 0]
    if len(alike) >= LEAST_WEEKS:
        usual, spread = robust(alike)
        by = "hour of week"
    elif len(minutes) >= LEAST_MINUTES + LATELY:
        learned = Ewma()
        for _, of in minutes[:-LATELY]:
            learned.take(of)
        usual, spread, by = learned.mean, max(learned.deviation, RELATIVE_FLOOR * abs(learned.mean)), "day"
    else:
        return None
    score = (value - usual) / spread
    return Unusual(round(value), round(usual), round(score, 1), by) if abs(score) > LIMIT else None
