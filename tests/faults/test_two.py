"""Row 17 of the fault matrix: the lock is lost, and a second control plane starts beside the first."""

from poise.engine.scenario import Act, Fault, Scenario
from poise.engine.world import World
from poise.model.events import Began, NodeLost, decode_event
from poise.model.record import unseal
from poise.model.resources import Node
from poise.units import MILLISECOND, SECOND

LOST = 20_500 * MILLISECOND


def made() -> World:
    """One command of 40 s, and the lock that is lost after 20 s."""
    return World(
        Scenario(
            seed=1,
            nodes=tuple(Node(name=name, incarnation="0", cpu=2000, memory=2**33) for name in ("n1", "n2")),
            acts=(Act(at=SECOND, act="submit", key="k", document={"run": "work 40", "lease": "exclusive"}),),
            faults=(Fault(at=LOST, fault="second-control"),),
            heals=LOST + 5 * SECOND,
            ends=400 * SECOND,
        )
    )


def test_who_has_lost_the_lock_leaves_within_a_second_though_it_has_nothing_to_write() -> None:
    world = made()
    world.run(LOST)
    first, second = world.home.living
    assert first.process.alive
    assert world.home.control is second
    world = made()
    world.run(LOST + SECOND)
    assert len(world.home.living) == 1
    assert world.home.control in world.home.living


def test_what_runs_goes_on_under_the_second() -> None:
    world = made()
    world.run()
    events = [decode_event(unseal(record)) for record in world.disk.sound(0, world.disk.synced)]
    assert sum(isinstance(event, Began) for event in events) == 2
    assert not [event for event in events if isinstance(event, NodeLost)]
    assert world.judge.starts == 1
