"""Places of reservations: free in all windows if possible, packed, and never taken twice."""

import numpy as np

from poise.model.decisions import Spot
from poise.model.reservations import Reservation
from poise.policy.reserving import Chosen, NoRoom, Site, Taken, choose

DAY = 86_400
BEGINS = np.arange(3) * DAY


def sites(*names: str, devices: int = 4) -> dict[str, Site]:
    every = tuple(range(devices))
    return {name: Site(name, every, every) for name in names}


def wanted(*, count: int = 0, devices: int = 0, length: int = 3600) -> Reservation:
    return Reservation(id="r1", name="a", first=0, length=length, tenant="t", count=count, devices=devices)


def test_nodes_with_the_least_reserved_time_come_first() -> None:
    taken = Taken()
    taken.take([Spot("n1")], BEGINS + 7200, 3600)
    taken.take([Spot("n2")], BEGINS[:1] + 7200, 3600)
    assert choose(wanted(count=2), BEGINS, sites("n1", "n2", "n3"), taken) == Chosen((Spot("n2"), Spot("n3")), {})


def test_a_window_whose_usual_node_is_taken_gets_another_one() -> None:
    taken = Taken()
    taken.take([Spot("n1")], BEGINS[1:2], 3600)
    taken.take([Spot("n2")], BEGINS[2:], 3600)
    found = choose(wanted(count=1), BEGINS, sites("n1", "n2"), taken)
    assert found == Chosen((Spot("n1"),), {DAY: (Spot("n2"),)})


def test_the_first_window_without_room_is_named() -> None:
    taken = Taken()
    taken.take([Spot("n1")], BEGINS[1:], 3600)
    assert choose(wanted(count=2), BEGINS, sites("n1", "n2"), taken) == NoRoom(DAY, 1)


def test_windows_that_touch_do_not_clash() -> None:
    taken = Taken()
    taken.take([Spot("n1")], BEGINS, 3600)
    touching = choose(wanted(count=1), BEGINS + 3600, sites("n1"), taken)
    assert touching == Chosen((Spot("n1"),), {})
    assert isinstance(choose(wanted(count=1), BEGINS + 3599, sites("n1"), taken), NoRoom)


def test_devices_are_taken_on_one_node_if_one_has_enough_and_else_on_few() -> None:
    taken = Taken()
    taken.take([Spot("n1", (0, 1))], BEGINS, 3600)
    both = sites("n1", "n2")
    assert choose(wanted(devices=2), BEGINS, both, taken) == Chosen((Spot("n1", (2, 3)),), {})
    assert choose(wanted(devices=4), BEGINS, both, taken) == Chosen((Spot("n2", (0, 1, 2, 3)),), {})
    assert choose(wanted(devices=5), BEGINS, both, taken) == Chosen((Spot("n1", (2,)), Spot("n2", (0, 1, 2, 3))), {})
    assert choose(wanted(devices=7), BEGINS, both, taken) == NoRoom(0, 6)


def test_a_node_with_a_reserved_device_is_not_taken_whole_and_a_node_that_ends_only_before() -> None:
    taken = Taken()
    taken.take([Spot("n1", (3,))], BEGINS, 3600)
    assert choose(wanted(count=1), BEGINS, sites("n1"), taken) == NoRoom(0, 0)
    ends = {"n2": Site("n2", until=2 * DAY)}
    assert choose(wanted(count=1), BEGINS, ends, taken) == NoRoom(2 * DAY, 0)
