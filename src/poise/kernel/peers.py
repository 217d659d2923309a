"""Which member of a gang differs from the others: members do the same work, so the one that differs is the sick one.

    watch = Peers(members=8, signals=10)
    for minute in minutes:
        found = watch.take(minute)          # one value by member and signal

Each signal is compared over the members at the same instant: what they all do together (steps, checkpoints, pauses)
is no difference. A value is told in spreads from the median of the members (by the median absolute deviation). Members
have differences of their own that do no harm: the first one coordinates, some chips take more power. So a member is
also compared with its own usual distance from the others, a mean and a variance with exponential decay. It is told
once it has differed in the same signal and direction for `WINDOWS` in a row.

The method is that of Minder (NSDI '25) with two changes: no model removes noise, and what is usual for a member is
taken off. `benchmarks/anomalies.py` has figures for each part.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

FEWEST = 4
"""Members that must be there: of fewer, nobody can say which one differs."""

WINDOWS = 3
"""Windows in a row for which a member differs before it is told."""

FLOOR, RELATIVE_FLOOR = 8.0, 0.02
"""The least spread of a signal: so many thousandths of what there is, and such a part of the median."""

ABSOLUTE = 8.0
"""Spreads from the median from which on a member differs, among many members; more among few (`limit`)."""

CHANGE = 7.0
"""Deviations from its own usual distance from which on a member differs."""

LEAST_VARIANCE = 0.25
"""Of a member's distance, in spreads squared: what varies less is not told for that alone."""

DECAY = 0.05
"""The weight of one window in what is usual for a member."""

MOST_LEARNED = 2.0
"""Deviations by which one window moves what is usual at most."""

LEARNS = 5
"""Windows before the usual distance of members counts."""

MOST = 0.25
"""If a larger part of the members differs, they do different work."""


class Differs(NamedTuple):
    """A member, the signal that tells it best, its value and that of the others, and a score: 1 is the limit."""

    member: int
    signal: int
    value: float
    others: float
    score: float


def limit(members: int) -> float:
    """Spreads that no member exceeds by chance: the estimate of a spread from few values is often too small.

    >>> [round(limit(members), 1) for members in (4, 8, 32, 1024)]
    [28.5, 13.8, 9.0, 8.0]
    """
    return ABSOLUTE * float(np.exp(3.81 / (members - 1)))


class Peers:
    """One gang, from its start on. `usual` learns what is usual for each member; without it only spreads count."""

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
        """The next window: one value by member and signal, NaN where nobody measured it. Members that differ by now,
        the worst first.
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
        """What is usual: a plain mean at first, then with decay. A member that differs teaches nothing, and one that
        moves away slowly little: a change counts as one of two deviations at most.
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
    """The member that differs most, if any does."""
    return found[0] if found else None
