"""Queue of the requests that wait for one model of a front, in two lanes, and the choice of the client that loses a
request when the queue is full.
"""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

from poise_serve.policy.route import Lane, next_lane


class Waits(Protocol):
    """A waiting request; `turn` increases with arrival."""

    @property
    def turn(self) -> int: ...


T = TypeVar("T", bound=Waits)


class Line(Generic[T]):
    """Two FIFO lanes."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, deque[T]] = {"first": deque(), "deferred": deque()}
        self._went = 0
        self.since = 0
        """Since when no upstream of the model is up; 0 if one is."""

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def __iter__(self) -> Iterator[T]:
        return chain(*self.lanes.values())

    def oldest(self) -> int:
        """Return the lowest turn at the head of a lane."""
        return min(lane[0].turn for lane in self.lanes.values() if lane)

    def next(self) -> Lane:
        """Return the lane to serve next; the queue must not be empty."""
        lane = next_lane(self._went, *map(len, self.lanes.values()))
        if lane is None:
            raise AssertionError("nobody waits")
        return lane

    def went(self, lane: Lane) -> None:
        """Remove the head of a lane. The turns of the lanes restart when the queue is empty."""
        self.lanes[lane].popleft()
        self._went = self._went + 1 if self else 0

    def defer(self) -> None:
        """Move the head of the first lane to the end of the deferred lane."""
        self.lanes["deferred"].append(self.lanes["first"].popleft())

    def remove(self, waiter: T) -> None:
        for lane in self.lanes.values():
            if waiter in lane:
                lane.remove(waiter)


def gives_way(waiting: "Counter[str]", newcomer: str) -> str:
    """Return the client whose newest request leaves a full queue for one of `newcomer`: the client with the most
    requests. Empty if none has at least two more than `newcomer`, whose request is refused then.
    """
    client, most = max(waiting.items(), key=lambda each: each[1], default=("", 0))
    return client if most > waiting[newcomer] + 1 else ""


__all__ = ["Line", "Waits", "gives_way"]
