"""Answers that are kept for a while: the latest used stay, within so many bytes, each for so long."""

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

OVERHEAD = 200
"""Bytes that an entry takes beside what it holds, about."""


class _Kept(NamedTuple):
    value: object
    size: int
    until: int


class Cache(Generic[T]):
    """Values by key, with instants in nanoseconds."""

    def __init__(self, most: int, ttl: int) -> None:
        """`most`: bytes of all values together, `ttl`: for how long one is good."""
        self._most = most
        self._ttl = ttl
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self.size = 0

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
        self._kept.move_to_end(key)
        return kept.value  # type: ignore[return-value]  # only `put` makes them

    def put(self, key: bytes, value: T, size: int, now: int) -> None:
        """Keep it, in the place of those that were not used for longest; one that is too large alone is not kept."""
        if key in self._kept:
            self._drop(key)
        size += OVERHEAD
        if size > self._most:
            return
        self._kept[key] = _Kept(value, size, now + self._ttl)
        self.size += size
        while self.size > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self.size -= self._kept.pop(key).size


__all__ = ["Cache"]
