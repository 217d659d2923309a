"""`GET /v1/changes`: the nodes and jobs that have changed after a revision, as the bearer may see them."""

import random
from typing import Any

import pytest

from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import OWNER, Desk


def names(told: Any) -> tuple[list[str], list[str]]:
    return [node["name"] for node in told["nodes"]], [job["id"] for job in told["jobs"]]


def test_only_what_has_changed_is_told_as_the_lists_tell_it() -> None:
    desk = Desk(World().nodes(3, cpu=1))
    desk.world.submit({"run": "true", "name": "first", "resources": {"cpu": 1}}).round().start("first")
    before = desk.world.ledger.revision
    assert names(desk.call("GET", f"/v1/changes?after={before}").value) == ([], [])
    desk.world.submit({"run": "true", "name": "second", "resources": {"cpu": 1}}).round()
    told = desk.call("GET", f"/v1/changes?after={before}").value
    assert names(told) == (["n2"], ["j2"])
    assert told["revision"] == desk.world.ledger.revision
    assert told["nodes"] == [node for node in desk.call("GET", "/v1/nodes").value if node["name"] == "n2"]
    assert told["jobs"] == [job for job in desk.call("GET", "/v1/jobs").value if job["id"] == "j2"]


def test_an_attempt_that_ends_changes_its_node() -> None:
    desk = Desk(World().nodes(1, cpu=1))
    desk.world.submit({"run": "true", "name": "first", "resources": {"cpu": 1}}).round().start("first")
    before = desk.world.ledger.revision
    desk.world.finish("first")
    told = desk.call("GET", f"/v1/changes?after={before}").value
    assert names(told) == (["n1"], ["j1"])
    assert told["nodes"][0]["running"] == 0
    assert told["jobs"][0]["status"] == "done"


def test_a_tenant_sees_the_nodes_that_others_use_and_none_of_their_jobs() -> None:
    desk = Desk(World().nodes(1, cpu=1))
    desk.token("guest", "theirs", Role.VIEWER)
    before = desk.world.ledger.revision
    desk.world.submit({"run": "true", "resources": {"cpu": 1}}).round()
    told = desk.call("GET", f"/v1/changes?after={before}", who="guest").value
    assert names(told) == (["n1"], [])
    assert told["gone_jobs"] == []
    assert names(desk.call("GET", f"/v1/changes?after={before}", who=OWNER).value) == (["n1"], ["j1"])


def test_a_revision_that_is_far_away_or_not_there_yet_means_everything() -> None:
    desk = Desk(World().nodes(1, cpu=1))
    revision = desk.world.ledger.revision
    assert desk.call("GET", f"/v1/changes?after={revision + 1}").value["whole"]
    assert desk.call("GET", "/v1/changes?after=-5000").value["whole"]


def test_jobs_that_are_removed_are_gone() -> None:
    desk = Desk(World().nodes(1, cpu=1))
    desk.world.submit({"run": "true", "name": "first", "resources": {"cpu": 1}}).round().start("first").finish("first")
    before = desk.world.ledger.revision
    assert desk.call("POST", "/v1/remove", {"jobs": ["first"]}).status == 202
    assert desk.call("GET", f"/v1/changes?after={before}").value["gone_jobs"] == ["j1"]


ACTIONS = ("submit", "submit", "round", "start", "start", "finish", "cancel", "drain", "hold", "lose")


def everything(desk: Desk) -> tuple[dict[str, Any], dict[str, Any]]:
    nodes, jobs = desk.call("GET", "/v1/nodes").value, desk.call("GET", "/v1/jobs?all=true").value
    return {node["name"]: node for node in nodes}, {job["id"]: lasting(job) for job in jobs}


def lasting(job: dict[str, Any]) -> dict[str, Any]:
    """Without its age."""
    return {field: value for field, value in job.items() if field != "elapsed"}


@pytest.mark.parametrize("seed", range(20))
def test_changes_add_up_to_what_the_lists_say(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 — a world of a seed
    desk = Desk(World().nodes(4, cpu=2))
    nodes, jobs = everything(desk)
    revision, number = desk.world.ledger.revision, 0
    for _ in range(60):
        running = [task for task, of in tasks_of(desk) if of.status == "running"]
        queued = [task for task, of in tasks_of(desk) if of.status == "queued"]
        match chance.choice(ACTIONS):
            case "submit":
                number += 1
                job = {"run": "true", "name": f"job-{number}", "resources": {"cpu": chance.choice((1, 2))}}
                desk.world.submit(job)
            case "round":
                desk.world.round()
            case "start" if queued:
                desk.world.start(chance.choice(queued))
            case "finish" if running:
                desk.world.finish(chance.choice(running), outcome=chance.choice(("done", "failed")))
            case "cancel" if number:
                desk.call("POST", f"/v1/jobs/j{chance.randint(1, number)}/cancel")
            case "hold" if number:
                desk.call("POST", f"/v1/jobs/j{chance.randint(1, number)}/{chance.choice(('hold', 'release'))}")
            case "drain":
                desk.call("POST", f"/v1/nodes/n{chance.randint(1, 4)}/drain", {"on": chance.random() < 0.5})
            case "lose":
                desk.call("POST", "/v1/nodes/lost", {"nodes": [f"n{chance.randint(1, 4)}"]})
        told = desk.call("GET", f"/v1/changes?after={revision}").value
        revision = told["revision"]
        nodes |= {node["name"]: node for node in told["nodes"]}
        jobs |= {job["id"]: lasting(job) for job in told["jobs"]}
        all_nodes, all_jobs = everything(desk)
        assert differing(nodes, all_nodes) == differing(jobs, all_jobs) == {}


def tasks_of(desk: Desk) -> list[tuple[str, Any]]:
    units = [unit for job in desk.world.ledger.jobs.values() for unit in job.units]
    return [
        (f"{unit.job}.{of.name}", task) for unit in units for of, task in zip(unit.spec.tasks, unit.tasks, strict=True)
    ]


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: (one.get(name), value) for name, value in other.items() if value != one.get(name)}
