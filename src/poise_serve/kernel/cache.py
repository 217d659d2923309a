"""Answers that are kept for a while: the latest used stay, within so many bytes, each for so long.

Whoever an answer is kept for is its *owner*. Where room is needed, it is taken from the owner that holds the most, what
of its own was not used for longest first. So nobody loses anything to others who holds no more than its fair share: all
bytes divided by how many owners there are.
"""

import heapq
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

OVERHEAD = 200
"""Bytes that an entry takes beside what it holds, about."""

SPARE = 64
"""Entries that the heap of owners may have beyond twice their number, before it is made anew."""


class _Kept(NamedTuple):
    value: object
    size: int
    until: int
    owner: str


class Cache(Generic[T]):
    """Values by key, with instants in nanoseconds."""

    def __init__(self, most: int, ttl: int) -> None:
        """`most`: bytes of all values together, `ttl`: for how long one is good."""
        self._most = most
        self.ttl = ttl
        self._kept: dict[bytes, _Kept] = {}
        self._used: dict[str, OrderedDict[bytes, None]] = {}  # of each owner, the latest used last
        self._held: dict[str, int] = {}
        self._largest: list[tuple[int, str]] = []  # a heap of (minus what it held once, owner): never too little
        self.size = 0
        self.evicted = 0
        """Values that made room for others, since it was made."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now: int) -> T | None:
        """What is kept there and still good."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until <= now:
            self._drop(key)
            return None
        self._used[kept.owner].move_to_end(key)
        return kept.value  # type: ignore[return-value]  # only `put` makes them

    def put(self, key: bytes, value: T, size: int, made: int, owner: str = "") -> None:
        """Keep what is good from when it was `made`; one that is too large alone is not kept."""
        if key in self._kept:
            self._drop(key)
        size += OVERHEAD
        if size > self._most:
            return
        self._kept[key] = _Kept(value, size, made + self.ttl, owner)
        self._used.setdefault(owner, OrderedDict())[key] = None
        self._held[owner] = held = self._held.get(owner, 0) + size
        self.size += size
        heapq.heappush(self._largest, (-held, owner))
        if len(self._largest) > 2 * len(self._held) + SPARE:
            self._largest = [(-held, owner) for owner, held in self._held.items()]
            heapq.heapify(self._largest)
        while self.size > self._most:
            self._drop(next(iter(self._used[self._who_holds_most()])))
            self.evicted += 1

    def clear(self) -> None:
        """Keep nothing of what there is."""
        for held in (self._kept, self._used, self._held, self._largest):
            held.clear()
        self.size = 0

    def _who_holds_most(self) -> str:
        largest = self._largest
        while True:
            said, owner = largest[0]
            held = self._held.get(owner, 0)
            if held == -said:
                return owner
            if held:
                heapq.heapreplace(largest, (-held, owner))
            else:
                heapq.heappop(largest)

    def _drop(self, key: bytes) -> None:
        kept = self._kept.pop(key)
        self.size -= kept.size
        used = self._used[kept.owner]
        del used[key]
        if used:
            self._held[kept.owner] -= kept.size
        else:
            del self._used[kept.owner], self._held[kept.owner]


__all__ = ["Cache"]
