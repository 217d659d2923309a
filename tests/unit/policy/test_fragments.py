"""Fragments of devices, against numbers computed by hand and against the definition, device by device."""

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from poise.model.decisions import Place
from poise.model.fleet import CORDONED, Fleet
from poise.model.resources import WHOLE, Device, Node, Shape, Wants
from poise.policy.feasible import can_serve
from poise.policy.fragments import MOST_TYPICAL, Account, Typical, all_of_it, as_foreseen, fragments, typical
from poise.policy.recipe import RECIPES, Recipe
from poise.policy.score import (
    WORK_TERMS,
    Scoring,
    fragmentation,
    fragmentation_by_device,
    prospects,
)
from poise.policy.suites import Suite
from poise.testing import World

HALF = Shape(gpus=1, share=500)
ONE = Shape(gpus=1)
PLAIN = Shape()


def gpus(name: str, *free: int, cpu: int = 8000, model: str = "A", cap: int = WHOLE) -> tuple[Node, tuple[int, ...]]:
    devices = tuple(Device(index=at, memory=2**34, model=model, share_cap=cap) for at in range(len(free)))
    return Node(name=name, incarnation="1", cpu=cpu, memory=2**34, devices=devices), free


def fleet_of(*nodes: tuple[Node, tuple[int, ...]]) -> Fleet:
    fleet = Fleet([node for node, _ in nodes])
    for row, (_, free) in enumerate(nodes):
        fleet.device_share[row, : len(free)] = free
    return fleet


def in_fragments(fleet: Fleet, *work: tuple[Shape, float], account: Account = all_of_it) -> list[float]:
    rows = np.arange(len(fleet))
    known = Typical(fleet, work)
    given = fragments(
        fleet, rows, fleet.free[0], fleet.free[1], fleet.device_share, fleet.device_memory, known, account
    )  # fmt: skip
    return [float(value) for value in given]


def test_what_is_free_and_too_little_is_a_fragment() -> None:
    """Half of the work could use all 1,600 thousandths that are free, the other half all but the 600 of a device."""
    assert in_fragments(fleet_of(gpus("n1", 600, 1000, 0)), (HALF, 1), (ONE, 1)) == [300]


def test_all_is_a_fragment_for_work_that_does_not_fit_or_wants_none_of_it() -> None:
    fleet = fleet_of(gpus("n1", 600, 1000, cpu=500), gpus("n2", 600, 1000))
    assert in_fragments(fleet, (HALF, 1), (ONE, 1)) == [1600, 300]
    assert in_fragments(fleet, (PLAIN, 1)) == [1600, 1600]
    assert in_fragments(fleet, (msgspec.structs.replace(HALF, gpus=3), 1)) == [1600, 1600]
    assert in_fragments(fleet, (msgspec.structs.replace(HALF, wants=Wants(models=("B",))), 1)) == [1600, 1600]
    assert in_fragments(fleet, (msgspec.structs.replace(HALF, memory=2**35), 1)) == [1600, 1600]


def test_what_is_not_for_shares_or_closed_is_of_no_use() -> None:
    assert in_fragments(fleet_of(gpus("n1", 600, cap=800), gpus("n2", 700, cap=800)), (HALF, 1)) == [600, 0]
    assert in_fragments(fleet_of(gpus("n1", CORDONED, 1000)), (ONE, 1)) == [0]


def test_only_what_is_popular_counts() -> None:
    """The most popular shapes that make up 95 %: the rest is not looked at."""
    rare = Shape(gpus=8)
    assert in_fragments(fleet_of(gpus("n1", 600, 1000)), (HALF, 96), (rare, 4)) == [0]
    assert in_fragments(fleet_of(gpus("n1", 600, 1000)), (HALF, 90), (rare, 10)) == [pytest.approx(160)]
    many = [(Shape(cpu=cpu), 1.0) for cpu in range(1, 1000)]
    assert len(Typical(Fleet(), many).weights) == MOST_TYPICAL


def test_the_score_falls_as_fragments_grow() -> None:
    """`n1` is filled to the last thousandth; on `n2` and `n3` the task leaves what only half of the work could use."""
    fleet = fleet_of(gpus("n1", 500), gpus("n2", 1000), gpus("n3", 900))
    known = Typical(fleet, [(HALF, 1), (ONE, 1)])
    scoring = Scoring(fleet, np.arange(3), fleet.free, HALF, [], 0, typical=known)
    grows = [-0.25, 0.25, -0.05]  # n1: 250 to 0; n2: 0 to 250; n3: 450 to 400, all of it
    assert fragmentation(scoring).tolist() == [np.floor(100 / (1 + np.exp(by))) / 100 for by in grows]


def test_what_is_foreseen_to_be_of_use_is_less_than_what_is_free() -> None:
    """Of 1,600 thousandths a task takes 500, and CPU is there for 2.5 such tasks, which would take 1,250."""
    needs = msgspec.structs.replace(HALF, cpu=3200)
    [lost] = in_fragments(fleet_of(gpus("n1", 600, 1000)), (needs, 1), account=as_foreseen)
    assert lost == pytest.approx(1600 - (500 + 1250 + 1600) / 3)
    [lost] = in_fragments(fleet_of(gpus("n1", 600, 1000)), (HALF, 1), (ONE, 1), account=as_foreseen)
    assert lost == pytest.approx(1600 - (500 + 1600 + 1600) / 6 - 1000 / 2)


def test_a_task_of_little_cpu_goes_where_cpu_is_short() -> None:
    """To the paper nothing is lost on either node; but on `n1` there is CPU for one more task only, which would never
    have used all of the devices.
    """
    fleet = fleet_of(gpus("n1", 1000, 1000, cpu=4000), gpus("n2", 1000, 1000, cpu=16000))
    known = Typical(fleet, [(msgspec.structs.replace(HALF, cpu=4000), 1)])
    light = msgspec.structs.replace(HALF, cpu=0)
    scoring = Scoring(fleet, np.arange(2), fleet.free, light, [], 0, typical=known)
    assert fragmentation(scoring).tolist() == [0.5, 0.5]
    of_use = [((500 + 500 + 2000) / 3, (500 + 500 + 1500) / 3), ((500 + 2000 + 2000) / 3, (500 + 1500 + 1500) / 3)]
    grows = [(1500 - after - (2000 - before)) / WHOLE for before, after in of_use]
    worth = [np.floor(100 / (1 + np.exp(by))) / 100 for by in grows]
    assert worth[0] > worth[1] > 0.5
    assert prospects(scoring).tolist() == worth


def test_a_share_is_taken_of_the_device_where_fragments_grow_least() -> None:
    fleet = fleet_of(gpus("n1", 1000, 500, 300, 900))
    known = Typical(fleet, [(HALF, 1), (ONE, 1)])
    given = fragmentation_by_device(Scoring(fleet, np.arange(1), fleet.free, HALF, [], 0, typical=known))
    assert given[0].argmax() == 1
    assert given[0, 2] == 0


def test_typical_is_what_runs_and_what_waits() -> None:
    world = World().nodes(1, cpu=8, gpus=4)
    world.job("a", gpu=1, gpu_share=0.4, workers=2).round().job("b", gpu=1, workers=3).job("c", gpu=1, workers=3)
    view = world.ledger.snapshot(world.now)
    assert dict(view.running) == {Shape(gpus=1, share=400): 2}
    known = typical(view)
    assert known is not None
    assert known.weights.tolist() == [0.75, 0.25]
    assert [known.parts[part].share for part in known.part] == [WHOLE, 400]
    world.ledger.check()
    world.finish("a.main[0]").finish("a.main[1]")
    assert dict(world.ledger.snapshot(world.now).running) == {}


def test_an_empty_view_has_no_typical_work() -> None:
    assert typical(World().nodes(1).ledger.snapshot(1)) is None


@pytest.mark.parametrize("term", sorted(WORK_TERMS))
def test_a_policy_may_weigh_fragmentation(term: str) -> None:
    """Whole devices are in demand: the second share joins the first, and not the node that is next in turn."""
    suite = Suite(Recipe(name="ours", score={term: 1.0}, spread=True))
    world = World(policy=suite).nodes(2, cpu=8, gpus=2)
    world.job("a", gpu=1, gpu_share=0.4).round().job("b", gpu=1, gpu_share=0.4).job("c", gpu=2).round()
    assert world.where("b") == world.where("a")
    assert world.where("c") != world.where("a")


def test_by_default_a_share_joins_another_and_leaves_whole_devices_whole() -> None:
    """By how full its node would be `b` would go to `n2`, and there would be no whole device left for `c`."""
    world = World().join(gpus("n1", 0, cpu=32000)[0]).join(gpus("n2", 0, 0, cpu=5000)[0])
    world.job("whole", gpu=1, cpu=1).round().job("a", gpu=1, gpu_share=0.4, cpu=6).round()
    world.job("b", gpu=1, gpu_share=0.4, cpu=3).round().job("c", gpu=1, cpu=1).round()
    assert [world.where(name) for name in ("whole", "a", "b", "c")] == [["n2"], ["n1"], ["n1"], ["n2"]]


@pytest.mark.parametrize(("whole", "same"), [(30, True), (3, False)])
def test_a_share_counts_for_whole_devices_only_where_it_is_typical(whole: int, same: bool) -> None:
    """One of 32 tasks is not."""
    recipe = RECIPES[0]
    plain = msgspec.structs.replace(
        recipe, score={name: recipe.score[name] for name in recipe.score.keys() - WORK_TERMS}
    )
    scores = []
    for suite in (Suite(recipe), Suite(plain)):
        world = World(suite).nodes(2, cpu=64, gpus=20)
        world.job("many", gpu=1, workers=whole).round().job("half", gpu=1, gpu_share=0.5).round()
        world.job("next", gpu=1).round()
        [why] = [decision.why for decision in world.plans[-1].decisions if isinstance(decision, Place)]
        scores.append(why.score)
    assert (scores[0] == scores[1]) == same


SHAPES = st.builds(
    Shape,
    cpu=st.sampled_from([0, 1000, 4000]),
    memory=st.sampled_from([0, 2**33]),
    gpus=st.integers(0, 3),
    gpu_memory=st.sampled_from([0, 2**33]),
    share=st.sampled_from([100, 300, 800, WHOLE]),
    wants=st.sampled_from([Wants(), Wants(models=("A",))]),
)
NODES = st.builds(
    gpus,
    st.just("n"),
    *[st.sampled_from([0, 100, 350, 1000])] * 3,
    cpu=st.sampled_from([0, 2000]),
    model=st.sampled_from(["A", "B"]),
    cap=st.sampled_from([0, 800, WHOLE]),
)


@given(st.lists(NODES, min_size=1, max_size=3), st.lists(SHAPES, min_size=1, max_size=4, unique=True))
def test_fragments_are_as_defined(nodes: list[tuple[Node, tuple[int, ...]]], work: list[Shape]) -> None:
    named = [(msgspec.structs.replace(node, name=f"n{at}"), free) for at, (node, free) in enumerate(nodes)]
    fleet = fleet_of(*named)
    for value, (node, free) in zip(in_fragments(fleet, *[(shape, 1.0) for shape in work]), named, strict=True):
        lost = 0.0
        for shape in work:
            useful = []
            for device, left in zip(node.devices, free, strict=True):
                model = fleet.models[int(fleet.device_model[fleet.rows[node.name], device.index])]
                least = WHOLE if shape.share == WHOLE else shape.share + WHOLE - device.share_cap
                if left >= least and can_serve(model, shape):
                    useful.append(left)
            hosts = shape.gpus and len(useful) >= shape.gpus and node.cpu >= shape.cpu and node.memory >= shape.memory
            lost += (sum(free) - (sum(useful) if hosts else 0)) / len(work)
        assert value == pytest.approx(lost)
