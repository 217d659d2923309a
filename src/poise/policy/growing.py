"""Who gets the devices that are left: elastic units that were placed with their least, and those that run too small.

How much a further task is worth, and which tasks are worth having at all, is said by `elastic`; here it is asked of a
draft, which knows where there is room.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from poise.model.decisions import Spot, Why
from poise.model.fleet import Resident
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.policy.allowance import Allowance
from poise.policy.elastic import Bid, share_out, speeds_with, step
from poise.policy.place import Draft
from poise.policy.reclaim import ends, worth
from poise.policy.running import lost_work
from poise.units import MINUTE, SECOND

GROWS_BY = 1.5
"""An elastic unit is restarted in another size only for half as many tasks again: less would not pay. One that has
yielded comes back to all that it can use, even if that is one task more."""

HORIZON = 10 * MINUTE
"""What is won by sharing devices out anew is counted for so long: then something has come or gone."""


class Begun(NamedTuple):
    """An elastic unit that is placed with its least on these `spots`, and could use more."""

    candidate: Candidate
    shape: Shape
    variant: int
    spots: list[Spot]
    why: Why


def hand_out(begun: Sequence[Begun], draft: Draft, allowance: Allowance) -> None:
    """Give them what is left, a step at a time to the one that it brings most: beside the members that are placed, then
    where they run no slower, since a gang is as fast as its slowest member.
    """
    steps = [
        (*found, number, bid)
        for number, one in enumerate(begun)
        if (found := step(bid := _bid(one, draft), len(one.spots)))
    ]
    heapify(steps)
    while steps:
        _, to, number, bid = heappop(steps)
        one = begun[number]
        while len(one.spots) < to and allowance.room_of(one.candidate, one.shape) and _takes_one(one, draft):
            allowance.take(one.candidate, one.shape, 1)
        if len(one.spots) == to and (found := step(bid, to)):
            heappush(steps, (*found, number, bid))


def anew(draft: Draft, residents: Sequence[Resident], free: int) -> dict[str, int]:
    """The sizes of those of these units that are to be started anew, were all devices that they have and so many `free`
    ones shared out among them. Nothing unless what is won in `HORIZON` is more than what starting anew loses.
    """
    now, view = draft.view.now, draft.view
    bids, lasts = list[Bid](), list[int]()
    for one in residents:
        speeds, left = (
            speeds_with(view.speedups.get(one.unit), one.most),
            max(SECOND, ends(one, now, draft.speeds) - now),
        )
        value = worth(one.priority, one.weight) / (left * speeds[one.size])
        bids.append(Bid(value, speeds, max(1, one.least), one.shape.gpus))
        lasts.append(left)
    sizes = share_out(bids, free + sum(one.size * one.shape.gpus for one in residents))
    won, going = 0.0, dict[str, int]()
    for one, bid, left, to in zip(residents, bids, lasts, sizes, strict=True):
        if to and max(to, one.size) >= GROWS_BY * min(to, one.size):
            gained = (bid.speeds[to] - bid.speeds[one.size]) * min(HORIZON, left)
            won += bid.worth * (gained - bid.speeds[to] * lost_work(one, now))
            going[one.unit] = to
    return going if won > 0 and len(going) > 1 else {}


def _bid(one: Begun, draft: Draft) -> Bid:
    candidate, shape = one.candidate, one.shape
    speeds = speeds_with(draft.view.speedups.get(candidate.unit), candidate.tasks)
    run = draft.speeds.shortest(candidate, draft.able(shape).models) if shape.gpus else candidate.expected
    value = worth(candidate.priority, candidate.weight) / (max(1, run) * speeds[len(one.spots)])
    return Bid(value, speeds, len(one.spots), max(1, shape.gpus))


def _takes_one(one: Begun, draft: Draft) -> bool:
    """Whether there was room for one more."""
    candidate, shape = one.candidate, one.shape
    rows = list(dict.fromkeys(draft.fleet.rows[spot.node] for spot in one.spots))
    row = next((row for row in rows if draft.room_for(row, shape)), -1)
    if row < 0:
        found = draft.best(candidate, shape)
        slowest = max(draft.run_on(candidate, shape, row).mean for row in rows)
        if found is None or draft.run_on(candidate, shape, found[0]).mean > slowest:
            return False
        row = found[0]
    one.spots.append(draft.take(row, candidate, shape))
    return True
