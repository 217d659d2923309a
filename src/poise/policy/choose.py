"""Choice of the most valuable combination of work for too few devices: a knapsack.

Units are taken by worth per device (Dantzig, 1957) as long as they fit. That leaves out a wide unit when narrow ones,
worth more per device, take part of its room, and then most devices may be idle. So units that were left out are tried
again, the most valuable first: one replaces the least valuable units that make room for it, if it is worth more than
all of them together.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from poise.model.fleet import Floats, Ints

TRIED = 16
"""Maximum number of left-out units that are tried again."""


def choose(worth_of: Floats, wide: Ints, devices: int) -> set[int]:
    """Return the numbers of the units that are worth most together on these devices; each takes its width."""
    worths: list[float] = worth_of.tolist()
    widths: list[int] = wide.tolist()
    densities = worth_of / wide
    order = (-densities).argsort(kind="stable")
    total = wide[order].cumsum()
    fit = int(total.searchsorted(devices, "right"))  # the number of units that fit, in order
    chosen: list[int] = order[:fit].tolist()
    room = devices - (int(total[fit - 1]) if fit else 0)
    rest = order[fit:]
    rest = rest[wide[rest] <= devices]
    left_out: list[int] = rest.tolist()
    place = 0
    while room and len(fits := (wide[rest[place:]] <= room).nonzero()[0]):  # those that fit beside them, in order
        place += int(fits[0])
        chosen.append(number := left_out[place])
        room -= widths[number]
        rest = np.concatenate((rest[:place], rest[place + 1 :]))
        del left_out[place]
    ranks: list[float] | None = None  # of the chosen units, in their order
    for number in sorted(left_out, key=worths.__getitem__, reverse=True)[:TRIED]:
        worth, needed, price, going = worths[number], widths[number] - room, 0.0, list[int]()
        for other in reversed(chosen):  # the lowest worth per device first
            if needed <= 0 or price >= worth:
                break
            going.append(other)
            needed, price = needed - widths[other], price + worths[other]
        if needed > 0:
            continue
        if needed < 0:  # more comes free than is needed
            going = _spared(going, needed, worths, widths)
            price = sum([worths[other] for other in going])
        if price >= worth:
            continue
        if ranks is None:
            ranks = (-densities[chosen]).tolist()
        for other in going:
            place = chosen.index(other)
            room += widths[other]
            del chosen[place], ranks[place]
        rank = float(-densities[number])
        place = bisect_right(ranks, rank)
        chosen.insert(place, number)
        ranks.insert(place, rank)
        room -= widths[number]
    return {*chosen, *_filling(left_out, widths, set(chosen), room)} if room else {*chosen}


def _spared(going: list[int], needed: int, worths: Sequence[float], widths: Sequence[int]) -> list[int]:
    """Return the units that must go, without those whose room is not needed; spare the most valuable first."""
    kept = list(going)
    for number in sorted(going, key=worths.__getitem__, reverse=True):
        if needed + widths[number] <= 0:
            needed += widths[number]
            kept.remove(number)
    return kept


def _filling(left_out: Sequence[int], widths: Sequence[int], chosen: set[int], room: int) -> list[int]:
    found = []
    for number in left_out:
        if number not in chosen and widths[number] <= room:
            found.append(number)
            room -= widths[number]
    return found
