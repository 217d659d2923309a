"""A time limit counts from the start of an attempt, on its node, whatever dies meanwhile."""

from typing import Any

import msgspec

from poise.drivers.nemeses import shipped
from poise.engine.scenario import Act, Incident, Scenario, scenario_of
from poise.engine.seeds import nemeses_of
from poise.engine.simulation import Simulation
from poise.kernel.messages import ChangeJob, Reply
from poise.model.events import Finished, decode_event
from poise.model.record import unseal
from poise.model.resources import Node
from poise.model.spec import compile_spec
from poise.units import SECOND


def killed_beside(seconds: int) -> Simulation:
    """A command that may take 10 s and would take so many; control plane and agent are killed while it runs."""
    return Simulation(
        Scenario(
            seed=1,
            nodes=(Node(name="n1", incarnation="0", cpu=2000, memory=2**33),),
            acts=(Act(at=SECOND, act="submit", key="k", document={"run": f"work {seconds}", "time-limit": "10s"}),),
            incidents=(
                Incident(at=4 * SECOND, fault="kill-control"),
                Incident(at=6 * SECOND, fault="kill-agent", node="n1"),
            ),
            heals=20 * SECOND,
            ends=400 * SECOND,
        )
    )


def test_it_ends_in_time_though_control_plane_and_agent_were_killed() -> None:
    simulation = killed_beside(seconds=40)
    simulation.run()
    events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
    [ended] = [event.ending for event in events if isinstance(event, Finished)]
    assert ended.outcome == "timeout"
    assert ended.run == 10 * SECOND
    assert simulation.judge.starts == 1


def test_a_limit_that_was_changed_holds_though_who_heard_of_it_was_killed() -> None:
    simulation = killed_beside(seconds=90)
    like = compile_spec({"run": "true", "time-limit": "30s"}, wall=0)

    replies: list[Reply] = []

    def change() -> None:
        job = simulation.people.jobs["k"]
        make = lambda request: ChangeJob(request, job, like, ("time-limit",))  # noqa: E731
        assert simulation.home.control.ask(make, replies.append)

    simulation.timeline.call_at(3 * SECOND, change)
    simulation.run()
    assert [reply.error for reply in replies] == [None]
    events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
    [ended] = [event.ending for event in events if isinstance(event, Finished)]
    assert (ended.outcome, ended.run) == ("timeout", 30 * SECOND)


def limited(document: dict[str, Any]) -> dict[str, Any]:
    """The same job with a time limit, and a number of retries that is about any failure."""
    if "tasks" in document:
        return document | {"tasks": {name: limited(task) for name, task in document["tasks"].items()}}
    retry = {name: value for name, value in document.get("retry", {}).items() if name != "when"}
    return document | {"time-limit": "5s", "retry": retry}


def test_the_promises_hold_where_limits_end_work_and_losses_do_not_count() -> None:
    ended: set[str] = set()
    beside = 0
    for seed in range(1, 5):
        drawn = scenario_of(seed, nemeses_of(seed, shipped()))
        acts = tuple(
            msgspec.structs.replace(act, document=limited(act.document)) if act.act == "submit" else act
            for act in drawn.acts
        )
        simulation = Simulation(msgspec.structs.replace(drawn, acts=acts))
        simulation.run()
        events = [decode_event(unseal(record)) for record in simulation.disk.sound(0, simulation.disk.synced)]
        ended |= {event.ending.outcome for event in events if isinstance(event, Finished)}
        beside += sum(unit.lost for job in simulation.judge.ledger.jobs.values() for unit in job.units)
    assert {"timeout", "lost", "done"} <= ended
    assert beside > 0, "no loss that does not count"
