"""Row 17 of the fault matrix: the lock is lost, and a second control plane starts beside the first."""

from poise.engine.scenario import Act, Incident, Scenario
from poise.engine.simulation import Simulation
from poise.model.events import Began, NodeLost, decode_event
from poise.model.record import unseal
from poise.model.resources import Node
from poise.units import MILLISECOND, SECOND

LOST = 20_500 * MILLISECOND


def made() -> Simulation:
    """One command of 40 s, and the lock that is lost after 20 s."""
    return Simulation(
        Scenario(
            seed=1,
            nodes=tuple(Node(name=name, incarnation="0", cpu=2000, memory=2**33) for name in ("n1", "n2")),
            acts=(Act(at=SECOND, act="submit", key="k", document={"run": "work 40", "lease": "exclusive"}),),
            incidents=(Incident(at=LOST, fault="second-control"),),
            heals=LOST + 5 * SECOND,
            ends=400 * SECOND,
        )
    )


def test_who_has_lost_the_lock_leaves_within_a_second_though_it_has_nothing_to_write() -> None:
    simulation = made()
    simulation.run(LOST)
    first, second = simulation.home.living
    assert first.process.alive
    assert simulation.home.control is second
    simulation = made()
    simulation.run(LOST + SECOND)
    assert len(simulation.home.living) == 1
    assert simulation.home.control in simulation.home.living


def test_what_runs_goes_on_under_the_second() -> None:
    simulation = made()
    simulation.run()
    events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
    assert sum(isinstance(event, Began) for event in events) == 2
    assert not [event for event in events if isinstance(event, NodeLost)]
    assert simulation.judge.starts == 1
