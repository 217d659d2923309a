"""What was decided is decided again from its log alone, and what differs is found."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgspec
import pytest

from poise.kernel.ledger import Ledger
from poise.kernel.replay import UNRECORDED, UNSEEN, replay
from poise.model.decisions import Hold, Place, Plan
from poise.model.events import Event, Held, NodeLost, Placed, Preempted, Remembered, Round, decode_event, encode_event
from poise.model.views import Snapshot
from poise.policy.recipe import compile_recipe
from poise.policy.suites import POLICIES, ClusterPolicy, Suite, policy_named
from poise.testing import World

SPEEDS = {"train": 4.0, "train@gpu": 40.0}


def busy(policy: str | ClusterPolicy = "poise", *, seed: int = 1, steps: int = 60, **settings: Any) -> World:
    """Gangs, elastic and brief work of two tenants in all classes, a node that is lost and comes back, a drain, a quota,
    a restart, a full disk.
    """
    chance = Random(seed)  # noqa: S311 — a world, and no secrets
    world = World(policy, check=False, seed=seed, throughputs=SPEEDS, **settings).nodes(3, cpu=4, gpus=4)
    world.nodes(2, cpu=8)
    for step in range(steps):
        tenant = chance.choice(["default", "ann"])
        shape = chance.choice([{"cpu": 1}, {"cpu": 2}, {"cpu": 1, "gpu": 2}, {"cpu": 1, "gpu": 1, "workers": 4}])
        priority = chance.choice(["high", "medium", "low"])
        world.job(f"w{step}", tenant=tenant, priority=priority, preemptible=True, **shape)
        world.after(chance.choice(["10ms", "300ms", "3s", "40s"]))
        held = sorted(attempt for of_node in world.held.values() for attempt in of_node)
        for attempt in held:
            if chance.random() < 0.5 and attempt not in world.started:
                world.start(attempt.task)
            elif chance.random() < 0.3 and any(attempt in of_node for of_node in world.held.values()):
                world.finish(attempt.task, run=f"{chance.choice([1, 20, 900])}s")
        match step:
            case 10:
                world.quota("ann", cpu=5)
            case 20:
                world.lose("n1")
            case 25:
                world.connect("n1")
            case 30:
                world.drain("n2")
            case 35:
                world.drain("n2", on=False)
            case 40:
                world.restart(from_checkpoint=True)
            case 45:
                world.fail_disk()
                world.full_disk = False
                world.after("2s")
                for name in ("n1", "n2", "n3"):
                    world.connect(name)
    return world


def as_read(log: Iterable[Event]) -> list[Event]:
    """As they come from a disk."""
    return [decode_event(encode_event(event)) for event in log]


class Changed:
    """A policy with a bug in it: from one view on it places on another node, forgets, raises …"""

    def __init__(self, policy: ClusterPolicy, change: Callable[[Plan, Snapshot], Plan]) -> None:
        self.name = policy.name
        self._policy = policy
        self._change = change

    def decide(self, view: Snapshot, /) -> Plan:
        return self._change(self._policy.decide(view), view)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_decides_the_same_again(policy: str) -> None:
    world = busy(policy)
    told = replay(as_read(world.log))
    assert told.same, told.difference
    assert (told.first, told.last, told.left_out) == (1, len(world.log), {})
    made = [event for event in world.log if isinstance(event, Placed | Preempted | Held)]
    assert told.decisions == len(made) > 30
    assert told.rounds == sum(isinstance(event, Round) for event in world.log) > 20
