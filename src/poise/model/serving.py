"""What is known of a replica that answers requests in batches: how long a batch of each size takes there.

The table is learned from every batch that it answers. It need not rise: a kernel that is chosen from four items on may
make a batch of four quicker than one of three. So nothing is fitted to it; between sizes that were seen it is read off
a line, which goes on from the two largest: larger batches than were seen are hoped to pay, and so they are tried.
"""

from collections.abc import Sequence

import msgspec

from poise.units import SECOND

RECENT = 0.05
"""The share of a new measurement in what is remembered of its size, once there are more than twenty."""

AT_LEAST = 3
"""So many batches of a size before one that took far longer than they did counts for less than they do."""

FAR = 4.0
"""A batch that took so many times as long as its like says more of the machine than of its size …"""

TOLD_AGAIN = 3
"""… unless that many in a row did."""

CHANGED = 0.03
"""What a size takes must have moved by this share before everything is worked out again from it …"""

AFTER = 32
"""… and so many batches been learned from since the last time …"""

AT_ONCE = 0.2
"""… unless it has moved by so much."""

LENT = 0.3
"""The share of a new measurement in how fast a replica is beside the one whose table it has borrowed."""

MOST = 1024
"""Items in one batch at most."""


class Size(msgspec.Struct):
    """What is remembered of batches of one size, in nanoseconds."""

    count: int = 0
    mean: float = 0.0
    used: float = 0.0  # the mean that was last worked with
    far: int = 0  # so many in a row took far longer

    def learn(self, took: float) -> float:
        """By which share it has moved from what was last worked with."""
        if self.count >= AT_LEAST and took > FAR * self.mean:
            self.far += 1
            if self.far < TOLD_AGAIN:
                return 0.0
            self.count = 0  # the replica has become slower: begin anew
        self.far = 0
        self.count += 1
        share = max(RECENT, 1 / self.count)
        self.mean += share * (took - self.mean)
        return abs(self.mean - self.used) / self.used if self.used else 1.0


class Curve:
    """Nanoseconds that a batch of each size takes on one replica, as learned; what follows from that is worked out when
    it is asked for, and kept until the table has changed.

    `limit`: items that a batch may have (the user says so, or there was no memory for more). `room`: items for which
    there is memory, as measured; 0 if that is not known. None is tried that is more than twice as large as the largest
    that was seen.
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
        self._takes: list[float] = []
        self._padded: list[int] = []
        self._clears: list[float] = []
        self._first: list[int] = []
        for size, took in known:
            self.learn(size, took)

    def borrow(self, known: Sequence[tuple[int, float]]) -> None:
        """Begin with what another replica takes. What is measured here says how fast this one is beside it, and all
        sizes that were not measured yet are taken to be as much slower, or quicker.
        """
        if not known:
            return
        self._lent, self._borrowed, self._used_beside = Curve(self.limit, known), dict(known), 1.0
        for size, took in known:
            self.learn(size, took)

    def learn(self, size: int, took: float) -> None:
        """A batch of this size took so many nanoseconds."""
        if self._lent is not None and len(self.sizes) >= len(self._lent.sizes):
            self._compare(self._lent, size, took)
        moved = self.sizes.setdefault(size, Size()).learn(took)
        self._learned += 1
        if moved > AT_ONCE or (moved > CHANGED and self._learned > AFTER):
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
        """A batch may have no more items than that from now on: there was no memory for more."""
        self.limit = max(1, min(self.limit, limit))
        self._forget()

    def has_room(self, items: int) -> None:
        """There is memory for a batch of so many."""
        before, self.room = self.largest, items
        if self.largest != before:
            self._forget()

    def known(self) -> list[tuple[int, float]]:
        """Sizes and what they take, for another replica of the same kind to begin with."""
        return [(size, of.mean) for size, of in sorted(self.sizes.items())]

    @property
    def largest(self) -> int:
        """The largest batch that may be tried now."""
        seen = max(self.sizes, default=0)
        return min(self.limit, self.room or self.limit, 2 * seen) if seen else 1

    def padded(self, count: int) -> int:
        """To how many items a batch of `count` is filled up, where more take less time; else `count`."""
        self._work_out()
        return self._padded[count]

    def takes(self, count: int) -> float:
        """Nanoseconds that a batch of `count` takes, filled up where that is quicker; `count` is at most `largest`."""
        self._work_out()
        return self._takes[count]

    def clears(self, count: int) -> float:
        """The least nanoseconds in which `count` items are done, in as many batches as that takes."""
        self._work_out()
        most = len(self._clears) - 1
        if count <= most:
            return self._clears[count]
        whole, rest = divmod(count - 1, most)  # of at least one item is the rest, so that nothing is free
        return whole * self._clears[most] + self._clears[rest + 1]

    def pace(self) -> float:
        """Nanoseconds an item takes where batches are as large as they may be."""
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
        best = 0  # the quickest of those that are larger and were seen: nothing is promised by a line between two
        for count in range(largest, 0, -1):
            if count in self.sizes and (not best or raw[count] < raw[best]):
                best = count
            filled = best if best and raw[best] < raw[count] else count
            self._takes[count], self._padded[count] = raw[filled], filled
        self._clears = [0.0] * (largest + 1)
        for count in range(1, largest + 1):
            self._clears[count] = min(self._takes[size] + self._clears[count - size] for size in range(1, count + 1))

    def _read_off(self, largest: int) -> list[float]:
        """What a batch of each size takes as it is, 0 to `largest`."""
        for of in self.sizes.values():
            of.used = of.mean
        known = self.known()
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
    """`objective`: the latency that one accepted request in a hundred may exceed, 0 for none. `timeout`: after which a
    request is given up. `queue`: so many wait at most. `batch`: items of one batch at most. `defer`: who is foreseen
    to be late waits in the second lane instead of being refused. `body`: bytes of one request at most.
    """

    objective: int = 0
    timeout: int = 30 * SECOND
    queue: int = 10_000
    batch: int = 64
    defer: bool = False
    body: int = 16 << 20


__all__ = ["MOST", "Curve", "Limits"]
