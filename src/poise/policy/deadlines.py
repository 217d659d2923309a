"""Deadlines: which can still be met, and the latest start for each.

A unit that could be on time is never given up for one that cannot. Both answers consider all units with a deadline,
waiting and running, as if there were no others.

*Which are met?* In the order of their deadlines (Jackson, 1955), each starts as soon as its devices are free. When one
would be late, give up the unit with the most device time for its worth, among it and all before it: the rule of Moore
and Hodgson (1968), which on one machine meets the maximum number of deadlines. A unit that is late even if it starts
now is given up at once. Units that were given up count as ordinary work.

*When do they start?* As late as is safe: from the last deadline back to the first, each ends at its deadline, or when
later units need its devices. A unit that runs as estimated and starts by then is on time, so until then its devices go
to the most valuable work. Units that run keep their devices in this schedule, and others follow them where they can.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from poise.model.deadlines import can_meet

ALWAYS = 1 << 62
"""An instant after all others."""

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


def latest_starts(kept: Iterable[Owed], devices: int, now: int = 0, running: Collection[str] = ()) -> dict[str, int]:
    """Return the instant by which each must start, including its margin; before now if it is late already.

    Units that are `running` keep their devices until they end, including their margin. The others wait for these
    devices if they can start early enough then.
    """
    ordered = sorted(kept, key=_by_due, reverse=True)
    on = [one for one in ordered if one.unit in running]
    lanes = sorted(_Lane(ALWAYS, now + one.left + one.margin, one.width, one.unit) for one in on)
    if (rest := devices - sum(one.width for one in on)) > 0:
        insort(lanes, _Lane(ALWAYS, -ALWAYS, rest, ""))
    starts = {one.unit: _reserve(lanes, one) for one in ordered if one.unit not in running}
    ends: dict[str, int] = {}
    for lane in lanes:
        ends[lane.unit] = min(lane.until, ends.get(lane.unit, ALWAYS))
    return starts | {one.unit: min(one.due, ends[one.unit]) - one.left - one.margin for one in on}


class _Lane(NamedTuple):
    """Devices that are free from the instant `since`, when the running `unit` ends, `until` another unit needs them."""

    until: int
    since: int
    width: int
    unit: str


def _reserve(lanes: list[_Lane], one: Owed) -> int:
    """Return the latest start of a unit, and reserve its devices. If too few become free in time, some running unit
    would have to be preempted for it; then it gets only those that no unit runs on.
    """
    start = one.due - one.left - one.margin
    while (chosen := _chosen(lanes, one, start)) is not None:
        at, places = chosen
        if all(lanes[place].since <= at for place in places):
            break
        start = at
    else:
        at, places = _chosen(lanes, one, ALWAYS) or (start, [])
        places = [place for place in places if not lanes[place].unit]
    needed, reserved = one.width, list[_Lane]()
    for place in places:
        lane = lanes.pop(place)
        reserved.append(lane._replace(until=at, width=min(lane.width, needed)))
        if lane.width > needed:
            reserved.append(lane._replace(width=lane.width - needed))
        needed -= lane.width
    for lane in reserved:
        insort(lanes, lane)
    return at


def _chosen(lanes: Sequence[_Lane], one: Owed, start: int) -> tuple[int, list[int]] | None:
    """Return the latest start on devices that are free by `start`, and the places of their lanes, the last first; None
    if these are too few.
    """
    length, needed, places = one.left + one.margin, one.width, list[int]()
    latest = one.due - length
    for place in range(len(lanes) - 1, -1, -1):
        until, since, width, _ = lanes[place]
        if since <= start:
            places.append(place)
            latest = min(latest, until - length)
            needed -= width
            if needed <= 0:
                return latest, places
    return None


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
