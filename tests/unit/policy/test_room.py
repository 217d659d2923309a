"""The room of one node: which devices a task takes, and what is left."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.model.fleet import Fleet, Resident
from poise.model.resources import SHARED_CAP, WHOLE, Device, Link, Shape
from poise.policy.room import FREE_MEMORY, FREE_SHARE, Room, give_back, room_on
from poise.testing import World, node

GIB = 2**30
ANY = [True, False]


def room(*sizes: int, links: tuple[Link, ...] = (), share_cap: int = SHARED_CAP) -> Room:
    """A node of 8 CPUs with devices of these sizes in GiB, all of one model."""
    devices = [[index, 0, size * GIB, WHOLE, WHOLE - share_cap] for index, size in enumerate(sizes)]
    return Room(8000, 8 * GIB, 10**9, devices, links)


def taken(of: Room, *shapes: Shape) -> list[tuple[int, ...] | None]:
    """What each of these tasks gets, one after the other."""
    picks = []
    for shape in shapes:
        picked = of.pick(shape, ANY)
        if picked is not None:
            of.take(shape, picked)
        picks.append(picked)
    return picks


def test_the_smallest_device_that_fits_is_taken() -> None:
    small, large = Shape(gpus=1, gpu_memory=12 * GIB), Shape(gpus=1, gpu_memory=60 * GIB)
    assert taken(room(80, 16, 40), small, small, large, small) == [(1,), (2,), (0,), None]


def test_a_share_goes_to_the_fullest_device_that_has_room() -> None:
    third, half = Shape(cpu=0, gpus=1, share=300), Shape(cpu=0, gpus=1, share=500)
    assert taken(room(16, 16), third, third, third, half, half) == [(0,), (0,), (1,), (1,), None]


def test_a_device_is_shared_up_to_its_cap_in_compute_and_in_memory() -> None:
    assert taken(room(16), *[Shape(cpu=0, gpus=1, share=200)] * 5) == [(0,)] * 4 + [None]
    assert taken(room(16), *[Shape(cpu=0, gpus=1, share=200, gpu_memory=6 * GIB)] * 3) == [(0,)] * 2 + [None]


def test_the_cap_is_what_is_said_of_the_device() -> None:
    assert taken(room(16, share_cap=WHOLE), *[Shape(cpu=0, gpus=1, share=250)] * 5) == [(0,)] * 4 + [None]
    assert taken(room(16, share_cap=0), Shape(cpu=0, gpus=1, share=100), Shape(gpus=1)) == [None, (0,)]


def test_a_shared_device_is_not_given_whole() -> None:
    assert taken(room(16), Shape(gpus=1, share=100), Shape(gpus=1)) == [(0,), None]
    assert taken(room(16), Shape(gpus=1), Shape(gpus=1, share=100)) == [(0,), None]


def test_no_device_serves_one_task_twice() -> None:
    assert taken(room(16), Shape(gpus=2, share=100)) == [None]


def test_shares_of_two_devices_at_once_go_where_most_is_left() -> None:
    """Three pairs of three devices, and not the first two again, which would leave half of the third unused."""
    assert taken(room(16, 16, 16), *[Shape(gpus=2, share=400)] * 4) == [(0, 1), (0, 2), (1, 2), None]


@pytest.mark.parametrize("shape", [Shape(cpu=8001), Shape(memory=8 * GIB + 1), Shape(network=10**9 + 1), Shape(gpus=2)])
def test_what_is_short_in_anything_does_not_fit(shape: Shape) -> None:
    assert room(80).pick(shape, ANY) is None


def test_devices_that_cannot_do_it_are_passed_over() -> None:
    mixed = Room(8000, 0, 0, [[0, 0, GIB, WHOLE], [1, 1, GIB, WHOLE]])
    assert mixed.pick(Shape(gpus=1), [False, True, False]) == (1,)
    assert mixed.pick(Shape(gpus=2), [False, True, False]) is None


# --- links -----------------------------------------------------------------------------------------------------------

PAIRS = (Link(a=0, b=3, bandwidth=600), Link(a=1, b=2, bandwidth=900), Link(a=2, b=3, bandwidth=100))


def test_linked_devices_are_taken_together() -> None:
    assert taken(room(*[80] * 4, links=PAIRS), *[Shape(gpus=2)] * 2) == [(1, 2), (0, 3)]


def test_the_slowest_pair_counts_and_then_latency() -> None:
    ring = [Link(a=a, b=b, bandwidth=900) for a, b in ((0, 1), (1, 2), (0, 2), (2, 3))]
    assert room(*[80] * 4, links=tuple(ring)).pick(Shape(gpus=3), ANY) == (0, 1, 2)
    near = (Link(a=0, b=1, bandwidth=900, latency=9), Link(a=2, b=3, bandwidth=900, latency=5))
    assert room(*[80] * 4, links=near).pick(Shape(gpus=2), ANY) == (2, 3)


def test_more_devices_than_are_linked_are_taken_nevertheless() -> None:
    assert room(80, 80, 80, links=(Link(a=0, b=2, bandwidth=9),)).pick(Shape(gpus=3), ANY) == (0, 1, 2)


def test_a_node_with_links_gives_two_that_are_linked() -> None:
    offered = node("n1", cpu=8, gpus=4)
    world = World().join(msgspec.structs.replace(offered, links=PAIRS)).job("a", gpu=2).job("b", gpu=2).round()
    assert (world.task("a")[1].devices, world.task("b")[1].devices) == ((1, 2), (0, 3))


# --- whatever the node -----------------------------------------------------------------------------------------------

SHAPES = st.builds(
    Shape,
    cpu=st.sampled_from([0, 1000]),
    gpus=st.integers(0, 3),
    gpu_memory=st.sampled_from([0, 4 * GIB, 10 * GIB]),
    share=st.sampled_from([100, 300, 500, 800, WHOLE]),
)


@given(st.lists(st.sampled_from([8, 16]), max_size=4), st.lists(SHAPES, max_size=12))
def test_devices_are_never_taken_beyond_their_cap_or_memory_and_come_back_whole(
    sizes: list[int], shapes: list[Shape]
) -> None:
    here = room(*sizes)
    holders: list[tuple[Shape, tuple[int, ...]]] = []
    for shape in shapes:
        picked = here.pick(shape, ANY)
        if picked is None:
            continue
        assert len(set(picked)) == shape.gpus
        here.take(shape, picked)
        holders.append((shape, picked))
        for index, size in enumerate(sizes):
            on = [shape for shape, devices in holders if index in devices]
            if any(shape.share == WHOLE for shape in on):
                assert len(on) == 1
            else:
                assert sum(shape.share for shape in on) <= SHARED_CAP
                assert sum(shape.gpu_memory for shape in on) <= size * GIB
    for shape, picked in holders:
        here.give(shape, picked)
    assert here.devices == room(*sizes).devices
    assert (here.cpu, here.memory, here.network) == (8000, 8 * GIB, 10**9)


def test_what_a_column_says_becomes_room_and_what_ends_gives_back() -> None:
    device = Device(index=5, memory=16 * GIB)
    fleet = Fleet((msgspec.structs.replace(node("n1", cpu=4), devices=(device,)),))
    fleet.device_share[0, 0], fleet.device_memory[0, 0] = 500, 10 * GIB
    here = room_on(fleet, 0, fleet.free[:, 0], fleet.device_memory, fleet.device_share)
    apart = here.copy()
    shape = Shape(gpus=1, share=500, gpu_memory=6 * GIB)
    give_back(here, Resident(unit="u", ordinal=1, priority=2, shape=shape, kind="", since=1, devices=(5,)))
    assert (here.cpu, here.devices[0][FREE_MEMORY], here.devices[0][FREE_SHARE]) == (5000, 16 * GIB, WHOLE)
    assert (apart.cpu, apart.devices[0][FREE_SHARE]) == (4000, 500)
    assert here.pick(Shape(gpus=1), [False, True, False]) == (5,)


def test_links_count_also_where_another_node_like_it_has_none() -> None:
    linked = msgspec.structs.replace(node("n2", cpu=8, gpus=4), links=PAIRS)
    world = World().join(node("n1", cpu=8, gpus=4)).join(linked).drain("n1").job("a", gpu=2).round()
    assert world.task("a")[1].devices == (1, 2)
