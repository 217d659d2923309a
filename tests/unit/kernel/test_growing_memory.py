"""The memory limit of running work is raised in place where there is room, and lowered at the next attempt."""

from typing import Any

from poise.kernel.ledger import Ledger
from poise.kernel.messages import SetRules
from poise.model.messages import Beat, Desired
from poise.model.reports.jobs import Changed
from poise.model.tenants import HOME
from poise.testing import World

GIB = 1 << 30


def started(**fields: Any) -> World:
    world = World().nodes(2, cpu=4, memory="8GiB", grows=True)
    return world.job("a", resources={"memory": "2GiB"}, **fields).round().start("a")


def held(world: World, name: str) -> list[int]:
    """The limits of the attempts on a node, as it knows them."""
    return [launch.shape.memory for launch in world.held[name].values()]


def free(world: World, name: str) -> int:
    state = world.ledger.nodes[name]
    return state.node.memory - state.used_memory


def test_a_larger_limit_applies_at_once() -> None:
    world = started()
    name = world.where("a")[0]
    world.change("a", HOME, resources={"memory": "6GiB"})
    assert world.replies[-1].value == Changed(job="j1", units=1, running=0)
    assert held(world, name) == [6 * GIB]
    assert free(world, name) == 2 * GIB
    assert world.unit("a").next_spec is None
    world.finish("a")
    assert free(world, name) == 8 * GIB
    again = Ledger()
    for event in world.log:
        again.apply(event)
    assert again.encode() == world.ledger.encode()


def test_a_smaller_limit_applies_at_the_next_attempt() -> None:
    """The command may use more than that now."""
    world = started().change("a", HOME, resources={"memory": "1GiB"})
    name = world.where("a")[0]
    assert world.replies[-1].value == Changed(job="j1", units=1, running=1)
    assert held(world, name) == [2 * GIB]
    assert free(world, name) == 6 * GIB
    world.finish("a", outcome="lost").after("10s").round()
    assert held(world, world.where("a")[0]) == [GIB]


def test_a_limit_is_not_raised_beyond_the_room_the_quota_or_the_ability_of_a_node() -> None:
    world = World().nodes(1, cpu=4, memory="8GiB", grows=True)
    world.job("a", resources={"memory": "2GiB"}).job("b", resources={"memory": "5GiB"}).round().start("a", "b")
    world.change("a", HOME, resources={"memory": "4GiB"})
    assert held(world, "n1") == [2 * GIB, 5 * GIB]
    assert world.replies[-1].value == Changed(job="j1", units=1, running=1)
    world.finish("b").change("a", HOME, resources={"memory": "5GiB"})
    assert held(world, "n1") == [5 * GIB]

    limited = started().quota("default", memory="3GiB").change("a", HOME, resources={"memory": "3GiB"})
    assert held(limited, limited.where("a")[0]) == [3 * GIB]

    old = World().nodes(1, memory="8GiB").job("a", resources={"memory": "2GiB"}).round().start("a")
    old.change("a", HOME, resources={"memory": "4GiB"})
    assert held(old, "n1") == [2 * GIB]


def test_several_units_share_the_room_that_is_there() -> None:
    world = World().nodes(1, cpu=4, memory="8GiB", grows=True)
    world.job("a", workers=2, resources={"memory": "2GiB"}, **{"class": "train"})
    world.job("b", resources={"memory": "2GiB"}, **{"class": "train"}).round()
    world.start("a.main[0]", "a.main[1]", "b")
    rule = {
        "name": "oom",
        "mode": "on",
        "trigger": "running > 0",
        "actions": [{"adjust_memory_limit": {"to": "3GiB", "class": "train"}}],
    }
    world.ask(SetRules(world.request(), {"kind": "rules", "every": "5s", "rules": [rule]}))
    for _ in range(3):
        world.hear("n1", Beat(number=1)).after("5s")
    assert sorted(held(world, "n1")) == [2 * GIB, 3 * GIB, 3 * GIB], "a gang grows as a whole"
    assert free(world, "n1") == 0


def test_a_node_hears_of_it_again_after_a_loss_of_the_connection_and_of_the_control_plane() -> None:
    world = started()
    name = world.where("a")[0]
    world.disconnect(name).change("a", HOME, resources={"memory": "6GiB"})
    assert held(world, name) == [2 * GIB]
    world.restart().connect(name)
    assert held(world, name) == [6 * GIB]
    [limited] = [one for send in world.sent if isinstance(send.message, Desired) for one in send.message.limited][-1:]
    assert limited.memory == 6 * GIB
