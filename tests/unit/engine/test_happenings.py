"""What befalls a simulated fleet, and that a world file says it."""

from typing import Any

import pytest

from poise.engine.scenario import FaultSpec, Nemesis
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.model.jobs import Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.model.worldfile import World, check_nodes, compile_world
from poise.policy.suites import policy_named
from poise.units import HOUR, SECOND
from poise_lab.engine.happenings import left_out
from poise_lab.trial import Result, simulate

ONE = Shape(gpus=1)
TRUTH = Truth(pace=Steady(1000.0), checkpoint=100 * SECOND, restore=10 * SECOND)


def node(name: str, gpus: int = 1) -> Node:
    devices = tuple(Device(index=at, memory=2**34, model="V100") for at in range(gpus))
    return Node(name=name, incarnation="1", cpu=8000, memory=2**40, devices=devices)


def arrival(at: float = 0, *, tasks: int = 1, shape: Shape = ONE, truth: Truth = TRUTH) -> Arrival:
    names = [f"main[{rank}]" if tasks > 1 else "main" for rank in range(tasks)]
    unit = Unit(
        name="main",
        tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=tasks) for rank, name in enumerate(names)),
        shape=shape,
        kind="work",
        expect=1000 * SECOND,
    )
    return Arrival(at=int(at * SECOND), units=(unit,), truths={"main": truth})


def trial(nodes: list[Node], arrivals: list[Arrival], *faults: FaultSpec, seed: int = 0, **world: Any) -> Result:
    nemeses = [Nemesis(name="own", kind="nemesis", faults=list(faults))] if faults else []
    return simulate(
        Workload(name="own", arrivals=tuple(arrivals)),
        nodes,
        policy_named("fifo"),
        Settings(seed=seed),
        world=compile_world({"kind": "world", **world}),
        nemeses=nemeses,
    )


def test_a_node_leaves_and_another_comes() -> None:
    """Lost at 350 s with 300 s saved, and noticed at once; the other node comes at 400."""
    changes = [{"at": 400, "node": "n2", "there": True}, {"at": 350, "node": "n1", "there": False}]
    told = trial([node("n1"), node("n2")], [arrival()], changes=changes)
    assert told.completions == [400 + 10 + 700]
    assert told.measures.migrations == 1
    assert told.measures.overhead.lost * HOUR == pytest.approx(50 * SECOND)
    assert told.measures.use["V100"].there == pytest.approx(1060 / 1110)


def test_a_node_that_is_back_before_it_was_missed_has_lost_its_work() -> None:
    changes = [{"at": 350, "node": "n1", "there": False}, {"at": 350, "node": "n1", "there": True}]
    told = trial([node("n1")], [arrival()], changes=changes)
    assert told.completions == [350 + 10 + 700]


def test_a_world_says_what_restarts_cost() -> None:
    changes = [{"at": 350, "node": "n1", "there": False}]
    told = trial([node("n1"), node("n2")], [arrival()], changes=changes, restart={"checkpoint": "5m", "restore": "1m"})
    assert told.completions == [350 + 60 + 700]


def test_gangs_scale_as_the_world_says() -> None:
    """Apart in racks of one zone: 80 % of the speed."""
    truth = Truth(pace=Steady(1000.0, 2))
    told = trial([node("n1"), node("n2")], [arrival(tasks=2, truth=truth)], scaling={"rack": "80%"})
    assert told.completions == [1250]


def test_what_shares_a_device_slows_each_other_down() -> None:
    shape = Shape(gpus=1, share=400)
    told = trial([node("n1")], [arrival(shape=shape), arrival(shape=shape)], sharing="30%")
    assert told.completions == pytest.approx([1000 * (1 + 0.3 * 400 / 600)] * 2)


def test_losses_come_by_the_seed_and_everything_ends() -> None:
    arrivals = [arrival(at * 50) for at in range(40)]
    nodes = [node("n1"), node("n2"), node("n3")]
    told = trial(nodes, arrivals, losses={"mtbf": "1h", "mttr": "5m"})
    assert told.measures.done == 40
    assert told.measures.migrations > 0
    assert told.measures.use["V100"].there < 3
    assert trial(nodes, arrivals, losses={"mtbf": "1h", "mttr": "5m"}) == told
    assert trial(nodes, arrivals, losses={"mtbf": "1h", "mttr": "5m"}, seed=1) != told


def test_stragglers_are_slow_as_often_as_is_said() -> None:
    long = Truth(pace=Steady(500 * 3600.0))
    told = trial([node("n1")], [arrival(truth=long)], stragglers={"share": "20%", "factor": 2.0, "lasts": "10m"})
    (completion,) = told.completions
    assert completion / (500 * 3600) == pytest.approx(1 / (0.8 + 0.2 / 2), rel=0.03)


def test_one_kind_more_changes_nothing_of_the_others() -> None:
    arrivals, losses = [arrival(at * 50) for at in range(20)], {"mtbf": "1h", "mttr": "5m"}
    alone = trial([node("n1"), node("n2")], arrivals, losses=losses)
    beside = trial([node("n1"), node("n2")], arrivals, losses=losses, telemetry={"every": "1m", "noise": "10%"})
    assert beside.jobs == alone.jobs


def test_faults_of_a_nemesis() -> None:
    faults = [
        FaultSpec(fault="kill-task", every="20m"),
        FaultSpec(fault="machine-off", every="1h", lasts="5m"),
        FaultSpec(fault="straggle", every="1h", lasts="5m", amount=2.0),
        FaultSpec(fault="fail-device", every="1h", lasts="10m"),
        FaultSpec(fault="unplug", every="1h", lasts="10m"),
        FaultSpec(fault="cut", every="1h"),
    ]
    arrivals = [arrival(at * 300, tasks=1 + at % 3) for at in range(30)]
    told = trial([node("n1", 2), node("n2", 2)], arrivals, *faults)
    assert told.measures.unfinished == 0
    assert told.measures.overhead.lost > 0
    nemesis = Nemesis(name="own", kind="nemesis", faults=faults)
    assert left_out([nemesis]) == ["cut"]


def test_what_can_never_run_does_not_keep_a_world_alive() -> None:
    told = trial([node("n1")], [arrival(), arrival(shape=Shape(gpus=2))], losses={"mtbf": "1h", "mttr": "5m"})
    assert told.measures.done == 1


def test_everything_wrong_with_a_world_is_told() -> None:
    with pytest.raises(SpecError) as caught:
        compile_world({
            "kind": "world", "sharing": "130%", "stragglers": {"share": 0.1, "factor": 0.5},
            "losses": {"mtbf": "1s"}, "nosuch": 1, "power": {"kg_per_kwh": -1.0},
        })  # fmt: skip
    fields = {record.field for record in caught.value.record.all()}
    assert fields == {"sharing", "stragglers.factor", "losses.mtbf", "nosuch", "power.kg_per_kwh"}
    with pytest.raises(SpecError, match="this node does not exist"):
        check_nodes(compile_world({"kind": "world", "changes": [{"at": 1, "node": "x", "there": True}]}), {"n1"})


def test_an_empty_world_is_plain() -> None:
    assert compile_world({"kind": "world", "name": "plain"}) == World()


@pytest.mark.parametrize(
    ("losses", "field", "need"),
    [
        ({"mtbf": "50s"}, "losses.mtbf", "1m0s or more"),
        ({"mtbf": "1h", "mttr": 0}, "losses.mttr", "1.0 s or more"),
    ],
)
def test_a_time_that_is_too_short_says_how_long_it_must_be(losses: dict[str, Any], field: str, need: str) -> None:
    with pytest.raises(SpecError) as raised:
        compile_world({"kind": "world", "losses": losses})
    assert (raised.value.record.field, raised.value.record.need) == (field, need)
