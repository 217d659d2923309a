"""The orders of what is looped over: each survives encoding, so that a policy that loops over its view decides the same
after a restart and in a replay. Nodes and queues are ordered by name, jobs as submitted, what waits in a queue by rank.
"""

import re
from operator import attrgetter
from typing import Any

from poise.kernel.ledger.units import UnitState

NUMBERS = re.compile(r"([0-9]+)")


def rank(unit: UnitState) -> tuple[int, int]:
    """Order within a queue: by arrival, or a graph's longest path first, so that the head of a long queue shows it."""
    return (0 if unit.queue.endswith("/") else -unit.tail, unit.ordinal)


def amounts_in(name: str) -> list[int | str]:
    """A name to sort by, in which numbers count as such: an order by text would change with the unit of memory.

    >>> sorted(["10.2", "9.2", "a"], key=amounts_in)
    ['9.2', '10.2', 'a']
    """
    return [int(part) if at % 2 else part for at, part in enumerate(NUMBERS.split(name))]


def by_amounts(named: tuple[str, Any]) -> list[int | str]:
    return amounts_in(named[0])


ordinal = attrgetter("ordinal")


def ordinal_and_index(of: tuple[UnitState, int]) -> tuple[int, int]:
    return of[0].ordinal, of[1]
