"""Many classes of work that nothing is known of: their units share queues."""

from typing import Any

import pytest

from poise.kernel.ledger import queues
from poise.testing import World


def campaign(world: World, count: int, first: int = 0, **fields: Any) -> World:
    """Submit commands that are classes of their own, as by default those of `./align sample17.fa` are."""
    for number in range(first, first + count):
        world.job(f"t{number}", **{"class": f"align sample{number}", "cpu": 1} | fields)
    return world


def waiting(world: World) -> list[list[str]]:
    """Return the jobs that wait, by queue, in the order of submission of the first."""
    found = ([unit.job for unit in queue.values()] for queue in world.ledger.queues.values())
    names = {name: job.name for name, job in world.ledger.jobs.items()}
    return sorted(([names[job] for job in jobs] for jobs in found), key=lambda jobs: int(jobs[0][1:]))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "OWN", 2)


@pytest.mark.usefixtures("few")
def test_a_campaign_of_different_commands_makes_few_queues() -> None:
    world = campaign(World().nodes(1, cpu=1).job("first", cpu=1).round(), 12)
    assert waiting(world) == [["t0"], ["t1"], [f"t{number}" for number in range(2, 12)]]
    assert sum(world.controller.snapshot(world.now).backlog.values()) == 12
    world.round()
    assert world.codes("t11") == world.codes("t0") == ["CPU_BUSY"]
    world.restart().ledger.check()


@pytest.mark.usefixtures("few")
def test_what_declares_about_the_same_run_time_is_served_in_order() -> None:
    world = campaign(World().nodes(1, cpu=1), 6, expect="1m")
    for number in range(6):
        assert world.round().status(f"t{number}") == "placed"
        world.start(f"t{number}").finish(f"t{number}")


@pytest.mark.usefixtures("few")
def test_run_times_priorities_shapes_and_tenants_are_apart() -> None:
    world = campaign(World().nodes(1, cpu=2), 2)
    campaign(world, 2, 2, expect="1s")
    campaign(world, 1, 4, expect="1h")
    campaign(world, 1, 5, priority="low")
    campaign(world, 1, 6, cpu=2)
    campaign(world, 1, 7, tenant="ann")
    campaign(world, 1, 8, expect="1.01s")
    assert waiting(world) == [["t0"], ["t1"], ["t2", "t3", "t8"], ["t4"], ["t5"], ["t6"], ["t7"]]


@pytest.mark.usefixtures("few")
def test_a_class_of_which_something_is_known_gets_its_own_queue() -> None:
    world = campaign(World().nodes(1, cpu=1), 1).round().start("t0")
    for number, name in enumerate("abcacd", 1):
        world.job(f"t{number}", **{"class": name, "cpu": 1})
    assert waiting(world) == [["t1", "t4"], ["t2"], ["t3", "t5", "t6"]]
    for number in range(3):
        world.finish(f"t{number}").round().start(f"t{number + 1}")
        world.ledger.check()
    assert waiting(world) == [["t4"], ["t5", "t6"]]
    world.finish("t3")
    assert waiting(world) == [["t4"], ["t5"], ["t6"]]
    world.restart().ledger.check()


@pytest.mark.usefixtures("few")
def test_what_is_changed_or_retried_joins_a_queue_again() -> None:
    world = campaign(World().nodes(1, cpu=1), 5, retry={"limit": 2, "backoff": 0})
    assert waiting(world) == [["t0"], ["t1"], ["t2", "t3", "t4"]]
    world.change("t3", priority="urgent")
    assert waiting(world) == [["t0"], ["t1"], ["t2", "t4"], ["t3"]]
    assert world.round().status("t3") == "placed"
    world.start("t3").finish("t3", outcome="failed")
    assert waiting(world) == [["t0"], ["t1"], ["t2", "t4"], ["t3"]]
    world.cancel("t2").cancel("t4").restart().ledger.check()
