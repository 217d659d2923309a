"""A time limit counts from the start of an attempt, on its node, whatever dies meanwhile."""

from poise.engine.scenario import Act, Incident, Scenario
from poise.engine.simulation import Simulation
from poise.model.events import Finished, decode_event
from poise.model.record import unseal
from poise.model.resources import Node
from poise.units import SECOND


def test_it_ends_in_time_though_control_plane_and_agent_were_killed() -> None:
    simulation = Simulation(
        Scenario(
            seed=1,
            nodes=(Node(name="n1", incarnation="0", cpu=2000, memory=2**33),),
            acts=(Act(at=SECOND, act="submit", key="k", document={"run": "work 40", "time-limit": "10s"}),),
            incidents=(
                Incident(at=4 * SECOND, fault="kill-control"),
                Incident(at=6 * SECOND, fault="kill-agent", node="n1"),
            ),
            heals=20 * SECOND,
            ends=400 * SECOND,
        )
    )
    simulation.run()
    events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
    [ended] = [event.ending for event in events if isinstance(event, Finished)]
    assert ended.outcome == "timeout"
    assert ended.run == 10 * SECOND
    assert simulation.judge.starts == 1
