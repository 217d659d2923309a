"""Which work is worth most together, worked out by hand."""

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from poise.policy import choose as knapsack


class Item(NamedTuple):
    """Work on so many devices (`width`), and what it is `worth` to run it now."""

    name: str
    worth: float
    width: int


def choose(items: list[Item], devices: int) -> set[str]:
    """The names of those that are chosen."""
    worths, widths = np.array([item.worth for item in items]), np.array([item.width for item in items])
    chosen = knapsack.choose(worths, widths, devices)
    return {items[number].name for number in chosen}


def test_all_of_it_where_there_is_room() -> None:
    assert choose([Item("a", 1.0, 2), Item("b", 3.0, 2)], 4) == {"a", "b"}


def test_what_is_worth_most_for_a_device() -> None:
    """Worth 3, 2 and 1 for a device: b and c fill two of three, and a finds one more."""
    assert choose([Item("a", 1.0, 1), Item("b", 3.0, 1), Item("c", 4.0, 2)], 3) == {"b", "c"}


def test_a_wide_gang_is_not_left_out_for_one_narrow_unit() -> None:
    """The narrow one is worth more per device; the gang is worth more than it, and 63 devices would be idle."""
    assert choose([Item("narrow", 1.0, 1), Item("gang", 10.0, 64)], 64) == {"gang"}


def test_a_gang_that_is_worth_less_than_all_that_would_go_waits() -> None:
    many = [Item(f"n{number}", 1.0, 1) for number in range(8)]
    assert choose([*many, Item("gang", 7.0, 8)], 8) == {one.name for one in many}


def test_only_as_many_go_as_have_to() -> None:
    """The gang needs two of four devices: the two that are worth least go."""
    singles = [Item("a", 4.0, 1), Item("b", 3.0, 1), Item("c", 2.0, 1), Item("d", 1.0, 1)]
    assert choose([*singles, Item("gang", 3.5, 2)], 4) == {"a", "b", "gang"}


@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 8)), min_size=1, max_size=10), st.integers(1, 12))
def test_it_fits_and_is_worth_half_of_the_best_at_least(drawn: list[tuple[float, int]], devices: int) -> None:
    """The better of the greedy choice and the best single item is a half of the optimum (Dantzig's bound)."""
    items = [Item(f"i{number}", *of) for number, of in enumerate(drawn)]
    chosen = choose(items, devices)
    assert sum(item.width for item in items if item.name in chosen) <= devices
    best = 0.0
    for some in range(1 << len(items)):
        of = [item for number, item in enumerate(items) if some >> number & 1]
        if sum(item.width for item in of) <= devices:
            best = max(best, sum(item.worth for item in of))
    assert 2 * sum(item.worth for item in items if item.name in chosen) >= best - 1e-9
