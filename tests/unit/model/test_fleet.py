"""The fleet as columns: what each row says of its node, and that a copy is a copy."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from poise.model.fleet import (
    CPU,
    DEVICES,
    DRAINED,
    HOT,
    LOST,
    MEMORY,
    NETWORK,
    Fleet,
    PoolView,
    model_of,
    processor_of,
)
from poise.model.load import Load
from poise.model.messages import Beat
from poise.model.resources import PLENTY, WHOLE, Device, Link, Node
from poise.testing import World, node

GIB = 2**30


def devices(*models: str, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(index=index, model=model, memory=16 * GIB, **fields) for index, model in enumerate(models))


def test_a_row_for_each_node_and_a_column_for_each_device() -> None:
    fleet = Fleet(
        (
            node("n1", cpu=4, memory="8GiB"),
            replace(node("n2", cpu=8, memory="2GiB"), devices=devices("a", "b", "a"), network=10**9, latency=7),
        )
    )
    assert (fleet.names, fleet.rows, len(fleet)) == (("n1", "n2"), {"n1": 0, "n2": 1}, 2)
    assert fleet.total.tolist() == [[4000, 8000], [8 * GIB, 2 * GIB], [PLENTY, 10**9], [0, 3]]
    assert (fleet.free == fleet.total).all()
    assert [model.name for model in fleet.models] == ["cpu", "a", "b"]
    assert fleet.device_model.tolist() == [[-1, -1, -1], [1, 2, 1]]
    assert fleet.device_memory.tolist() == [[0, 0, 0], [16 * GIB] * 3]
    assert fleet.device_share.tolist() == [[0, 0, 0], [WHOLE] * 3]
    assert (fleet.bandwidth.tolist(), fleet.latency.tolist()) == ([0, 10**9], [0, 7])


def test_a_fleet_of_no_nodes_has_no_rows() -> None:
    fleet = Fleet()
    assert (len(fleet), fleet.free.shape, fleet.models, fleet.likes) == (0, (4, 0), (), ())
    assert fleet.copy() == fleet


def test_nodes_that_offer_the_same_are_of_one_kind() -> None:
    fleet = Fleet((node("n1"), node("n2", cpu=4), node("n3"), node("n4", gpus=1), node("n5", gpus=1)))
    assert fleet.kind.tolist() == [0, 1, 0, 2, 2]
    assert fleet.likes == (0, 1, 3)


def test_devices_are_alike_if_they_are_of_one_model_and_not_linked() -> None:
    pair = (Link(a=0, b=1, bandwidth=9),)
    for of, links, alike in ((("a", "a"), (), True), (("a", "b"), (), False), (("a", "a"), pair, False)):
        assert Fleet((replace(node(), devices=devices(*of), links=links),)).alike == [alike]


def test_devices_of_one_model_are_one_whatever_their_index_and_id() -> None:
    one = Device(index=0, model="a", uuid="x", rates={"fp16": 2, "fp32": 1}, socket=0)
    other = Device(index=7, model="a", uuid="y", rates={"fp32": 1, "fp16": 2}, socket=1)
    assert model_of(one) == model_of(other)
    assert model_of(one) != model_of(replace(one, memory=1))
    assert processor_of(node()) == processor_of(node("n2"))
    assert processor_of(replace(node(), model="epyc")).name == "epyc"


def test_racks_and_zones_are_numbered_as_named() -> None:
    places = (("a", "1"), ("a", "2"), ("b", "1"), ("a", "1"))
    fleet = Fleet([replace(node(f"n{row}"), zone=zone, rack=rack) for row, (zone, rack) in enumerate(places)])
    assert fleet.zone.tolist() == [0, 0, 1, 0]
    assert fleet.rack.tolist() == [0, 1, 2, 0]  # rack 1 of zone b is another than rack 1 of zone a


def test_a_copy_does_not_change_with_the_original() -> None:
    fleet = Fleet((node("n1", gpus=1), node("n2")))
    fleet.pools["k"] = {0: PoolView(1, 1)}
    copied, before = fleet.copy(), fleet.copy()
    for name in ("free", "closed", "levels", "failures", "yielding", "device_memory", "device_share"):
        getattr(fleet, name).fill(1)
    fleet.pools["k"][0] = PoolView(2, 2)
    fleet.residents[0] = ()
    assert copied == before
    assert copied != fleet
    assert fleet != "a fleet"


# --- as the ledger keeps it ------------------------------------------------------------------------------------------


def seen(world: World) -> Fleet:
    return world.ledger.snapshot(world.now).fleet


def test_columns_follow_what_befalls_a_node() -> None:
    world = World().nodes(2, cpu=4, memory="8GiB", gpus=2)
    world.job("a", cpu=1, memory="2GiB", gpu=1, network="100Mbit", priority="low").round().start("a")
    fleet = seen(world)
    assert fleet.free[:, 0].tolist() == [3000, 6 * GIB, PLENTY - 10**8, 1]
    assert fleet.device_share[0].tolist() == [0, WHOLE]
    assert fleet.yielding[3, :, 0].tolist() == [1000, 2 * GIB, 10**8, 1]
    [resident] = fleet.residents[0]
    assert (resident.unit, resident.running, resident.devices) == ("j1.main", True, (0,))
    world.drain("n2").lose("n1")
    assert seen(world).closed.tolist() == [LOST, DRAINED]
    assert seen(world).failures.tolist() == [0.125, 0]  # one of eight
    world.connect("n1").finish("a")
    assert seen(world).closed.tolist() == [0, DRAINED]
    assert (seen(world).free == seen(world).total).all()
    assert not seen(world).yielding.any()


def test_what_may_not_yield_and_what_is_stopping_is_not_counted_as_yielding() -> None:
    world = World().nodes(1, cpu=4).job("a", preemptible=False).job("b").round().start("a", "b").disconnect("n1")
    assert seen(world).yielding[:, CPU, 0].tolist() == [0, 0, 1000, 0]
    world.cancel("b")
    assert not seen(world).yielding.any()
    assert [resident.stopping for resident in seen(world).residents[0]] == [False, True]


def test_brief_work_is_in_pools_and_not_among_the_residents() -> None:
    world = World().nodes(1, cpu=2)
    for _ in range(3):
        world.job(**{"class": "brief"})
    world.finish_all(run="1ms").job("now", **{"class": "brief"}).job("long", cpu="0.5").round()
    fleet = seen(world)
    assert [resident.unit for resident in fleet.residents[0]] == [world.unit("long").id]
    assert list(fleet.pools.values()) == [{0: PoolView(1, 1, 0)}]


def test_levels_are_as_the_node_has_said_for_long_enough() -> None:
    world = World().nodes(2)
    for _ in range(40):
        world.hear("n1", Beat(load=Load(cpu=950, load1=1500))).after("1s")
    assert seen(world).levels.tolist() == [HOT, 0]


def test_rows_are_right_for_a_node_that_joined_in_between() -> None:
    world = World().join(node("n3", cpu=4)).job(cpu=1).round().join(node("n1", cpu=2)).job(cpu=2).round()
    fleet = seen(world)
    assert fleet.names == ("n1", "n3")
    assert fleet.free[CPU].tolist() == [0, 3000]
    assert [len(residents) for residents in fleet.residents] == [1, 1]
    assert np.array_equal(fleet.free[[MEMORY, NETWORK, DEVICES]], fleet.total[[MEMORY, NETWORK, DEVICES]])


def test_a_node_that_says_it_has_more_has_more() -> None:
    world = World().nodes(1, cpu=1)
    known: Node = world.known["n1"]
    assert seen(world.join(replace(known, cpu=3000))).total[CPU].tolist() == [3000]


def test_a_fleet_made_anew_takes_over_what_is_as_it_was() -> None:
    old = Fleet([node("b", cpu=4, gpus=2), node("c", cpu=4)])
    old.free[0, 0], old.device_share[0, 1], old.closed[1] = 1000, 300, 1
    old.pools = {"key": {0: PoolView(1, 2), 1: PoolView(3, 3)}}
    made = Fleet([node("a"), node("b", cpu=4, gpus=2), node("c", cpu=8, gpus=4)])
    assert made.take_over(old) == ["a", "c"]
    assert made.free[0].tolist() == [2000, 1000, 8000]
    assert made.device_share.tolist() == [[0] * 4, [1000, 300, 0, 0], [1000] * 4]
    assert made.closed.tolist() == [0, 0, 0]
    assert made.pools == {"key": {1: PoolView(1, 2)}}
