"""Node scores, term by term, against numbers computed by hand."""

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from poise.model.fleet import CPU, DEVICES, HIGH, HOT, MEMORY, NETWORK, Fleet, Floats
from poise.model.profiles import Estimate
from poise.model.resources import Device, Node, Shape
from poise.policy.score import TERMS, Scoring, Term, score, turn_weight, weights_where
from poise.testing import World, node
from poise.units import MILLISECOND

GIB = 2**30
SAME = [Estimate(1, 1, "default")]


def offering(name: str = "n1", **fields: Any) -> Node:
    """A node of 10 CPUs, 10 GiB, 10 devices and 1 Gbit/s, if these fields do not say otherwise."""
    return msgspec.structs.replace(node(name, cpu=10, memory="10GiB", gpus=10), **{"network": 10**9, **fields})


def used(cpu: int, memory: int, devices: int, network: int) -> Fleet:
    """One such node with so many tenths of each taken."""
    fleet = Fleet((offering(),))
    fleet.free[CPU] -= cpu * 1000
    fleet.free[MEMORY] -= memory * GIB
    fleet.free[DEVICES] -= devices
    fleet.free[NETWORK] -= network * 10**8
    return fleet


def scores(
    term: str, fleet: Fleet, shape: Shape | None = None, estimates: Sequence[Estimate] = SAME, seed: int = 0
) -> list[float]:
    rows = np.arange(len(fleet))
    given = TERMS[term](Scoring(fleet, rows, fleet.free, shape or Shape(), estimates, seed))
    return [round(float(value), 9) for value in given]


def test_work_goes_where_the_weighted_terms_are_highest() -> None:
    """`fit`: half of CPU taken, three tenths of memory, two tenths where no device is left idle."""
    world = World().join(node("n1", cpu=8, memory="8GiB")).join(node("n2", cpu=4, memory="8GiB"))
    world.job(cpu=2, memory="2GiB").round()
    [why] = [decision.why for decision in world.plans[-1].decisions if hasattr(decision, "why")]
    assert world.where("j1") == ["n2"]
    fits = {"n2": 0.5 * 0.5 + 0.3 * 0.25 + 0.2, "n1": 0.5 * 0.25 + 0.3 * 0.25 + 0.2}
    evens = {"n2": 1 - (0.5 - 0.25), "n1": 1.0}
    # `poise` weighs 0.5 fit + 0.3 speed + 0.1 balance + 0.06 steadiness + 0.04 calm; nothing tells speeds apart
    mine, other = (0.5 * fits[name] + 0.3 + 0.1 * evens[name] + 0.1 for name in ("n2", "n1"))
    assert why.score == {"score on n2": pytest.approx(mine, abs=1e-4)}
    assert (why.instead_of, why.behind) == (("n1",), (pytest.approx(other, abs=1e-4),))


# --- the presets -----------------------------------------------------------------------------------------------------


def test_capacity_weighs_what_is_free() -> None:
    assert scores("capacity", used(0, 0, 0, 0)) == [1.0]
    assert scores("capacity", used(4, 5, 9, 2)) == [round(0.5 * 0.6 + 0.3 * 0.5 + 0.2 * 0.8, 9)]
    assert scores("capacity", used(10, 10, 10, 10)) == [0.0]


def test_load_weighs_what_is_taken_and_less_is_better() -> None:
    assert scores("load", used(0, 0, 0, 0)) == [1.0]
    assert scores("load", used(4, 5, 9, 2)) == [round(1 - (0.4 * 0.4 + 0.3 * 0.5 + 0.2 * 0.9 + 0.1 * 0.2), 9)]
    assert scores("load", used(10, 10, 10, 10)) == [0.0]


def test_a_network_of_which_nothing_is_known_counts_as_idle() -> None:
    fleet = Fleet((offering(network=0),))
    assert (scores("load", fleet), scores("capacity", fleet)) == ([1.0], [1.0])
    fleet.free[:, 0] = (0, 0, fleet.free[NETWORK, 0], 0)
    assert (scores("load", fleet), scores("capacity", fleet)) == ([0.1], [0.2])


def test_fit_counts_what_would_be_taken() -> None:
    shape = Shape(cpu=2000, memory=3 * GIB, gpus=1)
    assert scores("fit", used(4, 0, 5, 0), shape) == [round(0.5 * 0.6 + 0.3 * 0.3 + 0.2 * 0.6, 9)]


@pytest.mark.parametrize(
    ("cpu", "latency", "weight"),
    [
        (0.0, 0, 180.0),
        (0.0, 49, 180.0),
        (0.0, 50, 165.0),
        (0.0, 99, 165.0),
        (0.0, 100, 150.0),
        (0.5, 100, 125.0),
        (1.0, 10, 130.0),
        (1.0, 200, 100.0),
    ],
)
def test_a_turn_weighs_100_and_50_of_idle_cpu_and_30_or_15_when_near(cpu: float, latency: int, weight: float) -> None:
    assert turn_weight(cpu, latency * MILLISECOND) == weight


def test_weighted_turns_come_in_proportion_to_weight() -> None:
    """100 + 50 + 30 near, 100 + 50 far: 180 to 150, so six turns to five."""
    world = World("weighted-round-robin").join(node("near", cpu=1000))
    world.join(msgspec.structs.replace(node("wide", cpu=1000), latency=100 * MILLISECOND))
    for _ in range(11):
        world.job(cpu=0).round()
    at = [world.where(f"j{number}") for number in range(1, 12)]
    assert (at.count(["near"]), at.count(["wide"])) == (6, 5)


def test_of_two_kinds_of_terms_for_room_one_counts_where_the_weights_left_make_a_score() -> None:
    assert weights_where({"fit": 1.0, "prospects": 2.0}, shared=False) == {"fit": 1.0}
    assert weights_where({"fit": 1.0, "prospects": 2.0}, shared=True) == {"prospects": 2.0}
    for weights in ({"fit": 2.0, "prospects": -1.0}, {"prospects": 1.0, "speed": 1.0}, {"fit": 1.0}):
        assert weights_where(weights, shared=True) == weights


# --- the other terms -------------------------------------------------------------------------------------------------


def test_balance_is_one_less_the_distance_of_what_would_be_taken_of_each() -> None:
    shape = Shape(cpu=2000, memory=2 * GIB, gpus=2)
    assert scores("balance", used(0, 0, 0, 0), shape) == [1.0]
    assert scores("balance", used(3, 1, 0, 0), shape) == [round(1 - (0.5 - 0.2), 9)]
    plain = Fleet((node("n1", cpu=10, memory="10GiB"),))
    assert scores("balance", plain, Shape(cpu=4000, memory=GIB)) == [0.7]  # without devices those do not count


def devices_of(name: str, *models: str, price: int = 0) -> Node:
    made = tuple(Device(index=index, model=model, price=price) for index, model in enumerate(models))
    return msgspec.structs.replace(node(name), devices=made)


def test_speed_is_the_fastest_run_over_the_one_here() -> None:
    fleet = Fleet((devices_of("n1", "fast"), devices_of("n2", "slow"), devices_of("n3", "slow", "fast")))
    runs = {"cpu": 1, "fast": 100, "slow": 400}
    estimates = [Estimate(runs[model.name], 0, "") for model in fleet.models]
    assert scores("speed", fleet, Shape(gpus=1), estimates) == [1.0, 0.25, 1.0]
    assert scores("speed", fleet, Shape(), estimates) == [1.0, 1.0, 1.0]  # all have the same processor
    assert scores("speed", fleet, Shape(gpus=1), [Estimate(7, 0, "")] * 3) == [1.0, 1.0, 1.0]


def test_unstable_and_loaded_nodes_score_lower() -> None:
    fleet = Fleet([node(f"n{number}") for number in range(4)])
    fleet.failures[:] = (0, 0.25, 0.5, 1)
    assert scores("steadiness", fleet) == [1.0, 0.75, 0.5, 0.0]
    fleet.levels[:] = (0, 1, HIGH, HOT)
    assert scores("calm", fleet) == [1.0, 0.5, 0.0, 0.0]


def test_nearness_halves_at_ten_milliseconds() -> None:
    near, far = node("n1"), msgspec.structs.replace(node("n2"), latency=10 * MILLISECOND)
    assert scores("nearness", Fleet((near, far))) == [1.0, 0.5]


def test_thrift_is_the_cheapest_price_over_this_one() -> None:
    fleet = Fleet((devices_of("n1", "a", price=2), devices_of("n2", "a", "a", price=4), node("n3")))
    assert scores("thrift", fleet) == [1.0, 0.25, 1.0]


def test_energy_is_the_least_that_a_run_takes_over_that_here() -> None:
    """300 W for 100 s, 400 W for 50 s, and a device of which no power is known."""
    nodes = [
        offering(name, devices=(Device(index=0, model=model, memory=GIB, power=power),))
        for name, model, power in (("n1", "V100", 300_000), ("n2", "A100", 400_000), ("n3", "T4", 0))
    ]
    fleet = Fleet(nodes)
    runs = {"V100": 100, "A100": 50}
    estimates = [Estimate(runs.get(model.name, 1), 1, "table") for model in fleet.models]
    assert scores("energy", fleet, Shape(gpus=1), estimates) == [round(20 / 30, 9), 1.0, 1.0]
    assert scores("energy", fleet) == [1.0, 1.0, 1.0]  # no devices, no difference


def test_chance_is_the_seeds() -> None:
    fleet = Fleet([node(f"n{number}") for number in range(5)])
    assert scores("random", fleet, seed=1) == scores("random", fleet, seed=1)
    assert scores("random", fleet, seed=1) != scores("random", fleet, seed=2)


def test_first_goes_by_name() -> None:
    assert scores("first", Fleet([node(f"n{number}") for number in range(4)])) == [1.0, 0.75, 0.5, 0.25]


# --- weighing --------------------------------------------------------------------------------------------------------


def weighed(weights: dict[str, float], **terms: Term) -> list[float]:
    fleet = Fleet([node(f"n{number}") for number in range(4)])
    scoring = Scoring(fleet, np.arange(4), fleet.free, Shape(), SAME, 0)
    return [float(value) for value in score(scoring, weights, {**TERMS, **terms})]


def test_a_score_is_the_weighted_mean() -> None:
    assert weighed({"first": 3.0, "thrift": 1.0}) == [1.0, 0.8125, 0.625, 0.4375]


def test_a_term_of_ones_own_that_gives_nonsense_is_named() -> None:
    def wrong(scoring: Scoring) -> Floats:
        return np.array([1.0, np.nan, 1.0, 1.0])

    def short(scoring: Scoring) -> Floats:
        return np.array([1.0])

    for term in (wrong, short):
        with pytest.raises(ValueError, match="`mine` gave something other than one finite number"):
            weighed({"mine": 1.0}, mine=term)


@given(
    st.lists(st.tuples(*[st.integers(0, 10)] * 4, st.integers(0, HOT)), min_size=1, max_size=4),
    st.builds(Shape, cpu=st.integers(0, 10_000), memory=st.integers(0, 10 * GIB), gpus=st.integers(0, 10)),
    st.integers(0, 9),
)
def test_every_term_lies_between_zero_and_one_where_the_task_fits(
    taken: list[tuple[int, int, int, int, int]], shape: Shape, seed: int
) -> None:
    fleet = Fleet([offering(f"n{number}") for number in range(len(taken))])
    for row, (cpu, memory, devices, network, level) in enumerate(taken):
        fleet.free[:, row] -= (cpu * 1000, memory * GIB, network * 10**8, devices)
        fleet.levels[row] = level
    need = np.array([[shape.cpu], [shape.memory], [0], [shape.gpus]])
    rows = np.flatnonzero((fleet.free >= need).all(axis=0))
    for name, term in TERMS.items():
        given = term(Scoring(fleet, rows, fleet.free, shape, SAME, seed))
        assert given.shape == rows.shape
        assert ((given >= -1e-12) & (given <= 1 + 1e-12)).all(), name
