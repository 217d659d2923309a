"""`GET /v1/jobs`, by what is asked for."""

import pytest

from poise.testing import World
from unit.control.desk import Desk

JOBS = ("train-1", "train-2", "eval", "")


def desk() -> Desk:
    """A job failed, one is done, one runs and one waits, in this order; the first is ann's."""
    world = World().nodes(1, cpu=1)
    for name in JOBS:
        world.submit({"run": "true"} | ({"name": name} if name else {}), user="ann" if name == "train-1" else "bob")
    world.round().start("train-1").finish("train-1", outcome="failed")
    world.round().start("train-2").finish("train-2").round().start("eval")
    return Desk(world)


@pytest.mark.parametrize(
    ("asked", "jobs"),
    [
        ("", ["j1", "j2", "j3", "j4"]),
        ("status=failed", ["j1"]),
        ("status=running&status=pending", ["j3", "j4"]),
        ("name=train-*", ["j1", "j2"]),
        ("name=j4", ["j4"]),
        ("name=train-", []),
        ("user=bob", ["j2", "j3", "j4"]),
        ("latest=2", ["j3", "j4"]),
        ("latest=3&limit=1&after=j2", ["j3"]),
        ("user=bob&latest=1&status=done", ["j2"]),
    ],
)
def test_jobs_are_listed_by_what_is_asked_for(asked: str, jobs: list[str]) -> None:
    told = desk().call("GET", f"/v1/jobs?all=true&{asked}").value
    assert [job["id"] for job in told] == jobs


@pytest.mark.parametrize("asked", ["status=lost", "limit=-1", "limit=x", f"name={'x' * 129}"])
def test_what_cannot_be_is_refused(asked: str) -> None:
    assert desk().call("GET", f"/v1/jobs?{asked}").status == 422
