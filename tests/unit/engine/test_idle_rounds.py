"""Rounds that are not run because a plan says that they would change nothing: nothing is decided otherwise for it."""

from random import Random
from typing import Any

import msgspec
import pytest

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.decisions import Plan
from poise.model.events import Event, Finished, Held, Placed, Preempted, Resized
from poise.model.jobs import Priority, Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.views import Snapshot
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.suites import POLICIES, ClusterPolicy, policy_named
from poise.units import SECOND

NAMES = sorted(POLICIES.keys() - {"static"})
FEWER = ("fifo", "sjf", "round-robin", "poise")
"""Policies that leave out rounds in the worlds below."""


class AtEachEvent:
    """A policy that never says that a round would change nothing."""

    def __init__(self, policy: ClusterPolicy) -> None:
        self.name, self._policy = policy.name, policy

    def decide(self, view: Snapshot, /) -> Plan:
        return msgspec.structs.replace(self._policy.decide(view), closed=False, asks=None)


def node(name: str, gpus: int, model: str) -> Node:
    devices = tuple(Device(index=at, memory=2**34, uuid=f"{name}-{at}", model=model) for at in range(gpus))
    return Node(name=name, incarnation="1", cpu=8000, memory=2**36, devices=devices)


def nodes(random: Random) -> list[Node]:
    """Few enough that reasons are told node by node, or more."""
    models = random.choice((("V100",), ("V100", "K80")))
    return [node(f"n{at:02}", random.choice((2, 4)), random.choice(models)) for at in range(random.choice((3, 10)))]


def arrival(random: Random, at: float) -> Arrival:
    seconds, tasks = random.expovariate(1 / 300), random.choice((1, 1, 1, 2))
    gpus = random.choice((0, 1, 1, 2, 2))
    unit = Unit(
        name="main",
        tasks=tuple(Task(name=f"main[{rank}]", argv=("work",), rank=rank, world=tasks) for rank in range(tasks)),
        shape=Shape(gpus=gpus, cpu=random.choice((1000, 4000))),
        kind=random.choice(("a", "b", "c")),
        expect=random.choice((0, int(seconds * SECOND))),
        priority=random.choice((Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH, Priority.LOW)),
        checkpoint=random.choice((0, 60 * SECOND)),
    )
    fails = random.random() < 0.05
    truth = Truth(
        pace=Steady(seconds, tasks),
        outcome="failed" if fails else "done",
        until=0.5 if fails else 1.0,
        saves=True,
        checkpoint=60 * SECOND,
    )
    return Arrival(at=int(at * SECOND), units=(unit,), truths={"main": truth})


class Run:
    def __init__(self, policy: ClusterPolicy, seed: int, **settings: Any) -> None:
        random = Random(seed)  # noqa: S311
        self.events: list[Event] = []
        self.twin = Twin(policy, Settings(**settings), observe=self.events.append)
        there = nodes(random)
        self.twin.add_nodes(there)
        pause = 60 / sum(len(one.devices) for one in there) * 8
        at = 0.0
        for _ in range(40):
            at += random.expovariate(1 / pause)
            self.twin.arrive(arrival(random, at))
        if random.random() < 0.5:
            self.twin.lose(there[0].name, int(at / 2) * SECOND)
        assert self.twin.run(int(at * 20) * SECOND)

    def happened(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for event in self.events:
            match event:
                case Placed():
                    found.append((event.at, event.unit, event.epoch, event.spots))
                case Preempted() | Resized():
                    found.append((event.at, event.unit, event.epoch, event.cause))
                case Finished():
                    found.append((event.at, event.task, event.epoch, event.ending))
        return found


@pytest.mark.parametrize(("seed", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_nothing_is_decided_otherwise(seed: int, name: str) -> None:
    """In a world of its own for each policy."""
    usual, always = Run(policy_named(name), seed), Run(AtEachEvent(policy_named(name)), seed)
    assert usual.happened() == always.happened()
    assert usual.twin.rounds <= always.twin.rounds - (name in FEWER), "rounds that change nothing are not run"


def test_who_comes_first_is_not_recorded_anew_with_each_that_begins() -> None:
    run = Run(policy_named("fifo"), 1)
    behind = [reason for event in run.events if isinstance(event, Held) for reason in event.reasons]
    assert {reason.subject for reason in behind if reason.code == "BEHIND"} == {""}


def test_an_end_after_everything_was_placed_causes_no_round() -> None:
    twin = Twin(policy_named("poise"), Settings())
    twin.add_nodes([node("n0", 4, "V100")])
    for number in range(3):
        unit = Unit(name="main", tasks=(Task(name="main", argv=("work",)),), shape=Shape(gpus=1), kind="a")
        truth = Truth(pace=Steady(100.0))
        twin.arrive(Arrival(at=(1 + 10 * number) * SECOND, units=(unit,), truths={"main": truth}))
    twin.run(50 * SECOND)
    assert len(twin.ledger.active) == 3
    rounds = twin.rounds
    assert twin.run()
    assert not twin.ledger.jobs.unfinished()
    assert twin.rounds == rounds
