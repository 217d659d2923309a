"""Nothing is placed on a node that ends before it would."""

import msgspec
import pytest

from poise.model.messages import Hello
from poise.testing import World, node
from poise.units import HOUR, MINUTE, SECOND


def ending(world: World, name: str, left: int, cpu: float = 1) -> World:
    """A node that joins, and ends after `left` nanoseconds."""
    world.join(msgspec.structs.replace(node(name, cpu=cpu), until=world.now + left))
    return world


@pytest.mark.parametrize(
    "policy", ["poise", "fifo", "static", "sjf", "edf", "goodput", "elasticflow", "max-min", "tiresias"]
)
def test_work_goes_where_it_can_end_in_time_whatever_the_policy(policy: str) -> None:
    world = ending(ending(World(policy), "n1", 12 * MINUTE), "n2", HOUR)
    world.job("long", cpu=1, expect="10m").round()
    assert world.where("long") == ["n2"]


def test_work_that_can_end_in_time_nowhere_waits_and_says_what_it_needs() -> None:
    world = ending(World(), "n1", 12 * MINUTE).job("long", cpu=1, expect="10m").round()
    [reason] = world.reasons("long")
    assert (reason.code, reason.subject, reason.have, reason.need) == ("NODE_ENDS", "n1", "12m0s", "20m0s")
    assert reason.sentence() == "n1: ends in 12m0s; this needs 20m0s"
    world.job("brief", cpu=1, expect="1m").round()
    assert world.where("brief") == ["n1"]


def test_a_gang_is_placed_on_nodes_that_all_last() -> None:
    world = World()
    for number, left in enumerate((5, 60, 60), start=1):
        ending(world, f"n{number}", left * MINUTE)
    world.job("gang", cpu=1, workers=2, expect="10m").round()
    assert sorted(world.where("gang")) == ["n2", "n3"]


def test_work_that_saves_itself_needs_a_node_for_some_checkpoints_only() -> None:
    world = ending(World(), "n1", 12 * MINUTE)
    world.job("train", cpu=1, expect="10h", checkpoint="1m").round()
    assert world.where("train") == ["n1"]


def test_work_whose_run_time_nobody_knows_is_placed() -> None:
    world = ending(World(), "n1", 2 * MINUTE).job("a", cpu=1).round()
    assert world.where("a") == ["n1"]


def test_nothing_is_placed_on_a_node_after_its_end() -> None:
    world = ending(World(), "n1", MINUTE).after("2m").job("a", cpu=1).round()
    assert world.codes("a") == ["NODE_ENDS"]


def test_a_node_says_how_long_it_lasts_and_once_more_about_the_same_changes_nothing() -> None:
    world = World().nodes(1, cpu=1)
    plain = world.known["n1"]
    world.hear("n1", Hello(node=plain, left=10 * MINUTE))
    until = world.ledger.nodes["n1"].node.until
    assert until == world.now + 10 * MINUTE
    world.hear("n1", Hello(node=plain, left=10 * MINUTE + SECOND))
    assert world.ledger.nodes["n1"].node.until == until
    world.hear("n1", Hello(node=plain, left=30 * MINUTE))
    assert world.ledger.nodes["n1"].node.until == world.now + 30 * MINUTE
    world.hear("n1", Hello(node=plain))
    assert world.ledger.nodes["n1"].node.until == 0
