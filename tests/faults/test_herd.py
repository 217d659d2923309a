"""Row 25 of the fault matrix: everybody comes at once. `make faults` has ten times as many as `make test`. And row 6,
where the network of the control plane is what is cut.
"""

import os

from poise.engine.scenario import Act, Incident, Scenario
from poise.engine.simulation import Simulation
from poise.model.events import Began, Finished, NodeLost, NodeSuspected, Placed, decode_event
from poise.model.record import unseal
from poise.model.resources import Node
from poise.units import SECOND

TIMES = int(os.environ.get("HERD", "1"))
NODES = 100 * TIMES
SUBMISSIONS = 200 * TIMES


def test_every_node_comes_back_at_once_while_much_is_submitted() -> None:
    """Nobody is taken for lost, what runs is adopted, and within 15 s everything is placed."""
    killed = 30 * SECOND
    acts = [Act(at=20 * SECOND, act="submit", key="old", document={"run": "work 40", "parts": NODES})]
    acts += [
        Act(at=killed, act="submit", key=f"new {number}", document={"run": "work 2"}) for number in range(SUBMISSIONS)
    ]
    simulation = Simulation(
        Scenario(
            seed=1,
            nodes=tuple(Node(name=f"n{number}", incarnation="0", cpu=2000, memory=2**33) for number in range(NODES)),
            acts=tuple(acts),
            incidents=(Incident(at=killed, fault="kill-control"),),
            heals=killed + SECOND,
            ends=400 * SECOND,
        )
    )
    simulation.run()
    events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
    assert sum(isinstance(event, Began) for event in events) == 2
    assert not [event for event in events if isinstance(event, NodeLost)]
    placed = [event for event in events if isinstance(event, Placed)]
    assert not [event for event in events if isinstance(event, Finished) and event.ending.outcome == "lost"]
    assert sum(event.epoch == 1 for event in placed) == NODES + SUBMISSIONS
    assert max(event.at for event in placed if event.epoch == 1) <= killed + 15 * SECOND


def test_a_network_that_is_cut_for_all_costs_no_attempt() -> None:
    """Ten seconds, where a node is lost after three; what ran meanwhile is adopted."""
    cut = 30 * SECOND
    nodes = tuple(Node(name=f"n{number}", incarnation="0", cpu=2000, memory=2**33) for number in range(4))
    simulation = Simulation(
        Scenario(
            seed=1,
            nodes=nodes,
            acts=(Act(at=20 * SECOND, act="submit", key="old", document={"run": "work 60", "parts": 8}),),
            incidents=tuple(Incident(at=cut, fault="cut", lasts=10 * SECOND, node=node.name) for node in nodes),
            heals=cut + 20 * SECOND,
            ends=400 * SECOND,
        )
    )
    simulation.run()
    events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
    assert sum(isinstance(event, NodeSuspected) for event in events) == 4, "it was cut"
    assert not [event for event in events if isinstance(event, NodeLost)]
    assert [event.epoch for event in events if isinstance(event, Placed)] == [1] * 8
