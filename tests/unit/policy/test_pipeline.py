"""Stages for unequal devices, and what a schedule makes of them; small cases against every cut that there is."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from poise.units import SECOND
from poise_train.policy.pipeline import (
    NORMAL,
    Chosen,
    Device,
    Lack,
    Layer,
    Move,
    NoRoom,
    Schedule,
    Stage,
    Wire,
    choose,
    foresee,
    in_flight,
    moves,
    partition,
)

SLOW, PLAIN, QUICK = Device("slow", NORMAL // 2), Device("plain"), Device("quick", 2 * NORMAL)
GIGABIT = Wire(0, 8 * SECOND)
"""A byte in a nanosecond."""

SCHEDULES: tuple[Schedule, ...] = ("forward", "gpipe", "1f1b")


def row(*times: int, output: int = 0, kept: int = 0, held: int = 0) -> list[Layer]:
    """Layers whose backward takes as long as their forward."""
    return [Layer(f"layer {at}", one, one, output, kept, held) for at, one in enumerate(times)]


def cut(found: tuple[Stage, ...] | NoRoom) -> list[tuple[str, int, int]]:
    assert not isinstance(found, NoRoom), found
    return [(stage.device.name, stage.start, stage.stop) for stage in found]


def even(stages: int, forward: int = 10, backward: int = 20) -> list[Stage]:
    return [Stage(PLAIN, at, at + 1, forward, backward) for at in range(stages)]


# --- where to cut ---------------------------------------------------------------------------------------------------


def test_a_device_of_half_the_speed_gets_half_the_work() -> None:
    assert cut(partition(row(*[10] * 9), [SLOW, PLAIN])) == [("slow", 0, 3), ("plain", 3, 9)]


def test_layers_are_cut_by_what_they_cost_not_by_their_number() -> None:
    assert cut(partition(row(10, 10, 10, 30), [PLAIN, PLAIN])) == [("plain", 0, 3), ("plain", 3, 4)]


def test_a_large_output_is_not_sent_if_another_cut_costs_less() -> None:
    layers = [Layer("a", 10, 10, 100), Layer("b", 10, 10, 1), Layer("c", 10, 10)]
    assert cut(partition(layers, [PLAIN, PLAIN], GIGABIT)) == [("plain", 0, 2), ("plain", 2, 3)]
    assert cut(partition(layers, [PLAIN, PLAIN])) == [("plain", 0, 1), ("plain", 1, 3)]  # for nothing: the earlier end


def test_the_order_of_devices_is_found_where_it_is_free() -> None:
    layers = row(10, 10, 40)
    assert cut(partition(layers, [QUICK, SLOW], any_order=True)) == [("slow", 0, 1), ("quick", 1, 3)]
    assert cut(partition(layers, [QUICK, SLOW])) == [("quick", 0, 2), ("slow", 2, 3)]


def test_more_micro_batches_take_more_memory_in_gpipe_than_in_1f1b() -> None:
    layers = row(10, 10, kept=10, held=5)
    device = Device("small", NORMAL, 30)
    assert cut(partition(layers, [device, device], schedule="1f1b", micro_batches=8))
    refused = partition(layers, [device, device], schedule="gpipe", micro_batches=8)
    assert refused == NoRoom((Lack("the devices in a row", 2, 0, "layers"),))


def test_without_room_every_reason_is_given() -> None:
    layers = [Layer("wide", 1, held=50), Layer("thin", 1, held=5), Layer("wider", 1, held=70)]
    assert partition(layers, [Device("a", NORMAL, 40), Device("b", NORMAL, 30)]) == NoRoom(
        (
            Lack("wide", 50, 40, "bytes"),
            Lack("wider", 70, 40, "bytes"),
            Lack("all layers", 125, 70, "bytes"),
            Lack("the devices in a row", 3, 0, "layers"),
        )
    )
    assert partition(layers[:1], [PLAIN, PLAIN]) == NoRoom((Lack("the devices", 2, 1, "layers"),))


def test_wires_that_are_not_alike_keep_the_order() -> None:
    with pytest.raises(ValueError, match="connected alike"):
        partition(row(1, 1), [PLAIN, PLAIN], [GIGABIT], any_order=True)
    with pytest.raises(ValueError, match="2 devices have 1 wires"):
        partition(row(1, 1), [PLAIN, PLAIN], [])


LAYERS = st.lists(
    st.builds(
        Layer,
        name=st.just("one"),
        forward=st.integers(0, 20),
        backward=st.integers(0, 20),
        output=st.integers(0, 9),
        kept=st.integers(0, 9),
        held=st.integers(0, 9),
    ),
    min_size=1,
    max_size=7,
)
DEVICES = st.lists(
    st.builds(
        Device,
        name=st.sampled_from("abc"),
        speed=st.sampled_from([500, 1000, 3000]),
        memory=st.sampled_from([-1, 25, 60]),
    ),
    min_size=1,
    max_size=4,
)


def every(layers: Sequence[Layer], devices: Sequence[Device], schedule: Schedule, many: int) -> Iterator[list[int]]:
    """The times of the stages of each cut for which there is room, reckoned from the definitions."""
    places, trains = len(devices), schedule != "forward"
    for inner in combinations(range(1, len(layers)), places - 1):
        times = []
        for at, (start, stop) in enumerate(pairwise([0, *inner, len(layers)])):
            inside, device, time = layers[start:stop], devices[at], 0
            held = sum(one.held for one in inside)
            for total in (sum(one.forward for one in inside), sum(one.backward for one in inside) if trains else 0):
                time += -(-total * 1000 // device.speed)
            if at > 0:
                time += GIGABIT.carries(layers[start - 1].output)
                held += many * layers[start - 1].output
            if trains and at < places - 1:
                time += GIGABIT.carries(layers[stop - 1].output)
            if at < places - 1 or not trains:
                held += many * layers[stop - 1].output
            if trains:
                held += in_flight(schedule, at, places, many) * sum(one.kept for one in inside)
            if 0 <= device.memory < held:
                break
            times.append(time)
        if len(times) == places:
            yield times


@settings(max_examples=100, deadline=None)
@given(LAYERS, DEVICES, st.sampled_from(SCHEDULES), st.integers(1, 5), st.booleans())
def test_no_cut_is_better(
    layers: list[Layer], devices: list[Device], schedule: Schedule, many: int, free: bool
) -> None:
    orders = permutations(devices) if free else [tuple(devices)]
    known = [times for order in orders for times in every(layers, order, schedule, many)]
    found = partition(layers, devices, GIGABIT, schedule=schedule, micro_batches=many, any_order=free)
    if not known:
        assert isinstance(found, NoRoom)
        assert found.lacks
        return
    assert not isinstance(found, NoRoom)
    times = [stage.time for stage in found]
    assert (max(times), sum(times)) == min((max(one), sum(one)) for one in known)
    assert [stage.stop for stage in found] == [*(stage.start for stage in found[1:]), len(layers)]
    assert found[0].start == 0
    assert sorted(stage.device for stage in found) == sorted(devices)
    assert all(stage.device.memory < 0 or stage.memory <= stage.device.memory for stage in found)


# --- what a schedule makes of it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "many"), [(1, 1), (2, 2), (4, 4), (4, 16)])
def test_with_equal_stages_and_nothing_sent_the_closed_form_holds(schedule: Schedule, stages: int, many: int) -> None:
    foreseen = foresee(even(stages), many, schedule)
    assert foreseen.bubble == pytest.approx((stages - 1) / (many + stages - 1))
    assert foreseen.time == (many + stages - 1) * (10 if schedule == "forward" else 30)


def test_going_round_the_devices_twice_halves_what_is_lost() -> None:
    """Megatron-LM's (SC 2021, section 2.2.2): (P - 1) / v M of the time without a bubble."""
    once, twice = foresee(even(4, 20, 40), 8, "1f1b"), foresee(even(8), 8, "1f1b", rounds=2)
    assert once.busy == twice.busy == (8 * 60,) * 4
    assert once.time - 8 * 60 == 3 * 60
    assert twice.time - 8 * 60 == 3 * 30


def test_a_slow_stage_is_waited_for_by_all() -> None:
    stages = [Stage(PLAIN, 0, 1, 10), Stage(PLAIN, 1, 2, 30), Stage(PLAIN, 2, 3, 10)]
    foreseen = foresee(stages, 5, "forward")
    assert foreseen.time == 10 + 5 * 30 + 10
    assert foreseen.busy == (50, 150, 50)


def test_a_transfer_is_waited_for_by_who_receives() -> None:
    stages = [Stage(PLAIN, 0, 1, 10, 10, 0, 3), Stage(PLAIN, 1, 2, 10, 10, 5, 0)]
    assert foresee(stages, 1, "gpipe").time == 10 + 5 + 10 + 10 + 3 + 10
    assert foresee(stages, 3, "forward").time == 10 + 3 * (5 + 10)


def test_1f1b_goes_back_as_soon_as_it_can() -> None:
    assert [(move.micro, move.back) for move in moves("1f1b", 0, 2, 3)] == [
        (0, False),
        (1, False),
        (0, True),
        (2, False),
        (1, True),
        (2, True),
    ]


@given(st.sampled_from(SCHEDULES), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3))
def test_every_move_is_made_once_and_no_more_are_under_way_than_is_counted(
    schedule: Schedule, devices: int, many: int, rounds: int
) -> None:
    rounds = rounds if schedule == "1f1b" else 1
    many = many * devices if rounds > 1 else many
    for device in range(devices):
        line = moves(schedule, device, devices, many, rounds)
        backs = (False,) if schedule == "forward" else (False, True)
        stages = range(device, devices * rounds, devices)
        assert sorted(line) == sorted(Move(s, m, b) for s in stages for m in range(many) for b in backs)
        if rounds == 1 and schedule != "forward":
            under_way = [sum(-1 if move.back else 1 for move in line[:end]) for end in range(len(line) + 1)]
            assert max(under_way) == in_flight(schedule, device, devices, many)


@given(
    st.lists(st.tuples(*[st.integers(0, 30)] * 4), min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from(SCHEDULES),
)
def test_a_step_takes_no_less_than_its_slowest_stage_and_no_more_than_all_in_turn(
    of: list[tuple[int, int, int, int]], many: int, schedule: Schedule
) -> None:
    stages = [Stage(PLAIN, at, at + 1, *times) for at, times in enumerate(of)]
    if schedule == "forward":
        stages = [stage._replace(backward=0, takes_back=0) for stage in stages]
    times = [many * stage.time for stage in stages]
    assert max(times) <= foresee(stages, many, schedule).time <= sum(times)


# --- how many micro-batches -----------------------------------------------------------------------------------------


def by_size(fixed: int, each: int, kept: int = 0) -> dict[int, list[Layer]]:
    """Two layers, measured in micro-batches of several sizes: a fixed part and one for each sample."""
    return {size: row(*[fixed + each * size] * 2, kept=kept * size) for size in (1, 2, 4, 8)}


def test_small_micro_batches_are_chosen_if_layers_take_little_for_each_call() -> None:
    chosen = choose(by_size(0, 10), 8, [PLAIN, PLAIN])
    assert isinstance(chosen, Chosen)
    assert (chosen.size, chosen.micro_batches) == (1, 8)
    assert chosen.foreseen.bubble == pytest.approx(1 / 9)


def test_large_ones_are_chosen_if_each_call_takes_much() -> None:
    chosen = choose(by_size(100, 1), 8, [PLAIN, PLAIN])
    assert isinstance(chosen, Chosen)
    assert (chosen.size, chosen.micro_batches) == (4, 2)
    assert chosen.passed[8] == NoRoom((Lack("1f1b", 2, 1, "micro-batches"),))


def test_memory_bounds_the_size() -> None:
    device = Device("small", NORMAL, 5)
    chosen = choose(by_size(100, 1, kept=1), 8, [device, device])
    assert isinstance(chosen, Chosen)
    assert chosen.size == 2
    assert isinstance(chosen.passed[4], NoRoom)
    nothing = choose(by_size(100, 1, kept=9), 8, [device, device])
    assert isinstance(nothing, dict)
    assert list(nothing) == [8, 4, 2, 1]
