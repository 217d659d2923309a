"""Nodes and jobs are listed in pages, so that a large fleet or a long queue does not keep the control plane from
anything else.
"""

import asyncio
from typing import Any

import pytest

from poise.client import Client
from poise.client import client as client_of
from poise.client.link import Link
from poise.config import PAGE, Home
from poise.decoding import json_decoder
from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import OWNER, Desk

NAMES = sorted(f"n{number}" for number in range(1, 13))
JOBS = [f"j{number}" for number in range(1, 13)]


@pytest.fixture(scope="module")
def desk() -> Desk:
    world = World(history=0).nodes(len(NAMES))
    for number in range(len(JOBS)):
        world.submit({"run": "true"}, tenant="ann" if number % 2 else "default")
    desk = Desk(world.cancel("j3").cancel("j4"))
    desk.token("ann", "ann", Role.VIEWER)
    return desk


def names(desk: Desk, query: str) -> list[str]:
    return [node["name"] for node in desk.call("GET", f"/v1/nodes{query}").value]


def test_a_page_holds_the_nodes_after_a_name(desk: Desk) -> None:
    assert names(desk, "") == NAMES
    assert names(desk, "?limit=5") == NAMES[:5]
    assert names(desk, f"?limit=5&after={NAMES[4]}") == NAMES[5:10]
    assert names(desk, "?after=n3x") == [name for name in NAMES if name > "n3x"]
    assert names(desk, f"?after={NAMES[-1]}") == []


def test_a_page_holds_the_jobs_after_one_by_its_number(desk: Desk) -> None:
    """Of those that the bearer may see, in order of submission: j2 before j10."""

    def jobs(query: str, who: str = OWNER) -> list[str]:
        return [job["id"] for job in desk.call("GET", f"/v1/jobs{query}", who=who).value]

    assert jobs("") == JOBS
    assert jobs("?limit=5") == JOBS[:5]
    assert jobs("?limit=5&after=j5") == JOBS[5:10]
    assert jobs("?limit=2&after=j4", "ann") == ["j6", "j8"]
    assert jobs("?all=true&after=j11", "ann") == ["j12"]
    assert jobs("?after=j12") == jobs("?after=j999") == []
    assert desk.call("GET", "/v1/jobs?after=train").status == 422


@pytest.mark.parametrize("limit", [0, -1, PAGE + 1, "many"])
@pytest.mark.parametrize("what", ["nodes", "jobs"])
def test_no_answer_lists_more_than_a_page(desk: Desk, what: str, limit: Any) -> None:
    assert desk.call("GET", f"/v1/{what}?limit={limit}").status == 422


@pytest.mark.parametrize("page", [1, 5, 6, len(NAMES), PAGE])
def test_the_client_lists_all_of_them(desk: Desk, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def call(_: Link, method: str, path: str, answer: Any) -> Any:
        asked.append(path)
        return json_decoder(answer).decode(desk.call(method, f"{path}&limit={page}").body)

    monkeypatch.setattr(client_of, "PAGE", page)
    monkeypatch.setattr(Link, "call", call)
    client = Client(Home(desk.home.root))
    assert [node.name for node in client.nodes()] == NAMES
    assert [job.id for job in client.jobs()] == JOBS
    assert len(asked) == 2 * (len(NAMES) // page + 1)


def test_a_list_of_many_nodes_does_not_hold_up_the_control_plane() -> None:
    """Rounds get their turns while it is made."""
    desk = Desk(World(check=False).nodes(500))

    def turns(limit: int) -> int:
        async def asked() -> int:
            count, answer = 0, asyncio.create_task(desk.ask("GET", f"/v1/nodes?limit={limit}"))
            while not answer.done():
                count += 1
                await asyncio.sleep(0)
            assert len((await answer).value) == limit
            return count

        return asyncio.run(asked())

    assert turns(500) >= turns(1) + 4
