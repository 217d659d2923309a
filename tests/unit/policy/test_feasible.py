"""Where a shape fits, and every reason by name where it does not."""

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from poise.model.fleet import CPU, DEVICES, LOST, MEMORY, NETWORK, Fleet, model_of, processor_of
from poise.model.resources import ANYWHERE, WHOLE, Device, Shape, Wants, Where
from poise.policy.feasible import (
    MOST_SHAPES,
    MOST_TASKS,
    Summary,
    ability,
    can_do,
    capacity,
    capacity_when_empty,
    fits,
    never,
    precision_on,
    refusals,
    shortfall,
)
from poise.policy.room import room_on
from poise.testing import World, node
from poise.units import parse_bytes

GIB = 2**30


def test_devices_fit_by_their_memory() -> None:
    fleet = World().join(node(gpus=2, gpu_memory=("16GiB", "80GiB"))).ledger.columns.fleet()
    assert ability(fleet, Shape(gpus=1, gpu_memory=parse_bytes("40GiB"))).models == [False, False, True, False]


def test_what_a_fleet_can_do_is_worked_out_once_and_holds_for_its_copies() -> None:
    world = World().nodes(1, cpu=2)
    fleet = world.ledger.columns.fleet()
    found = ability(fleet, Shape(cpu=1000))
    assert ability(world.controller.snapshot(world.now).fleet, Shape(cpu=1000)) is found
    assert found.room.tolist() == [2]
    world.join(node("n2", cpu=4))
    assert ability(world.ledger.columns.fleet(), Shape(cpu=1000)).room.tolist() == [2, 4]


def test_no_more_is_remembered_of_a_fleet_than_is_bounded() -> None:
    fleet = Fleet((node(cpu=4),))
    for cpu in range(MOST_SHAPES + 1):
        ability(fleet, Shape(cpu=cpu))
    assert len(fleet.abilities) == 1


def test_never_names_everything_that_is_too_small() -> None:
    reasons = never(node(cpu=1, memory="1GiB"), Shape(cpu=2000, memory=2 * GIB, gpus=1))
    assert [reason.code for reason in reasons] == ["CPU_TOO_SMALL", "MEMORY_TOO_SMALL", "GPU_TOO_FEW"]
    assert {reason.fixable for reason in reasons} == {"never"}


def test_room_is_bound_by_the_scarcest() -> None:
    fleet = Fleet((node(cpu=8, memory="8GiB", gpus=3),))
    assert capacity_when_empty(fleet, Shape(cpu=1000)) == 8
    assert capacity_when_empty(fleet, Shape(cpu=1000, memory=3 * GIB)) == 2
    assert capacity_when_empty(fleet, Shape(cpu=1000, gpus=2)) == 1
    assert capacity_when_empty(fleet, Shape(cpu=9000)) == 0
    assert capacity_when_empty(fleet, Shape(cpu=0)) == MOST_TASKS


@given(
    st.builds(Shape, st.integers(0, 4000), st.integers(0, 4 * GIB), st.integers(0, 3)),
    st.integers(0, 4),
    st.integers(0, 4 * GIB),
    st.integers(0, 3),
)
def test_what_is_refused_for_ever_falls_short_and_what_is_not_fits(
    shape: Shape, cpu: int, memory: int, gpus: int
) -> None:
    offered = node("n1", cpu=cpu, memory=memory, gpus=gpus)
    fleet = World().join(offered).ledger.snapshot(0).fleet
    refused = bool(never(offered, shape))
    assert refused == (shortfall(offered, shape) > 0) == (capacity_when_empty(fleet, shape) == 0)
    assert refused == bool(refusals(fleet, 0, shape))  # an empty node refuses only what it never could hold


# --- what a device must be -------------------------------------------------------------------------------------------

H100 = Device(
    index=0, model="H100", memory=80 * GIB, backend="cuda", rates={"fp8": 1979, "fp16": 989, "fp32": 67},
    bandwidth=3350, ops=("matmul", "attention"),
)  # fmt: skip
V100 = Device(index=1, model="V100", memory=32 * GIB, backend="cuda", rates={"fp16": 125, "fp32": 16}, ops=("matmul",))
ASCEND = Device(index=2, kind="npu", model="Ascend-910B", memory=64 * GIB, backend="cann", rates={"fp16": 376})
UNKNOWN = Device(index=3, memory=16 * GIB)
MODELS = (H100, V100, ASCEND, UNKNOWN)


@pytest.mark.parametrize(
    ("wants", "can"),
    [
        (Wants(), [0, 1, 3]),
        (Wants(kind="npu"), [2]),
        (Wants(models=("V100", "A100")), [1]),
        (Wants(backend="cuda"), [0, 1, 3]),  # what says nothing of its backend may have it
        (Wants(backend="rocm"), [3]),
        (Wants(precision="fp8"), [0, 1, 3]),  # the V100 has no fp8, and takes fp16
        (Wants(precision="fp64"), [3]),  # nothing is wider
        (Wants(ops=("matmul", "attention")), [0, 3]),
        (Wants(kind="npu", ops=("anything",)), [2]),
    ],
)
def test_a_device_can_do_what_it_says_and_what_it_says_nothing_of(wants: Wants, can: list[int]) -> None:
    assert [device.index for device in MODELS if can_do(model_of(device), wants)] == can


@pytest.mark.parametrize(
    ("device", "asked", "gets"),
    [
        (H100, "fp8", "fp8"),
        (V100, "fp8", "fp16"),
        (V100, "bf16", "fp16"),
        (V100, "fp64", None),
        (UNKNOWN, "fp8", "fp8"),
    ],
)
def test_a_precision_that_is_missing_is_replaced_by_a_wider_one(device: Device, asked: str, gets: str | None) -> None:
    assert precision_on(model_of(device), asked) == gets


def test_a_wrong_kind_of_device_says_what_is_there() -> None:
    offered = msgspec.structs.replace(node(), devices=(V100,))
    [reason] = never(offered, Shape(gpus=1, wants=Wants(models=("H100",))))
    assert reason.sentence() == "n1: has no suitable device: 1 H100 GPU needed, V100 there"


def test_work_on_cpus_looks_at_the_processor() -> None:
    """Precisions and operators of work without devices are asked of the node's CPUs."""
    slow = msgspec.structs.replace(node("n1"), model="old", rates={"fp32": 10})
    double = Shape(wants=Wants(precision="fp64"))
    assert capacity_when_empty(Fleet((slow,)), Shape(wants=Wants(precision="fp32"))) == 2
    assert capacity_when_empty(Fleet((slow,)), double) == 0
    assert [reason.code for reason in never(slow, double)] == ["NO_SUCH_DEVICE"]


def test_nodes_whose_processors_differ_are_told_apart() -> None:
    slow = msgspec.structs.replace(node("n1"), model="old", rates={"fp32": 10})
    assert capacity_when_empty(Fleet((slow, node("n2"))), Shape(wants=Wants(precision="fp64"))) == 2


# --- reasons ---------------------------------------------------------------------------------------------------------


def test_a_large_fleet_gives_its_reasons_by_kind_of_node() -> None:
    small = [node(f"a{number:02}", cpu=2) for number in range(20)]
    large = [node(f"b{number:02}", cpu=8) for number in range(20)]
    fleet = Fleet((*small, *large))
    fleet.free[CPU] = np.arange(40) * 100
    fleet.closed[39] = LOST
    shape = Shape(cpu=4000)
    told = [
        (reason.subject, reason.code, reason.need, reason.have, reason.fixable)
        for reason in Summary(fleet, fleet.free).reasons(shape, ability(fleet, shape))
    ]
    assert told == [
        ("20 nodes like a00", "CPU_TOO_SMALL", "4", "2", "never"),
        ("19 nodes like b00", "CPU_BUSY", "4", "at most 3.8", "later"),
        ("b19", "NODE_LOST", "", "", "later"),
    ]


def test_room_that_is_in_pieces_is_told_as_such() -> None:
    fleet = Fleet([node(f"n{number:02}", cpu=4, memory="4GiB") for number in range(10)])
    fleet.free[CPU, ::2] = 0
    fleet.free[MEMORY, 1::2] = 0
    shape = Shape(cpu=1000, memory=GIB)
    [reason] = Summary(fleet, fleet.free).reasons(shape, ability(fleet, shape))
    assert (reason.code, reason.need) == ("NOT_AT_ONCE", "1 CPU, 1 GiB")


def test_labels_and_names_say_where_work_runs() -> None:
    world = World().join(msgspec.structs.replace(node("n1", cpu=1), zone="east", labels={"team": "a"}))
    world.join(msgspec.structs.replace(node("n2", cpu=1), zone="west")).join(node("n3", cpu=1))
    world.job("west", label={"zone": "west"}).job("a", label={"team": ["a", "b"]}).job(
        "named", node=["n3", "n1"]
    ).round()
    assert [world.where(name) for name in ("west", "a", "named")] == [["n2"], ["n1"], ["n3"]]
    world.job("elsewhere", exclude_node="n1", label={"zone": "!west"}).round()
    assert [reason.sentence() for reason in world.reasons("elsewhere")] == [
        "n1: is not an allowed node: not zone=west, not node n1 needed",
        "n2: is not an allowed node: not zone=west, not node n1 needed",
        "n3: 0 CPU free, 1 needed",
    ]


def test_in_a_large_fleet_the_nodes_where_it_may_not_run_are_counted() -> None:
    nodes = [msgspec.structs.replace(node(f"n{number:02}", cpu=1), zone="ab"[number % 2]) for number in range(20)]
    fleet = Fleet(nodes)
    fleet.free[CPU, ::2] = 0
    shape = Shape(cpu=1000, where=Where(labels=(("zone", ("a",)),)))
    told = [
        reason.sentence() for reason in Summary(fleet, fleet.free, shape.where).reasons(shape, ability(fleet, shape))
    ]
    assert told == [
        "10 nodes like n00: at most 0 CPU free, 1 needed",
        "10 nodes like n01: is not an allowed node: zone=a needed",
    ]


# --- all nodes at once, against one node after the other -------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Some nodes, with some of what they have taken; shares never take more than there is."""
    nodes = []
    for number in range(draw(st.integers(1, 4))):
        models = draw(st.lists(st.sampled_from(MODELS), max_size=4))
        devices = tuple(msgspec.structs.replace(of, index=index) for index, of in enumerate(models))
        cpu, memory = draw(st.integers(1, 8)), draw(st.integers(0, 8))
        made = node(f"n{number}", cpu=cpu, memory=memory * GIB)
        network, zone = draw(st.sampled_from([0, 10**9])), draw(st.sampled_from(["", "east", "west"]))
        nodes.append(msgspec.structs.replace(made, devices=devices, network=network, zone=zone))
    fleet = Fleet(nodes)
    for row, of in enumerate(nodes):
        fleet.closed[row] = draw(st.sampled_from([0, 0, 0, LOST]))
        fleet.free[CPU, row] -= draw(st.integers(0, of.cpu))
        fleet.free[MEMORY, row] -= draw(st.integers(0, of.memory))
        fleet.free[NETWORK, row] -= draw(st.integers(0, of.network))
        for place, device in enumerate(of.devices):
            taken = draw(st.sampled_from([0, 0, 0, 200, 500, 800, WHOLE]))
            fleet.device_share[row, place] -= taken
            if 0 < taken < WHOLE:
                fleet.device_memory[row, place] -= draw(st.integers(0, device.memory))
            fleet.free[DEVICES, row] -= taken > 0
    return fleet


WANTED = st.builds(
    Shape,
    cpu=st.sampled_from([0, 500, 1000, 3000]),
    memory=st.sampled_from([0, 0, GIB, 3 * GIB]),
    gpus=st.integers(0, 3),
    gpu_memory=st.sampled_from([0, 0, 10 * GIB, 40 * GIB]),
    share=st.sampled_from([WHOLE, WHOLE, 200, 300, 400, 800]),
    network=st.sampled_from([0, 0, 3 * 10**8]),
    wants=st.sampled_from(
        [
            Wants(),
            Wants(),
            Wants(kind="npu"),
            Wants(models=("H100", "V100")),
            Wants(precision="fp8"),
            Wants(ops=("attention",)),
        ]
    ),
    where=st.sampled_from(
        [
            ANYWHERE,
            ANYWHERE,
            Where(nodes=("n0", "n2")),
            Where(without=("n1",)),
            Where(labels=(("zone", ("east",)),)),
            Where(without_labels=(("zone", ("east",)),)),
        ]
    ),
)


def one_by_one(fleet: Fleet, row: int, shape: Shape) -> int:
    """How many tasks fit on one node if each is placed before the next is looked at; at most 100."""
    node, count = fleet.nodes[row], 0
    if fleet.closed[row] or not shape.where.admits(node):
        return 0
    if not shape.gpus and not can_do(processor_of(node), msgspec.structs.replace(shape.wants, kind="cpu", models=())):
        return 0
    room = room_on(fleet, row, fleet.free[:, row], fleet.device_memory, fleet.device_share)
    able = [can_do(model, shape.wants) for model in fleet.models] + [False]
    while count < 100 and (picked := room.pick(shape, able)) is not None:
        room.take(shape, picked)
        count += 1
    return count


@given(fleets(), WANTED)
def test_columns_say_the_same_as_looking_at_each_node(fleet: Fleet, shape: Shape) -> None:
    able = ability(fleet, shape)
    arrays = (fleet.free, fleet.device_memory, fleet.device_share)
    room = capacity(fleet, shape, able, *arrays)
    each = [one_by_one(fleet, row, shape) for row in range(len(fleet))]
    assert np.minimum(room, 100).tolist() == each
    assert fits(fleet, shape, able, *arrays).tolist() == [row for row, count in enumerate(each) if count]
    assert [not refusals(fleet, row, shape) for row in range(len(fleet))] == [count > 0 for count in each]


@given(fleets(), WANTED)
def test_an_empty_fleet_holds_no_less_than_one_in_use(fleet: Fleet, shape: Shape) -> None:
    empty = Fleet(fleet.nodes)
    able = ability(empty, shape)
    room = capacity(empty, shape, able, empty.free, empty.device_memory, empty.device_share)
    assert np.minimum(room, MOST_TASKS).sum() == capacity_when_empty(empty, shape)
    assert (capacity(fleet, shape, able, fleet.free, fleet.device_memory, fleet.device_share) <= room).all()
    assert [not never(of, shape) for of in fleet.nodes] == (room > 0).tolist()
