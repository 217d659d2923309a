"""Which work is worth most together, where not all of it has room: a knapsack of devices.

In the order of what each is worth for a device (Dantzig, 1957) the best are taken as long as they fit. That leaves out
what is wide when something narrow, worth more for each device, stands in its way, and then most of the devices may be
idle. So what was left out is tried again, the most worth first: it takes the place of the least that has to go for it,
if it is worth more than all of that together.
"""

from collections.abc import Sequence
from typing import NamedTuple

TRIED = 16
"""Units that were left out and are tried again."""


class Item(NamedTuple):
    """Work on so many devices (`width`), and what it is `worth` to run it now."""

    name: str
    worth: float
    width: int


def choose(items: Sequence[Item], devices: int) -> set[str]:
    """The names of those that are worth most together on so many devices."""
    ranked = sorted(items, key=_density, reverse=True)
    chosen: list[Item] = []
    left_out: list[Item] = []
    room = devices
    for item in ranked:
        if item.width <= room:
            chosen.append(item)
            room -= item.width
        elif item.width <= devices:
            left_out.append(item)
    for item in sorted(left_out, key=_worth, reverse=True)[:TRIED]:
        needed, price, going = item.width - room, 0.0, list[Item]()
        for other in reversed(chosen):  # the least worth for a device first
            if needed <= 0 or price >= item.worth:
                break
            going.append(other)
            needed, price = needed - other.width, price + other.worth
        going = _spared(going, needed)
        if needed > 0 or sum(other.worth for other in going) >= item.worth:
            continue
        gone = {other.name for other in going}
        chosen = sorted([*(other for other in chosen if other.name not in gone), item], key=_density, reverse=True)
        room = devices - sum(other.width for other in chosen)
    chosen += _filling(left_out, {item.name for item in chosen}, room)
    return {item.name for item in chosen}


def _spared(going: list[Item], needed: int) -> list[Item]:
    """Without those that need not go after all, the most worth first."""
    kept = list(going)
    for item in sorted(going, key=_worth, reverse=True):
        if needed + item.width <= 0:
            needed += item.width
            kept.remove(item)
    return kept


def _filling(left_out: Sequence[Item], chosen: set[str], room: int) -> list[Item]:
    found = []
    for item in left_out:
        if item.name not in chosen and item.width <= room:
            found.append(item)
            room -= item.width
    return found


def _density(item: Item) -> float:
    return item.worth / item.width


def _worth(item: Item) -> float:
    return item.worth
