"""Others wait for a machine that is busy: what runs there is preempted, if it may be, and comes back."""

from typing import Any

from poise.kernel.messages import Lend
from poise.model.events import Preempted
from poise.testing import World


def busy(*jobs: dict[str, Any]) -> World:
    """A node for each of these jobs, which takes all of it."""
    world = World().nodes(len(jobs), cpu=1)
    for number, fields in enumerate(jobs):
        world.job(f"a{number}", cpu=1, **fields).round().start(f"a{number}").after("1m")
    return world


def lend(world: World, *names: str) -> str:
    found: str = world.ask(Lend(world.request(), names or tuple(world.known))).replies[-1].value
    return found


def preempted(world: World) -> list[str]:
    return [event.unit for event in world.log if isinstance(event, Preempted)]


def test_the_node_whose_work_loses_least_is_emptied_though_there_is_no_room_elsewhere() -> None:
    world = busy({}, {}, {})
    latest = world.where("a2")
    assert [lend(world)] == latest
    assert preempted(world) == [world.unit("a2").id]
    world.finish("a2", outcome="stopped").after("5s")
    assert world.codes("a2") and world.status("a2") == "pending"
    assert world.ledger.nodes[latest[0]].condition == "emptying", "it is not placed there again"
    assert [world.status("a0"), world.status("a1")] == ["running", "running"]


def test_what_may_not_be_preempted_is_left_alone() -> None:
    world = busy({}, {"preemptible": False})
    at = world.where("a0")
    assert [lend(world)] == at
    world = busy({"preemptible": False}, {"preemptible": False})
    assert lend(world) == "" and preempted(world) == []
    assert {state.condition for state in world.ledger.nodes.values()} == {"up"}


def test_only_the_machines_that_would_do_are_asked_for() -> None:
    world = busy({}, {})
    [first] = world.where("a0")
    assert lend(world, first, "n99") == first
    assert preempted(world) == [world.unit("a0").id]
    assert lend(world, first) == "", "it is on its way"


def test_a_gang_yields_as_a_whole() -> None:
    world = World().nodes(2, cpu=1).job("g", workers=2, cpu=1).round().start("g.main[0]", "g.main[1]").after("1m")
    assert lend(world, "n2") == "n2"
    assert preempted(world) == [world.unit("g").id]
