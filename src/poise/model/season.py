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
"""Weeks of history needed for a comparison by hour of the week."""

LEAST_MINUTES = 60
"""Minutes of history needed otherwise, for a comparison with the last day."""

LATELY = 10
"""Number of latest minutes whose mean is judged."""

LIMIT = 6.0
"""Distance from the usual value, in spreads, from which a value is unusual."""

FLOOR, RELATIVE_FLOOR = 20.0, 0.05
"""Minimum spread: in units of the signal, and as a fraction of the usual value."""

CLIP = 3.0
"""Maximum influence of one value on an `Ewma`, in deviations."""

At = tuple[int, int]
"""Seconds since 1970, and a value."""


class Unusual(NamedTuple):
    """The mean of the latest minutes, the usual value, and their distance in spreads. `by` is `hour of week` or
    `day`.
    """

    value: int
    usual: int
    score: float
    by: str


class Ewma:
    """A mean and a variance with exponential decay. An outlier counts as a value at `CLIP` deviations."""

    def __init__(self, weight: float = 0.05, floor: float = FLOOR) -> None:
        self._weight = weight
        self._floor = floor
        self._seen = 0
        self.mean = 0.0
        self.variance = 0.0

    def score(self, value: float) -> float:
        """Return the signed distance from the mean, in deviations."""
        return (value - self.mean) / self.deviation if self._seen else 0.0

    @property
    def deviation(self) -> float:
        return max(sqrt(self.variance), self._floor)

    def take(self, value: float) -> float:
        """Learn a value, and return its score before that."""
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
    """Return the median, and the spread by the median absolute deviation, at least the floor."""
    from statistics import median  # slow to import, and every command imports this module

    middle = median(values)
    spread = 1.4826 * median([abs(value - middle) for value in values])
    return middle, max(spread, FLOOR, RELATIVE_FLOOR * abs(middle))


def unusual(minutes: Sequence[At], hours: Sequence[At]) -> Unusual | None:
    """Judge the latest of these minutes, oldest first; None if it is usual. `hours` are means of earlier hours; those
    of the same hour of the week are compared.
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
