"""Deadlines: which can still be met, and when each of these has to start at the latest.

Work that could be on time is never given up for work that cannot. So two questions are asked of all that has a
deadline, waiting and running, as if nothing else were there.

*Which are met?* In the order of their deadlines (Jackson, 1955), each starts as soon as its devices are free. When one
would be late, the one that takes most device time for what it is worth is given up, of it and all before it: the rule
of Moore and Hodgson (1968), which on one machine meets the most deadlines there are. Work that is late even if it
starts now is given up at once. What was given up is ordinary work from then on.

*When do they start?* As late as is safe: from the last deadline back to the first, each ends at its deadline, or when
its devices are needed by what starts later. Work that runs as foreseen and starts by then is on time, so until then its
devices belong to whatever is worth most.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from poise.model.deadlines import can_meet

GIVEN_UP = 32
"""Units given up in one round at most; the schedule is worked out anew after each."""


class Owed(NamedTuple):
    """A unit with a deadline. It runs for `left` nanoseconds more on `width` devices, and has to end by the instant
    `due`; `worth` is its weight, and `margin` the time by which it is to start before it has to, since estimates err.
    """

    unit: str
    due: int
    left: int
    width: int = 1
    worth: float = 1.0
    margin: int = 0


def met(owed: Iterable[Owed], devices: int, now: int, taken: Iterable[tuple[int, int]] = ()) -> list[Owed]:
    """Those that are kept to be on time, by deadline; `taken` says until when how many devices are not to be had."""
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
    """The instant by which each has to start, with its margin; before now where it is late to begin with."""
    free: list[tuple[int, int]] = []  # until when how many devices are free, in ascending order; the rest always are
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
    """The place of the first that is late when each starts as soon as there are devices for it; -1 if none is."""
    free = sorted((-max(now, until), count) for until, count in taken if count > 0)  # the first to be free is the last
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
    """Device time for what it is worth."""
    return one.left * one.width / one.worth, one.unit
