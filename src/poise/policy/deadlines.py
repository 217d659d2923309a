"""Deadlines: which can still be met, and the latest start for each.

A unit that could be on time is never given up for one that cannot. Both answers consider all units with a deadline,
waiting and running, as if there were no others.

*Which are met?* In the order of their deadlines (Jackson, 1955), each starts as soon as its devices are free. When one
would be late, give up the unit with the most device time for its worth, among it and all before it: the rule of Moore
and Hodgson (1968), which on one machine meets the maximum number of deadlines. A unit that is late even if it starts
now is given up at once. Units that were given up count as ordinary work.

Devices form *pools*, one for each model. A unit runs in one pool, and its run time may differ between pools. The first
question places each unit in the pool where it ends first, the second in the pool where it can start last.

*When do they start?* As late as is safe: from the last deadline back to the first, each ends at its deadline, or when
later units need its devices. A unit that runs as estimated and starts by then is on time, so until then its devices go
to the most valuable work. Units that run keep their devices in this schedule, and others follow them where they can.
"""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from poise.model.deadlines import can_meet

ALWAYS = 1 << 62
"""An instant after all others."""

GIVEN_UP = 32
"""Maximum number of units given up in one round; the schedule is computed again after each."""

ONE_POOL = (1.0,)
"""The factors of a unit if all devices are in one pool."""


class Owed(NamedTuple):
    """A unit with a deadline. It runs for `left` nanoseconds more on `width` devices, and must end by the instant
    `due`. `worth` is its weight; `margin` is how long before its latest start it should start, since estimates err.
    `factors` multiply both times in each pool; 0 where the unit cannot run.
    """

    unit: str
    due: int
    left: int
    width: int = 1
    worth: float = 1.0
    margin: int = 0
    factors: tuple[float, ...] = ONE_POOL


Taken = tuple[int, int, int]
"""The devices of a pool that are unavailable until an instant: the instant, their number, and the pool."""


def met(owed: Iterable[Owed], pools: Sequence[int], now: int, taken: Iterable[Taken] = ()) -> list[Owed]:
    """Return the units that can be on time, by deadline. `pools` has the number of devices in each pool."""
    could = sorted((one for one in owed if _could(one, pools, now)), key=_by_due)
    taken = list(taken)
    for _ in range(GIVEN_UP):
        late = _first_late(could, pools, now, taken)
        if late < 0:
            return could
        could.remove(max(could[: late + 1], key=_price))
    late = _first_late(could, pools, now, taken)
    return could if late < 0 else could[:late]


def latest_starts(
    kept: Iterable[Owed], pools: Sequence[int], now: int = 0, running: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the instant by which each must start, including its margin; before now if it is late already.

    Units that are `running`, each in its pool, keep their devices until they end, including their margin. The others
    wait for these devices if they can start early enough then.
    """
    ordered, running = sorted(kept, key=_by_due, reverse=True), running or {}
    lanes: list[list[_Lane]] = [[] for _ in pools]
    left = list(pools)
    on = [one for one in ordered if one.unit in running]
    for one in on:
        pool = running[one.unit]
        insort(lanes[pool], _Lane(ALWAYS, now + one.left + one.margin, one.width, one.unit))
        left[pool] -= one.width
    for pool, rest in enumerate(left):
        if rest > 0:
            insort(lanes[pool], _Lane(ALWAYS, -ALWAYS, rest, ""))
    starts = {one.unit: _reserve(lanes, one) for one in ordered if one.unit not in running}
    ends: dict[str, int] = {}
    for lane in chain.from_iterable(lanes):
        ends[lane.unit] = min(lane.until, ends.get(lane.unit, ALWAYS))
    return starts | {one.unit: min(one.due, ends[one.unit]) - one.left - one.margin for one in on}


class _Lane(NamedTuple):
    """Devices that are free from the instant `since`, when the running `unit` ends, `until` another unit needs them."""

    until: int
    since: int
    width: int
    unit: str


class _Slot(NamedTuple):
    """A place for a unit: the latest start there, the pool, and the places of its lanes, the last first."""

    at: int
    pool: int
    places: list[int]


def _reserve(lanes: Sequence[list[_Lane]], one: Owed) -> int:
    """Return the latest start of a unit, and reserve its devices in the pool where that is last. If too few become free
    in time, some running unit would have to be preempted for it; then it gets only those that no unit runs on.
    """
    pools = range(len(lanes))
    in_time = [slot for pool in pools if (slot := _in_time(lanes[pool], one, pool)) is not None]
    slots = in_time or [slot for pool in pools if (slot := _chosen(lanes[pool], one, ALWAYS, pool)) is not None]
    if not slots:
        return one.due - one.left - one.margin
    at, pool, places = max(slots)
    if not in_time:
        places = [place for place in places if not lanes[pool][place].unit]
    needed, reserved, here = one.width, list[_Lane](), lanes[pool]
    for place in places:
        lane = here.pop(place)
        reserved.append(lane._replace(until=at, width=min(lane.width, needed)))
        if lane.width > needed:
            reserved.append(lane._replace(width=lane.width - needed))
        needed -= lane.width
    for lane in reserved:
        insort(here, lane)
    return at


def _in_time(lanes: Sequence[_Lane], one: Owed, pool: int) -> _Slot | None:
    """Return the slot in a pool whose devices are all free at its start."""
    start = one.due - _length(one, pool)
    while (slot := _chosen(lanes, one, start, pool)) is not None:
        if all(lanes[place].since <= slot.at for place in slot.places):
            return slot
        start = slot.at
    return None


def _chosen(lanes: Sequence[_Lane], one: Owed, start: int, pool: int) -> _Slot | None:
    """Return the slot with the latest start on devices that are free by `start`; None if these are too few."""
    if not one.factors[pool]:
        return None
    length, needed, places = _length(one, pool), one.width, list[int]()
    latest = one.due - length
    for place in range(len(lanes) - 1, -1, -1):
        until, since, width, _ = lanes[place]
        if since <= start:
            places.append(place)
            latest = min(latest, until - length)
            needed -= width
            if needed <= 0:
                return _Slot(latest, pool, places)
    return None


def _length(one: Owed, pool: int) -> int:
    return int((one.left + one.margin) * one.factors[pool])


def _could(one: Owed, pools: Sequence[int], now: int) -> bool:
    """Return whether the unit would be on time if it started now."""
    return any(
        factor and one.width <= devices and can_meet(one.due, now, int(one.left * factor))
        for factor, devices in zip(one.factors, pools, strict=True)
    )


def _first_late(ordered: Sequence[Owed], pools: Sequence[int], now: int, taken: Sequence[Taken]) -> int:
    """Return the position of the first unit that is late if each starts as soon as it has devices; -1 if none is."""
    free: list[list[tuple[int, int]]] = []  # by pool, the first to become free is last
    for pool, devices in enumerate(pools):
        here = sorted((-max(now, until), count) for until, count, of in taken if of == pool and count > 0)
        if (open_now := devices - sum(count for _, count in here)) > 0:
            insort(here, (-now, open_now))
        free.append(here)
    for place, one in enumerate(ordered):
        end, pool = min((_end(free[pool], one, factor), pool) for pool, factor in enumerate(one.factors) if factor)
        if end > one.due:
            return place
        needed, here = one.width, free[pool]
        while needed > 0:
            instant, count = here.pop()
            if count > needed:
                here.append((instant, count - needed))
            needed -= count
        insort(here, (-end, one.width))
    return -1


def _end(free: Sequence[tuple[int, int]], one: Owed, factor: float) -> int:
    """Return when a unit ends in a pool; after all other instants if it is too small."""
    needed = one.width
    for instant, count in reversed(free):
        needed -= count
        if needed <= 0:
            return int(one.left * factor) - instant
    return ALWAYS


def _by_due(one: Owed) -> tuple[int, int, str]:
    return one.due, one.left, one.unit


def _price(one: Owed) -> tuple[float, str]:
    """Return device time over worth."""
    return one.left * one.width / one.worth, one.unit
