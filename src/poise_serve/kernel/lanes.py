"""Those who wait for one model of a front, in two lanes: whose turn it is, and who is moved."""

from collections import deque
from typing import Generic, Protocol, TypeVar

from poise_serve.policy.route import Lane, next_lane


class Waits(Protocol):
    """Whoever waits; `turn` grows with every one who comes."""

    @property
    def turn(self) -> int: ...


T = TypeVar("T", bound=Waits)


class Line(Generic[T]):
    """In each lane they go in the order in which they came into it."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, deque[T]] = {"first": deque(), "deferred": deque()}
        self._went = 0

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def oldest(self) -> int:
        """The turn of the one who has waited longest."""
        return min(lane[0].turn for lane in self.lanes.values() if lane)

    def next(self) -> Lane:
        """Whose head goes next, of a line that is not empty."""
        lane = next_lane(self._went, *map(len, self.lanes.values()))
        if lane is None:
            raise AssertionError("nobody waits")
        return lane

    def went(self, lane: Lane) -> None:
        """The head of a lane waits no longer. Turns begin anew when nobody does."""
        self.lanes[lane].popleft()
        self._went = self._went + 1 if self else 0

    def defer(self) -> None:
        """The head of the first lane goes to the end of the other."""
        self.lanes["deferred"].append(self.lanes["first"].popleft())

    def remove(self, waiter: T) -> None:
        for lane in self.lanes.values():
            if waiter in lane:
                lane.remove(waiter)


__all__ = ["Line", "Waits"]
