"""Orders of loops. Each order survives encoding, so that a policy decides the same after a restart and in a replay:
nodes and queues by name, jobs by submission, units in a queue by rank.
"""

import re
from functools import lru_cache
from operator import attrgetter
from typing import Any

from poise.kernel.ledger.units import UnitState

NUMBERS = re.compile(r"([0-9]+)")


def rank(unit: UnitState) -> tuple[int, int]:
    """Return the sort key in a queue: by arrival, or the longest path of a graph first, so that it is in the head of a
    long queue.
    """
    return (0 if unit.queue.endswith("/") else -unit.tail, unit.ordinal)


@lru_cache(maxsize=2**14)
def amounts_in(name: str) -> list[int | str]:
    """Sort key of a name that compares numbers as numbers: text order would depend on the unit of memory.

    >>> sorted(["10.2", "9.2", "a"], key=amounts_in)
    ['9.2', '10.2', 'a']
    """
    return [int(part) if at % 2 else part for at, part in enumerate(NUMBERS.split(name))]


def by_amounts(named: tuple[str, Any]) -> list[int | str]:
    return amounts_in(named[0])


ordinal = attrgetter("ordinal")


def ordinal_and_index(of: tuple[UnitState, int]) -> tuple[int, int]:
    return of[0].ordinal, of[1]
