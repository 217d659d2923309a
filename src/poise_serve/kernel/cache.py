"""LRU cache of answers with a size limit, a time to live, and fair eviction between owners.

The *owner* of an entry is its tenant. Eviction takes the least recently used entry of the owner with the most bytes. So
an owner within its fair share (all bytes divided by the number of owners) loses no entries to others.
"""

import heapq
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

OVERHEAD = 200
"""Approximate overhead of an entry in bytes."""

SPARE = 64
"""The heap of owners is rebuilt when it exceeds twice their number by this many entries."""


class _Kept(NamedTuple):
    value: object
    size: int
    until: int
    owner: str


class Cache(Generic[T]):
    """Values by key, with instants in nanoseconds."""

    def __init__(self, most: int, ttl: int) -> None:
        """`most`: maximum total bytes. `ttl`: time to live of an entry."""
        self._most = most
        self.ttl = ttl
        self._kept: dict[bytes, _Kept] = {}
        self._used: dict[str, OrderedDict[bytes, None]] = {}  # by owner, most recently used last
        self._held: dict[str, int] = {}
        self._largest: list[tuple[int, str]] = []  # a heap of (minus bytes, owner), possibly outdated but never too low
        self.size = 0
        self.evicted = 0
        """Number of evictions."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now: int) -> T | None:
        """Return the entry, unless it is missing or expired."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until <= now:
            self._drop(key)
            return None
        self._used[kept.owner].move_to_end(key)
        return kept.value  # type: ignore[return-value]  # only `put` makes them

    def put(self, key: bytes, value: T, size: int, made: int, owner: str = "") -> None:
        """Store a value, valid from `made`. A value larger than the whole cache is not stored."""
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
        """Remove all entries."""
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
