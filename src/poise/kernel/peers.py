"""Find the member of a gang that differs from the others. Members do the same work, so a member that differs is faulty.

    watch = Peers(members=8, signals=10)
    for minute in minutes:
        found = watch.take(minute)          # one value by member and signal

Each signal is compared over the members at the same instant, so common changes (steps, checkpoints, pauses) are no
difference. A value is expressed as the distance from the median of the members, in spreads (from the median absolute
deviation). Members have harmless differences: the first one coordinates, some chips take more power. So a member is
also compared with its usual distance from the others, a mean and a variance with exponential decay. It is reported once
it has differed in the same signal and direction for `WINDOWS` consecutive windows.

The method is that of Minder (NSDI '25) with two changes: no model removes noise, and the usual distance of a member is
subtracted. `benchmarks/anomalies.py` has figures for each part.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

FEWEST = 4
"""Minimum number of members: with fewer, it is unclear which one differs."""

WINDOWS = 3
"""Number of consecutive windows in which a member must differ before it is reported."""

FLOOR, RELATIVE_FLOOR = 8.0, 0.02
"""The least spread of a signal: an absolute value in thousandths, and a share of the median."""

ABSOLUTE = 8.0
"""Distance from the median, in spreads, at which a member differs among many members; more among few (`limit`)."""

CHANGE = 7.0
"""Distance from its usual distance, in standard deviations, at which a member differs."""

LEAST_VARIANCE = 0.25
"""Least variance of a member's distance, in spreads squared, so that a very steady member is not reported for a small
change.
"""

DECAY = 0.05
"""Weight of one window in the usual distance of a member."""

MOST_LEARNED = 2.0
"""Maximum effect of one window on the usual distance, in standard deviations."""

LEARNS = 5
"""Number of windows before the usual distance of members counts."""

MOST = 0.25
"""If a larger share of the members differs, they do different work, and none is reported."""


class Differs(NamedTuple):
    """A member, its most deviating signal, its value and that of the others, and a score: 1 is the limit."""

    member: int
    signal: int
    value: float
    others: float
    score: float


def limit(members: int) -> float:
    """Return the spreads that no member exceeds by chance: a spread estimated from few values is often too small.

    >>> [round(limit(members), 1) for members in (4, 8, 32, 1024)]
    [28.5, 13.8, 9.0, 8.0]
    """
    return ABSOLUTE * float(np.exp(3.81 / (members - 1)))


class Peers:
    """Compares the members of one gang, from its start. With `usual`, it learns the usual distance of each member;
    without, only the distance from the median counts.
    """

    def __init__(self, members: int, signals: int, *, usual: bool = True, windows: int = WINDOWS) -> None:
        shape = (members, signals)
        self._learns = usual
        self._windows = windows
        self._seen = 0
        self._usual = np.zeros(shape)
        self._variance = np.ones(shape)
        self._since = np.zeros(shape, np.int64)
        self._sign = np.zeros(shape, np.int64)
        self._limit = limit(members) if members >= FEWEST else np.inf

    def take(self, values: Values) -> list[Differs]:
        """Read the next window: one value by member and signal, NaN if not measured. Return the members that differ by
        now, the worst first.
        """
        if values.shape != self._usual.shape:
            raise ValueError(f"values of {values.shape}, needed {self._usual.shape}")
        known = ~np.isnan(values)
        enough = known.sum(axis=0) >= FEWEST
        filled = np.where(known & enough, values, 0.0)
        masked = np.ma.masked_array(filled, ~(known & enough))
        median = np.ma.median(masked, axis=0).filled(0.0)  # type: ignore[no-untyped-call]
        apart = np.where(known & enough, filled - median, 0.0)
        deviation = np.ma.median(np.ma.masked_array(np.abs(apart), masked.mask), axis=0).filled(0.0)  # type: ignore[no-untyped-call]
        spread = np.maximum(1.4826 * deviation, np.maximum(FLOOR, RELATIVE_FLOOR * np.abs(median)))
        distance = apart / spread
        change = distance - self._usual
        if self._learns:
            pooled = np.maximum(self._variance, np.mean(self._variance, axis=0, keepdims=True))
            score = np.abs(change) / (CHANGE * np.sqrt(np.maximum(pooled, LEAST_VARIANCE)))
            if self._seen < LEARNS:
                score = np.zeros_like(score)
        else:
            score = np.abs(distance) / self._limit
        sign = np.where(score > 1.0, np.sign(change if self._learns else distance), 0).astype(np.int64)
        self._since = np.where((sign != 0) & (sign == self._sign), self._since + 1, np.where(sign != 0, 1, 0))
        self._sign = sign
        self._learn(distance, calm=score <= 1.0)
        told = self._since >= self._windows
        members = np.flatnonzero(told.any(axis=1))
        if not len(members) or len(members) > max(1.0, MOST * len(values)):
            return []
        found = []
        for member in members:
            signal = int(np.argmax(np.where(told[member], score[member], 0.0)))
            one = float(score[member, signal])
            found.append(Differs(int(member), signal, float(values[member, signal]), float(median[signal]), one))
        return sorted(found, key=lambda of: (-of.score, of.member))

    def _learn(self, distance: Values, calm: npt.NDArray[np.bool_]) -> None:
        """Update the usual distance: a plain mean at first, then with decay. A member that differs does not count. A
        slow drift counts little: at most as a change of two deviations.
        """
        self._seen += 1
        weight = max(DECAY, 1.0 / self._seen)
        change = distance - self._usual
        if self._seen > LEARNS:
            most = MOST_LEARNED * np.sqrt(np.maximum(self._variance, LEAST_VARIANCE))
            change = np.clip(change, -most, most)
        self._usual += np.where(calm, weight * change, 0.0)
        self._variance = np.where(calm, (1 - weight) * (self._variance + weight * change**2), self._variance)


def worst(found: Sequence[Differs]) -> Differs | None:
    """Return the member that differs most, if any does."""
    return found[0] if found else None
