"""The places of a job's running tasks, as a gateway is told them."""

from poise.kernel.endpoints import endpoints
from poise.model.reports.services import Endpoint
from poise.testing import World


def places(world: World, job: str) -> tuple[Endpoint, ...]:
    return endpoints(world.ledger.jobs[job], lambda node: f"10.0.0.{node[-1]}").endpoints


def test_running_tasks_have_the_addresses_of_their_nodes_and_the_numbers_of_their_parts() -> None:
    world = World().nodes(2, cpu=1).job("a", cpu=1, parts=3).round()
    assert places(world, "j1") == (), "they are placed, and have not started"
    before = endpoints(world.ledger.jobs["j1"], str).known
    for unit in world.ledger.jobs["j1"].existing[:2]:
        world.start(unit.id)
    found = places(world, "j1")
    assert [(one.part, one.epoch) for one in found] == [(0, 1), (1, 1)]
    assert {one.address for one in found} == {"10.0.0.1", "10.0.0.2"}
    assert endpoints(world.ledger.jobs["j1"], str).known != before


def test_of_a_gang_only_the_first_member_serves() -> None:
    world = World().nodes(2, cpu=1).job("a", cpu=1, workers=2).round()
    world.start(*(f"a.{task.name}" for task in world.ledger.jobs["j1"].units[0].spec.tasks))
    assert len(places(world, "j1")) == 1


def test_a_task_that_is_asked_to_end_serves_no_more() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).round().start("a")
    assert len(places(world, "j1")) == 1
    world.cancel("a")
    assert places(world, "j1") == ()


def test_while_a_node_has_not_connected_the_answer_is_not_complete() -> None:
    """After a restart of the control plane: a gateway then keeps what it knows."""
    world = World().nodes(1, cpu=1).job("a", cpu=1).round().start("a")
    report = endpoints(world.ledger.jobs["j1"], lambda node: None)
    assert (report.complete, report.endpoints) == (False, ())
    assert endpoints(world.ledger.jobs["j1"], str).complete


def test_a_job_that_is_not_there_has_no_places() -> None:
    assert endpoints(None, str).endpoints == ()
