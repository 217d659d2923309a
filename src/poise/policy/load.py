"""Forecast of a load, such as submissions per hour or requests per second, window by window, with intervals.

    forecaster = LoadForecaster(HOUR, horizon=24)
    for at, value in history:
        forecaster.learn(at, value)
    forecaster.ahead()                 # a `Band` for each of the next 24 windows

Several forecasts are made of each window: the value one day or one week before (*seasonal naive*), and the mean at this
time of the day, of the week, or of all times, plus the latest deviation from it, which decays at different speeds. For
each distance, the one with the least recent absolute error is used. `max-of-six`, the largest of the last six values,
is computed for comparison only.

Intervals are conformal: they are quantiles of past errors, each divided by the recent mean error. The levels of the
quantiles follow how often past intervals were exceeded (adaptive conformal inference: Gibbs and Candès, 2021), so the
coverage is kept when the load changes its nature. Each forecast is judged when its window has ended, so `coverage` is
measured on values that nothing was learned from.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Floats, Ints
from poise.units import DAY

LEVEL = 0.8
"""Part of values that an interval should hold."""

WEEK = 7 * DAY
DECAYS = (0.0, 0.7, 0.97)
"""Part of the latest deviation that is left after one window, in different forecasts."""

SEASONAL, LONG = 0.3, 0.02
"""Weights of the newest value in the mean at a time of the day or the week, and in the mean of all times."""

NEWEST = 0.6
"""Weight of the newest value in the latest deviation."""

RECENT = 0.02
"""Weight of the newest error in the mean errors by which forecasts are chosen and intervals are scaled."""

BLUR = 0.02
"""Part of the forecast that is added to the scale of its interval."""

MAX_SCORES, LEAST_SCORES = 300, 20
"""Latest errors of each distance from which an interval is made, and how many it needs."""

STEP = 0.01
"""Change of the level of a quantile after an interval was judged."""

LOWEST, HIGHEST = 0.005, 0.4
"""Limits of the level of a quantile."""

SIX = 6


class Band(NamedTuple):
    """The forecast of one window: the expected value, and its interval (`known` is False without enough history)."""

    expected: float
    low: float
    high: float
    known: bool


class Accuracy(NamedTuple):
    """Judged forecasts of one distance, in windows: their number, the part that the intervals held, and the mean
    absolute error of the forecast, of the seasonal naive one, and of the largest of the last six values.
    """

    distance: int
    judged: int
    coverage: float
    error: float
    naive: float
    max_of_six: float


class LoadForecaster:
    """Learns the values of windows in order, and forecasts the next ones. All times in nanoseconds on one clock, whose
    multiples of a day are the beginnings of days.
    """

    def __init__(self, window: int, horizon: int, *, intervals: bool = True) -> None:
        """Without `intervals`, learning takes a fraction of the time."""
        self.horizon = horizon
        self._intervals = intervals
        self._window = window
        self._parts = {period: period // window for period in (DAY, WEEK) if period // window > 1}
        self._values: deque[float] = deque(maxlen=max([SIX, *self._parts.values()]))
        self._means = {period: np.full(parts, np.nan) for period, parts in self._parts.items()}
        self._mean = np.nan
        self._deviations = np.zeros(1 + len(self._parts))
        candidates = (1 + len(self._parts)) * len(DECAYS) + 1
        self._naive, self._six = candidates - 1, candidates
        self._made = np.full((horizon, candidates + 1, horizon), np.nan)
        self._errors = np.full((candidates + 1, horizon), np.nan)
        self._bands = np.full((horizon, 3, horizon), np.nan)
        self._scales = np.full((horizon, horizon), np.nan)
        self._scores: list[deque[float]] = [deque(maxlen=MAX_SCORES) for _ in range(horizon)]
        self._levels = np.full((2, horizon), (1 - LEVEL) / 2)
        self._judged = np.zeros(horizon, np.int64)
        self._held = np.zeros(horizon, np.int64)
        self._sums = np.zeros((3, horizon))
        self._counts = np.zeros(horizon, np.int64)
        self._choice = np.zeros(horizon, np.int64)
        self._turn = 0
        self._at = 0

    def learn(self, at: int, value: float) -> None:
        """Learn the value of the window that begins at `at`, which follows the last one."""
        self._judge(value)
        self._update(at, value)
        self._at = at + self._window
        self._forecast()
        self._turn += 1

    def ahead(self) -> list[Band]:
        """Return the forecasts of the next windows; nothing before the first value."""
        if not self._turn:
            return []
        expected, low, high = self._bands[(self._turn - 1) % self.horizon]
        return [
            Band(float(mid), float(least), float(most), bool(np.isfinite(least)))
            for mid, least, most in zip(expected, low, high, strict=True)
        ]

    def as_on(self, distance: int, days: int) -> float:
        """Return what is expected `distance` windows ahead if that day is like the one `days` days earlier in the week;
        not a number if that is not known.
        """
        means = self._means.get(WEEK)
        if means is None:
            return float("nan")
        return float(means[self._part(WEEK, self._at + (distance - 1) * self._window - days * DAY)])

    def accuracy(self, distance: int) -> Accuracy:
        """Return how good the forecasts were, `distance` windows ahead (1: the next window)."""
        place = distance - 1
        judged, count = int(self._judged[place]), max(1, int(self._counts[place]))
        coverage = self._held[place] / judged if judged else 0.0
        return Accuracy(distance, judged, float(coverage), *(float(total) / count for total in self._sums[:, place]))

    @property
    def seasonal(self) -> bool:
        """Whether the forecast of the next window uses a time of the day or of the week."""
        return int(self._choice[0]) >= len(DECAYS)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _rows(self) -> tuple[Ints, Ints]:
        """Return the turns in which the present window was forecast, and the distances less one."""
        distances = np.arange(min(self._turn, self.horizon))
        return (self._turn - 1 - distances) % self.horizon, distances

    def _judge(self, value: float) -> None:
        """Compare the value with all forecasts of its window."""
        turns, at = self._rows()
        if not len(at):
            return
        errors = np.abs(self._made[turns, :, at] - value).T
        known = self._errors[:, at]
        moved = np.where(np.isnan(known), errors, known + RECENT * (errors - known))
        self._errors[:, at] = np.where(np.isnan(errors), known, moved)
        expected, low, high = self._bands[turns, :, at].T
        for distance, score in zip(at.tolist(), ((value - expected) / self._scales[turns, at]).tolist(), strict=True):
            if np.isfinite(score):
                self._scores[distance].append(score)
        compared = ~np.isnan(errors[self._naive])
        self._counts[at] += compared
        for row, error in enumerate((np.abs(expected - value), errors[self._naive], errors[self._six])):
            self._sums[row, at] += np.where(compared, error, 0.0)
        judged = np.isfinite(low)
        below, above = judged & (value < low), judged & (value > high)
        self._judged[at] += judged
        self._held[at] += judged & ~below & ~above
        aim = (1 - LEVEL) / 2
        for row, missed in enumerate((below, above)):
            moved = self._levels[row, at] + STEP * (aim - missed)
            self._levels[row, at] = np.where(judged, np.clip(moved, LOWEST, HIGHEST), self._levels[row, at])

    def _update(self, at: int, value: float) -> None:
        bases = [self._mean, *(self._means[period][self._part(period, at)] for period in self._parts)]
        for place, base in enumerate(bases):
            if not np.isnan(base):
                self._deviations[place] += NEWEST * (value - base - self._deviations[place])
        self._mean = value if np.isnan(self._mean) else self._mean + LONG * (value - self._mean)
        for period in self._parts:
            means, part = self._means[period], self._part(period, at)
            means[part] = value if np.isnan(means[part]) else means[part] + SEASONAL * (value - means[part])
        self._values.append(value)

    def _part(self, period: int, at: int) -> int:
        return at % period // self._window % self._parts[period]

    def _forecast(self) -> None:
        """Make all forecasts of the next windows, and choose one for each."""
        turn, steps = self._turn % self.horizon, np.arange(self.horizon)
        made = self._made[turn]
        made.fill(np.nan)
        bases = [np.full(self.horizon, self._mean)]
        for period, parts in self._parts.items():
            bases.append(self._means[period][(self._part(period, self._at) + steps) % parts])
        for place, (base, deviation) in enumerate(zip(bases, self._deviations.tolist(), strict=True)):
            for number, decay in enumerate(DECAYS):
                made[place * len(DECAYS) + number] = base + deviation * decay ** (steps + 1)
        values = np.array(self._values)
        season = next((parts for parts in reversed(self._parts.values()) if parts <= len(values)), 0)
        if season:
            made[self._naive] = values[-season:][steps % season]
        made[self._six] = values[-SIX:].max()
        np.maximum(made, 0.0, out=made)
        self._choice = chosen = self._chosen(made)
        expected = made[chosen, steps]
        scales = self._errors[chosen, steps] + BLUR * expected + 1e-9
        bands = self._bands[turn]
        bands[0], bands[1], bands[2], self._scales[turn] = expected, np.nan, np.nan, scales
        for distance in range(self.horizon if self._intervals else 0):
            scores = self._scores[distance]
            if len(scores) >= LEAST_SCORES:
                ordered = np.sort(np.array(scores))
                low, high = self._levels[:, distance]
                bands[1, distance] = max(0.0, expected[distance] + scales[distance] * _quantile(ordered, low))
                bands[2, distance] = max(0.0, expected[distance] + scales[distance] * _quantile(ordered, 1 - high))

    def _chosen(self, made: Floats) -> Ints:
        """Return the forecast with the least recent error for each distance, among those that can be made now."""
        unusable = np.isnan(made[:-1]) | np.isnan(self._errors[:-1])
        errors = np.where(unusable, np.inf, self._errors[:-1])
        best: Ints = errors.argmin(axis=0)
        best[np.isinf(errors.min(axis=0))] = 1  # the mean of all times, and a part of the latest deviation
        return best


def _quantile(ordered: Floats, level: float) -> float:
    """Return a quantile of a finite sample that a further value exceeds with the wanted probability."""
    place = level * (len(ordered) + 1) - 1
    return float(np.interp(place, np.arange(len(ordered)), ordered))
