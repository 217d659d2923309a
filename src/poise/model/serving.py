"""Batch latency of a replica: how long a batch of each size takes.

The table is learned from every batch. It need not be monotonic: a kernel chosen for four or more items may make a batch
of four faster than one of three. So no curve is fitted; values between observed sizes are interpolated linearly, and
the line through the two largest is extrapolated. Larger batches than observed are assumed to pay off, so that they are
tried.
"""

from collections.abc import Sequence
from math import sqrt

import msgspec

from poise.units import SECOND

RECENT = 0.05
"""Weight of a new measurement of a size, once there are more than twenty."""

AT_LEAST = 3
"""Number of batches of a size after which a much slower one is treated as an outlier."""

FAR = 4.0
"""A batch that takes this many times as long as others of its size says more about the machine than about its size …"""

TOLD_AGAIN = 3
"""… unless this many in a row did."""

CHANGED = 0.03
"""Minimum relative change of a size's duration for a recalculation …"""

AFTER = 32
"""… each time after this many batches …"""

AT_ONCE = 0.2
"""… or this change at once."""

LENT = 0.3
"""Weight of a new measurement of a replica's speed relative to the replica whose table it has borrowed."""

DOUBT = 2.0
"""A size is believed to be faster than its mean by this multiple of the standard error of the mean, so that a size that
looked slow by chance is tried again …"""

ENOUGH = 20
"""… as far as it exceeds that of a size with this many batches."""

WIDEST = 0.25
"""Maximum relative variance of a measurement: a larger one says more about the machine."""

MOST = 1024
"""Maximum number of items in one batch."""


class Size(msgspec.Struct):
    """Statistics of batches of one size, in nanoseconds."""

    count: int = 0
    mean: float = 0.0
    last: float = 0.0  # latest measurement
    used: float = 0.0  # the belief at the last recalculation
    far: int = 0  # number of consecutive outliers

    def learn(self, took: float) -> float | None:
        """Add a measurement; return half of its squared relative difference from the one before, 0 without one, and
        None for an outlier.
        """
        if self.count >= AT_LEAST and took > FAR * self.mean:
            self.far += 1
            if self.far < TOLD_AGAIN:
                return None
            self.count, self.last = 0, 0.0  # the replica has become slower: start over
        self.far = 0
        self.count += 1
        share = max(RECENT, 1 / self.count)
        self.mean += share * (took - self.mean)
        before, self.last = self.last, took
        return 2 * ((took - before) / (took + before)) ** 2 if before and took else 0.0

    def believed(self, noise: float) -> float:
        """Return the duration to count with. `noise`: relative standard deviation of one measurement."""
        if self.count >= ENOUGH:
            return self.mean
        return self.mean * max(0.5, 1 - DOUBT * noise * (1 / sqrt(self.count) - 1 / sqrt(ENOUGH)))

    def moved(self, noise: float) -> float:
        """Return the relative change of the belief since the last recalculation."""
        return abs(self.believed(noise) - self.used) / self.used if self.used else 1.0


class Curve:
    """Learned nanoseconds for a batch of each size on one replica. Derived values are computed on demand, and cached
    until the table changes.

    `limit`: maximum items in a batch (set by the user, or lowered after running out of memory). `room`: items for which
    there is memory, as measured; 0 if unknown. No batch is tried that is more than twice as large as the largest
    observed one.
    """

    def __init__(self, limit: int, known: Sequence[tuple[int, float]] = ()) -> None:
        if not 1 <= limit <= MOST:
            raise ValueError(f"a batch has 1 to {MOST} items, not {limit}")
        self.limit = limit
        self.room = 0
        self.sizes: dict[int, Size] = {}
        self._lent: Curve | None = None
        self._borrowed: dict[int, float] = {}
        self._beside = self._used_beside = 0.0
        self._learned = 0
        self._variance = 0.0  # of one measurement, relative to its size's mean
        self._takes: list[float] = []
        self._padded: list[int] = []
        self._clears: list[float] = []
        self._first: list[int] = []
        for size, took in known:
            self.learn(size, took)

    def borrow(self, known: Sequence[tuple[int, float]]) -> None:
        """Start with another replica's table. Measurements here determine the relative speed of this replica, which
        then scales all sizes that were not measured yet.
        """
        if not known:
            return
        self._lent, self._borrowed, self._used_beside = Curve(self.limit, known), dict(known), 1.0
        for size, took in known:
            self.learn(size, took)

    def learn(self, size: int, took: float) -> None:
        """Learn that a batch of this size took this many nanoseconds."""
        if self._lent is not None and len(self.sizes) >= len(self._lent.sizes):
            self._compare(self._lent, size, took)
        of = self.sizes.setdefault(size, Size())
        variance = of.learn(took)
        if variance is None:
            return
        if variance:
            self._variance += RECENT * (min(variance, WIDEST) - self._variance)
        noise = sqrt(self._variance)
        self._learned += 1
        is_due = self._learned % AFTER == 0
        if of.moved(noise) > AT_ONCE or (is_due and any(one.moved(noise) > CHANGED for one in self.sizes.values())):
            self._forget()

    def _compare(self, lent: "Curve", size: int, took: float) -> None:
        ratio = took / (lent.takes(min(size, lent.largest)) * max(1.0, size / lent.largest))
        self._beside = self._beside + LENT * (ratio - self._beside) if self._beside else ratio
        if self._borrowed.pop(size, None) is not None:
            del self.sizes[size]
        if abs(self._beside - self._used_beside) > AT_ONCE * self._used_beside:
            self._used_beside = self._beside
            for one, lent_took in self._borrowed.items():
                self.sizes[one].mean = self._beside * lent_took
            self._forget()
        if not self._borrowed:
            self._lent = None

    def lower(self, limit: int) -> None:
        """Lower the limit, after a batch did not fit in memory."""
        self.limit = max(1, min(self.limit, limit))
        self._forget()

    def has_room(self, items: int) -> None:
        """Set the number of items for which there is memory."""
        before, self.room = self.largest, items
        if self.largest != before:
            self._forget()

    def known(self) -> list[tuple[int, float]]:
        """Return sizes with their durations, as a start for another replica of the same kind."""
        return [(size, of.mean) for size, of in sorted(self.sizes.items())]

    @property
    def largest(self) -> int:
        """The largest batch that may be tried now."""
        seen = max(self.sizes, default=0)
        return min(self.limit, self.room or self.limit, 2 * seen) if seen else 1

    def padded(self, count: int) -> int:
        """Return the size to which a batch of `count` is padded if a larger one is faster; else `count`."""
        self._work_out()
        return self._padded[count]

    def takes(self, count: int) -> float:
        """Return the nanoseconds for a batch of `count`, padded if that is faster; `count` is at most `largest`."""
        self._work_out()
        return self._takes[count]

    def clears(self, count: int) -> float:
        """Return the least nanoseconds for `count` items, split into batches."""
        self._work_out()
        most = len(self._clears) - 1
        if count <= most:
            return self._clears[count]
        whole, rest = divmod(count - 1, most)  # the rest has at least one item, so that nothing is free
        return whole * self._clears[most] + self._clears[rest + 1]

    def pace(self) -> float:
        """Return the nanoseconds per item at the maximum batch size."""
        self._work_out()
        return self._clears[-1] / (len(self._clears) - 1)

    def _forget(self) -> None:
        self._learned = 0
        self._takes = []

    def _work_out(self) -> None:
        if self._takes:
            return
        largest = self.largest
        raw = self._read_off(largest)
        self._takes, self._padded = [0.0] * (largest + 1), [0] * (largest + 1)
        best = 0  # the fastest observed larger size: interpolated values are not reliable
        for count in range(largest, 0, -1):
            if count in self.sizes and (not best or raw[count] < raw[best]):
                best = count
            filled = best if best and raw[best] < raw[count] else count
            self._takes[count], self._padded[count] = raw[filled], filled
        self._clears = [0.0] * (largest + 1)
        for count in range(1, largest + 1):
            self._clears[count] = min(self._takes[size] + self._clears[count - size] for size in range(1, count + 1))

    def _read_off(self, largest: int) -> list[float]:
        """Return the unpadded duration of a batch of each size, 0 to `largest`."""
        noise = sqrt(self._variance)
        for of in self.sizes.values():
            of.used = of.believed(noise)
        known = [(size, of.used) for size, of in sorted(self.sizes.items())]
        if not known:
            return [0.0] * (largest + 1)
        (low, least), (high, most) = known[-2:] if len(known) > 1 else ((0, 0.0), known[0])
        slope = min(max(0.0, (most - least) / (high - low)), most / high)
        takes = [0.0]
        below, above = (0, 0.0), 0
        for count in range(1, largest + 1):
            while above < len(known) and known[above][0] < count:
                below = known[above]
                above += 1
            if above == len(known):
                takes.append(below[1] + slope * (count - below[0]))
            elif known[above][0] == count or not below[0]:
                takes.append(known[above][1])
            else:
                (low, least), (high, most) = below, known[above]
                takes.append(least + (most - least) * (count - low) / (high - low))
        return takes


class Limits(msgspec.Struct, frozen=True):
    """`objective`: the latency that one accepted request in a hundred may exceed, 0 for none. `timeout`: time after
    which a request is given up. `queue`: maximum number of waiting requests. `batch`: maximum items in a batch.
    `defer`: a request that is predicted to be late waits in the second lane instead of being refused. `body`: maximum
    bytes of a request. `wait`: how long an idle replica may wait for a fuller batch that only saves its time. `hold`:
    maximum time that a request waits while no replica is up.
    """

    objective: int = 0
    timeout: int = 30 * SECOND
    queue: int = 10_000
    batch: int = 64
    defer: bool = False
    body: int = 16 << 20
    wait: int = 0
    hold: int = 30 * SECOND


__all__ = ["MOST", "Curve", "Limits"]
