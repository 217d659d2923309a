"""What holds of every trial: on worlds that are drawn, under policies that are drawn."""

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as draw

from poise.kernel.controller import Settings
from poise.model.events import Event, Finished, JobSubmitted, NodeLost, Placed
from poise.model.jobs import Priority, Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.model.worldfile import compile_world
from poise.policy.suites import POLICIES, policy_named
from poise.units import DAY, HOUR, SECOND
from poise_lab.trial import Result, simulate

RATES = {"V100": 1.0, "K80": 0.25}
WORLDS: list[dict[str, Any]] = [
    {},
    {"losses": {"mtbf": "30m", "mttr": "5m"}},
    {"stragglers": {"share": "20%", "factor": 2.0, "lasts": "5m"}},
    {"losses": {"mtbf": "1h", "mttr": "2m"}, "telemetry": {"every": "1m", "noise": "20%", "delay": "5s"}},
]

numbers = draw.integers


@draw.composite
def nodes(pick: draw.DrawFn) -> list[Node]:
    made = []
    for at in range(pick(numbers(1, 4))):
        model = pick(draw.sampled_from(sorted(RATES)))
        devices = tuple(Device(index=index, memory=2**34, model=model) for index in range(pick(numbers(1, 4))))
        made.append(Node(name=f"n{at}", incarnation="1", cpu=16_000, memory=2**40, devices=devices))
    return made


@draw.composite
def arrivals(pick: draw.DrawFn) -> list[Arrival]:
    made, at = [], 0
    for _ in range(pick(numbers(1, 12))):
        at += pick(numbers(0, 600))
        tasks, seconds = pick(draw.sampled_from((1, 1, 1, 2, 3))), pick(numbers(1, 2000))
        names = [f"main[{rank}]" if tasks > 1 else "main" for rank in range(tasks)]
        unit = Unit(
            name="main",
            tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=tasks) for rank, name in enumerate(names)),
            shape=Shape(gpus=pick(numbers(1, 2)), share=1000),
            kind=pick(draw.sampled_from(("a", "b"))),
            expect=pick(numbers(0, 3000)) * SECOND,
            priority=pick(draw.sampled_from(Priority)),
            checkpoint=60 * SECOND,
        )
        truth = Truth(
            pace=Steady(float(seconds), tasks, RATES),
            checkpoint=pick(draw.sampled_from((0, 60))) * SECOND,
            saves=pick(draw.booleans()),
            save=pick(numbers(0, 5)) * SECOND,
            restore=pick(numbers(0, 30)) * SECOND,
        )
        made.append(Arrival(at=at * SECOND, units=(unit,), truths={"main": truth}))
    return made


def run(policy: str, fleet: list[Node], work: list[Arrival], world: dict[str, Any], **also: Any) -> Result:
    workload = Workload(name="drawn", arrivals=tuple(work))
    made = compile_world({"kind": "world", **world})
    return simulate(workload, fleet, policy_named(policy), Settings(seed=3), world=made, **also)


class Ward:
    """Follows the events of a trial, and sees to it that no device is held twice."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], str] = {}
        self.names: dict[str, list[str]] = {}

    def take(self, event: Event) -> None:
        match event:
            case JobSubmitted():
                for unit in event.job.units:
                    self.names[f"{event.job.id}.{unit.name}"] = [f"{event.job.id}.{task.name}" for task in unit.tasks]
            case Placed():
                for name in self.names[event.unit]:
                    self.free(name)  # a lost node may still hold them: the new epoch fences them
                for name, spot in zip(self.names[event.unit], event.spots, strict=False):
                    for device in spot.devices:
                        assert (spot.node, device) not in self.held, "a device is held twice"
                        self.held[spot.node, device] = name
            case Finished():
                self.free(event.task)
            case NodeLost():
                self.held = {place: name for place, name in self.held.items() if place[0] != event.name}

    def free(self, name: str) -> None:
        self.held = {place: holder for place, holder in self.held.items() if holder != name}


@settings(max_examples=15, phases=(Phase.explicit, Phase.generate))  # to make an example smaller takes minutes
@given(draw.sampled_from(sorted(POLICIES)), nodes(), arrivals(), draw.sampled_from(WORLDS))
def test_what_holds_of_every_trial(policy: str, fleet: list[Node], work: list[Arrival], world: dict[str, Any]) -> None:
    ward = Ward()
    told = run(policy, fleet, work, world, observe=ward.take)
    assert run(policy, fleet, work, world) == told, "the same seed, another result"
    measures, fastest = told.measures, max(RATES[device.model] for node in fleet for device in node.devices)
    assert measures.done + measures.failed + measures.unfinished + measures.refused == len(work)
    for job, arrival in zip(told.jobs, [one for one in work if len(told.jobs) == len(work)], strict=False):
        pace = arrival.truths["main"].pace
        assert isinstance(pace, Steady)
        if job.outcome == "done":
            assert job.alone == round(pace.seconds / fastest * SECOND)
            assert job.completion >= job.alone - 2, "faster than the fastest device"
            assert job.completion >= job.run
            good = (job.service - job.wasted) / (job.devices or 1)
            assert good >= job.alone - 1000, "work was done that nobody did"
    for use in measures.use.values():
        assert 0 <= use.good <= use.held <= 1 + 1e-9
    assert 0 <= measures.stranded <= measures.fragmentation <= 1
    assert 0 < measures.jain <= 1 + 1e-9
    if world == {}:
        assert sum(job.service for job in told.jobs) == sum_of(told), "held time is counted twice, or not at all"


def sum_of(told: Result) -> int:
    """The device time that was held, from the use of the devices."""
    length = max((job.ended for job in told.jobs), default=0)
    kinds = [use for name, use in told.measures.use.items() if name != "cpu"]
    held = sum(use.held * use.there for use in kinds) * length
    total = sum(job.service for job in told.jobs)
    return total if abs(held - total) <= 1e-6 * max(1, total) else round(held)


TWO = tuple(Device(index=index, memory=2**34, model="V100") for index in range(2))
PAIR = [Node(name=name, incarnation="1", cpu=16_000, memory=2**40, devices=TWO) for name in ("n1", "n2")]


def job(at: int, tasks: int, gpus: int) -> Arrival:
    names = [f"main[{rank}]" if tasks > 1 else "main" for rank in range(tasks)]
    unit = Unit(
        name="main",
        tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=tasks) for rank, name in enumerate(names)),
        shape=Shape(gpus=gpus),
        kind=f"of {tasks}",
        expect=400 * SECOND,
        checkpoint=60 * SECOND,
    )
    return Arrival(at=at * SECOND, units=(unit,), truths={"main": Truth(pace=Steady(400.0, tasks))})


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_outlives_a_lost_node(policy: str) -> None:
    """A gang that needs both nodes, and work that needs one of them; one node is away for a while."""
    changes = [{"at": 100, "node": "n2", "there": False}, {"at": 900, "node": "n2", "there": True}]
    told = run(policy, PAIR, [job(0, 2, 2), job(10, 1, 1), job(20, 1, 2)], {"changes": changes})
    assert told.measures.done == 3


STORMY = {"losses": {"mtbf": "1h", "mttr": "2m"}, "telemetry": {"every": "1h"}}


@pytest.mark.parametrize("world", [{}, STORMY])
@pytest.mark.parametrize("policy", ["poise", "fifo", "las"])
def test_a_trial_ends_where_a_job_would_wait_for_ever(policy: str, world: dict[str, Any]) -> None:
    """A gang that needs both nodes, one of which leaves before it could start."""
    changes = [{"at": 25, "node": "n2", "there": False}]
    told = run(policy, PAIR, [job(0, 1, 2), job(20, 2, 2), job(30, 1, 1)], {"changes": changes, **world})
    assert (told.measures.done, told.measures.unfinished) == (2, 1)
    assert told.stuck.startswith("j2.main waits: ")
    assert "is lost" in told.stuck
    if not world:
        assert told.measures.makespan < HOUR, "the week in which it was seen that nothing happens counts as well"


def test_who_comes_back_is_waited_for() -> None:
    changes = [{"at": 25, "node": "n2", "there": False}, {"at": "8d", "node": "n2", "there": True}]
    told = run("poise", PAIR, [job(0, 1, 2), job(20, 2, 2)], {"changes": changes})
    assert (told.measures.done, told.stuck) == (2, "")


def test_who_decides_seldom_is_waited_for() -> None:
    workload, world = Workload(name="one", arrivals=(job(1, 2, 2),)), compile_world({"kind": "world", **STORMY})
    told = simulate(workload, PAIR, policy_named("fifo"), Settings(every=8 * DAY), world=world)
    assert (told.measures.done, told.stuck) == (1, "")


def test_no_order_depends_on_how_texts_are_hashed() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "unit.twin.one_world"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])},
        )
        for seed in ("0", "1", "2")
    ]
    told = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(told) == 1
