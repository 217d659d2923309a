"""Unequal devices: who runs on which, by schedules that can be computed by hand."""

from typing import Any

import msgspec

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.events import Event, Placed, Preempted
from poise.model.jobs import Priority, Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.suites import policy_named
from poise.units import SECOND

RATES = {"fast": 4.0, "slow": 1.0}
EVEN = {"fast": 1.0, "slow": 1.0}


def node(name: str, model: str) -> Node:
    devices = (Device(index=0, memory=2**34, uuid=name, model=model),)
    return Node(name=name, incarnation="1", cpu=2**40, memory=2**50, devices=devices)


def job(kind: str, at: float, seconds: float, tasks: int = 1) -> Arrival:
    """So many seconds on the fast model; on the slow one by its class."""
    names = [f"main[{rank}]" if tasks > 1 else "main" for rank in range(tasks)]
    rates = RATES if kind == "leans" else EVEN
    unit = Unit(
        name="main",
        tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=tasks) for rank, name in enumerate(names)),
        shape=Shape(gpus=1),
        kind=kind,
        expect=int(seconds * SECOND),
        checkpoint=SECOND,
    )
    pace = Steady(seconds * max(rates.values()), tasks, rates)
    return Arrival(at=int(at * SECOND), units=(unit,), truths={"main": Truth(pace=pace, saves=True)})


class Run:
    def __init__(self, nodes: list[Node], *jobs: Arrival) -> None:
        self.events: list[Event] = []
        throughputs = {f"leans@{model}": rate for model, rate in RATES.items()}
        throughputs |= {f"even@{model}": rate for model, rate in EVEN.items()}
        self.twin = Twin(policy_named("poise"), Settings(throughputs=throughputs), observe=self.events.append)
        self.twin.add_nodes(nodes)
        for one in jobs:
            self.twin.arrive(one)
        assert self.twin.run()

    def ends(self) -> dict[str, float]:
        jobs = self.twin.ledger.jobs.values()
        return {one.id: round((one.ended - self.twin.began) / SECOND, 3) for one in jobs}

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_what_gains_most_from_the_fast_device_gets_it() -> None:
    """Both fit; the one that is as fast anywhere leaves the fast device to the other, whoever came first."""
    run = Run([node("n1", "fast"), node("n2", "slow")], job("even", 0, 400), job("leans", 0, 300))
    assert run.ends() == {"j1": 400, "j2": 300}
    assert run.of(Preempted) == []


def test_what_runs_on_a_slow_device_moves_to_a_fast_one_when_that_is_free() -> None:
    """The second needs 400 s on the slow device; after 100 s a quarter is done, and the rest takes 75 s."""
    run = Run([node("n1", "fast"), node("n2", "slow")], job("leans", 0, 100), job("leans", 0, 100.1))
    assert run.ends() == {"j1": 100, "j2": 175.1}
    assert [(event.unit, event.cause) for event in run.of(Preempted)] == [("j2.main", "move")]


def test_short_work_makes_long_work_yield_on_devices_alike() -> None:
    """Shortest remaining time first: 1,000 s of work yields to 100 s that come when it has 900 s left."""
    run = Run([node("n1", "fast")], job("even", 0, 1000), job("even", 100, 100))
    assert run.ends() == {"j2": 200, "j1": 1100}


def test_what_is_nearly_done_is_left_alone() -> None:
    run = Run([node("n1", "fast")], job("even", 0, 200), job("even", 150, 100))
    assert run.ends() == {"j1": 200, "j2": 300}


def test_a_gang_is_not_spread_over_fast_and_slow_devices() -> None:
    """Beside a fast device that is free, the gang of two takes the slow pair: on both models it would be no faster."""
    nodes = [node("n1", "fast"), node("n2", "slow"), node("n3", "slow")]
    run = Run(nodes, job("leans", 0, 100, tasks=2), job("leans", 0, 500))
    placed = {event.unit: sorted(spot.node for spot in event.spots) for event in run.of(Placed)}
    assert placed == {"j1.main": ["n2", "n3"], "j2.main": ["n1"]}


def test_what_has_no_room_on_its_best_model_runs_on_another() -> None:
    """Two devices of one node are fast together, but there is no such node: the slow one is better than none."""
    whole = msgspec.structs.replace(job("leans", 0, 100).units[0], shape=Shape(gpus=2))
    wide = msgspec.structs.replace(job("leans", 0, 100), units=(whole,))
    slow = tuple(Device(index=at, memory=2**34, uuid=f"n3-{at}", model="slow") for at in range(2))
    run = Run([node("n1", "fast"), node("n2", "fast"), msgspec.structs.replace(node("n3", "slow"), devices=slow)], wide)
    assert run.ends() == {"j1": 400}


def test_a_share_of_a_device_that_is_free_makes_nobody_yield() -> None:
    low = msgspec.structs.replace(job("even", 0, 1000).units[0], priority=Priority.LOW)
    share = msgspec.structs.replace(
        job("even", 100, 10).units[0], shape=Shape(gpus=1, share=500), priority=Priority.URGENT
    )
    run = Run(
        [node("n1", "fast"), node("n2", "slow")],
        msgspec.structs.replace(job("even", 0, 1000), units=(low,)),
        msgspec.structs.replace(job("even", 100, 10), units=(share,)),
    )
    assert run.of(Preempted) == []
    assert run.ends() == {"j1": 1000, "j2": 110}
