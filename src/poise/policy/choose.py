"""Which work is worth most together, where not all of it has room: a knapsack of devices.

In the order of what each is worth for a device (Dantzig, 1957) the best are taken as long as they fit. That leaves out
what is wide when something narrow, worth more for each device, stands in its way, and then most of the devices may be
idle. So what was left out is tried again, the most worth first: it takes the place of the least that has to go for it,
if it is worth more than all of that together.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

TRIED = 16
"""Units that were left out and are tried again."""


def choose(worths: Sequence[float], widths: Sequence[int], devices: int) -> set[int]:
    """The numbers of those that are worth most together on so many devices, of which each takes its width."""
    wide = np.array(widths)
    densities = np.array(worths) / wide
    order = np.argsort(-densities, kind="stable")
    fit = int(np.searchsorted(wide[order].cumsum(), devices, "right"))  # so many have room, one after the other
    ranked = order.tolist()
    chosen: list[int] = ranked[:fit]
    room = devices - sum([widths[number] for number in chosen])
    left_out: list[int] = []
    for number in ranked[fit:]:
        if widths[number] <= room:
            chosen.append(number)
            room -= widths[number]
        elif widths[number] <= devices:
            left_out.append(number)
    ranks = (-densities[chosen]).tolist()  # of those that were chosen, in their order
    for number in sorted(left_out, key=worths.__getitem__, reverse=True)[:TRIED]:
        worth, needed, price, going = worths[number], widths[number] - room, 0.0, list[int]()
        for other in reversed(chosen):  # the least worth for a device first
            if needed <= 0 or price >= worth:
                break
            going.append(other)
            needed, price = needed - widths[other], price + worths[other]
        going = _spared(going, needed, worths, widths)
        if needed > 0 or sum([worths[other] for other in going]) >= worth:
            continue
        for other in going:
            place = chosen.index(other)
            room += widths[other]
            del chosen[place], ranks[place]
        rank = float(-densities[number])
        place = bisect_right(ranks, rank)
        chosen.insert(place, number)
        ranks.insert(place, rank)
        room -= widths[number]
    return {*chosen, *_filling(left_out, widths, set(chosen), room)}


def _spared(going: list[int], needed: int, worths: Sequence[float], widths: Sequence[int]) -> list[int]:
    """Without those that need not go after all, the most worth first."""
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
