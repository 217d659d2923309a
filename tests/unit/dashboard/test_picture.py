"""The picture of a fleet: what is told of it once, and what of it has changed."""

import msgspec

from poise.dashboard.picture import MAX_JOBS, Picture, apply
from poise.kernel.explain import job_report, node_report
from poise.kernel.overview import Rates, overview
from poise.model.reports.jobs import JobReport
from poise.model.reports.nodes import NodeReport
from poise.model.reports.status import ChangesReport, Overview
from poise.model.tenants import HOME
from poise.testing import World
from poise.units import SECOND

NOW = 1_700_000_000.0


def overview_of(world: World, later: int = 0) -> Overview:
    return overview(world.ledger, world.now + later, lambda _: None, Rates(), HOME, accepting=True)


def nodes_of(world: World) -> list[NodeReport]:
    return [node_report(state) for state in world.ledger.nodes.values()]


def jobs_of(world: World) -> list[JobReport]:
    return [job_report(world.ledger, job, world.now, tasks=False) for job in world.ledger.jobs.values()]


def drawn(world: World) -> Picture:
    picture = Picture()
    picture.overview_is(overview_of(world, later=SECOND), NOW)
    picture.nodes_are(nodes_of(world))
    picture.jobs_are(jobs_of(world))
    return picture


def two_jobs() -> World:
    """One runs, one waits."""
    world = World().nodes(2, cpu=1)
    for name in ("first", "second", "third"):
        world.submit({"run": "true", "name": name, "resources": {"cpu": 1}})
    return world.round().start("first").start("second")


def test_everything_is_told_once() -> None:
    picture = drawn(two_jobs())
    told = picture.delta()
    assert {part: sorted(records) for part, records in told.items() if part != "head"} == {
        "nodes": ["n1", "n2"],
        "jobs": ["j1", "j2", "j3"],
        "waiting": ["j3.main"],
        "running": ["j1.main", "j2.main"],
    }
    assert picture.delta() == {}


def test_time_alone_changes_nothing() -> None:
    world = two_jobs()
    picture = drawn(world)
    picture.delta()
    picture.overview_is(overview_of(world, later=61 * SECOND), NOW + 60.3)
    picture.jobs_are(jobs_of(world))
    assert picture.delta() == {}


def test_a_change_tells_the_records_that_differ_and_those_that_are_gone() -> None:
    world = two_jobs()
    picture = drawn(world)
    picture.delta()
    world.finish("first").round()
    world.start("third")
    picture.overview_is(overview_of(world), NOW)
    picture.merge(
        ChangesReport(
            revision=1, nodes=tuple(nodes_of(world)), jobs=tuple(jobs_of(world)), gone_nodes=(), gone_jobs=("j2",)
        )
    )
    told = picture.delta()
    assert set(told["jobs"]) == {"j1", "j2", "j3"}
    assert told["jobs"]["j2"] is None
    assert told["jobs"]["j1"].status == "done"
    assert told["waiting"] == {"j3.main": None}
    assert told["running"]["j1.main"] is None
    assert told["running"]["j3.main"].node in ("n1", "n2")


def test_deltas_add_up_to_the_picture() -> None:
    world, state = two_jobs(), dict[str, dict[str, object]]()
    picture = drawn(world)
    apply(state, picture.delta())
    world.finish("first").round()
    picture.overview_is(overview_of(world, later=SECOND), NOW)
    picture.jobs_are(jobs_of(world))
    picture.nodes_are(nodes_of(world))
    apply(state, picture.delta())
    anew = drawn(world).delta()
    assert {part: records for part, records in state.items() if records} == anew


def test_a_page_of_nodes_replaces_those_between_its_names_only() -> None:
    nodes = nodes_of(World().nodes(6, cpu=1))
    picture = Picture()
    picture.nodes_are(nodes)
    picture.delta()
    busy = msgspec.structs.replace(nodes[2], running=1)
    picture.nodes_are([busy], "n2", "n4")  # n4 has gone
    assert {name: cell and cell.running for name, cell in picture.delta()["nodes"].items()} == {"n3": 1, "n4": None}
    picture.nodes_are([], "n5")
    assert picture.delta() == {"nodes": {"n6": None}}


def test_jobs_are_bounded_and_the_oldest_ended_ones_leave() -> None:
    done = jobs_of(two_jobs().finish("first"))[0]
    picture = Picture()
    for number in range(MAX_JOBS + 10):
        job = msgspec.structs.replace(done, id=f"j{number}", ended=NOW + number)
        picture.merge(ChangesReport(revision=number, jobs=(job,)))
    state: dict[str, dict[str, object]] = {}
    apply(state, picture.delta())
    kept = state["jobs"]
    assert len(kept) == MAX_JOBS
    assert "j9" not in kept
    assert "j10" in kept
