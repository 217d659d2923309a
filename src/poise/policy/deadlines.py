"""Deadlines: which can still be met, and the latest start for each.

A unit that could be on time is never given up for one that cannot. Both answers consider all units with a deadline,
waiting and running, as if there were no others.

*Which are met?* In the order of their deadlines (Jackson, 1955), each starts as soon as its devices are free. When one
would be late, give up the unit with the most device time for its worth, among it and all before it: the rule of Moore
and Hodgson (1968), which on one machine meets the maximum number of deadlines. A unit that is late even if it starts
now is given up at once. Units that were given up count as ordinary work.

*When do they start?* As late as is safe: from the last deadline back to the first, each ends at its deadline, or when
later units need its devices. A unit that runs as estimated and starts by then is on time, so until then its devices go
to the most valuable work.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from poise.model.deadlines import can_meet

GIVEN_UP = 32
"""Maximum number of units given up in one round; the schedule is computed again after each."""


class Owed(NamedTuple):
    """A unit with a deadline. It runs for `left` nanoseconds more on `width` devices, and must end by the instant
    `due`. `worth` is its weight; `margin` is how long before its latest start it should start, since estimates err.
    """

    unit: str
    due: int
    left: int
    width: int = 1
    worth: float = 1.0
    margin: int = 0


def met(owed: Iterable[Owed], devices: int, now: int, taken: Iterable[tuple[int, int]] = ()) -> list[Owed]:
    """Return the units that can be on time, by deadline; `taken` lists (instant, devices) unavailable until then."""
    could = sorted((one for one in owed if can_meet(one.due, now, one.left) and one.width <= devices), key=_by_due)
    taken = list(taken)
    for _ in range(GIVEN_UP):
        late = _first_late(could, devices, now, taken)
        if late < 0:
            return could
        could.remove(max(could[: late + 1], key=_price))
    late = _first_late(could, devices, now, taken)
    return could if late < 0 else could[:late]


def latest_starts(kept: Iterable[Owed], devices: int) -> dict[str, int]:
    """Return the instant by which each must start, including its margin; before now if it is late already."""
    free: list[tuple[int, int]] = []  # (instant until which devices are free, devices), ascending; the rest always are
    always = devices
    starts: dict[str, int] = {}
    for one in sorted(kept, key=_by_due, reverse=True):
        needed, until = one.width - min(always, one.width), one.due
        always -= one.width - needed
        while needed > 0 and free:
            instant, count = free.pop()
            until = min(until, instant)
            if count > needed:
                free.append((instant, count - needed))
            needed -= min(count, needed)
        start = until - one.left - one.margin
        starts[one.unit] = start
        insort(free, (start, one.width))
    return starts


def _first_late(ordered: Sequence[Owed], devices: int, now: int, taken: Iterable[tuple[int, int]]) -> int:
    """Return the position of the first unit that is late if each starts as soon as it has devices; -1 if none is."""
    free = sorted((-max(now, until), count) for until, count in taken if count > 0)  # the first to become free is last
    open_now = devices - sum(count for _, count in free)
    if open_now > 0:
        insort(free, (-now, open_now))
    for place, one in enumerate(ordered):
        needed, start = one.width, now
        while needed > 0 and free:
            instant, count = free.pop()
            start = max(start, -instant)
            if count > needed:
                free.append((instant, count - needed))
            needed -= min(count, needed)
        if needed > 0 or start + one.left > one.due:
            return place
        insort(free, (-(start + one.left), one.width))
    return -1


def _by_due(one: Owed) -> tuple[int, int, str]:
    return one.due, one.left, one.unit


def _price(one: Owed) -> tuple[float, str]:
    """Return device time over worth."""
    return one.left * one.width / one.worth, one.unit
