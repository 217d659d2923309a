"""`GET /v1/changes`: the nodes and jobs that have changed after a revision, as the bearer may see them."""

from typing import Any

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
