"""Nodes are listed in pages, so that a large fleet does not keep the control plane from anything else."""

from typing import Any

import pytest

from poise import client as client_of
from poise.client import Client
from poise.config import PAGE, Home
from poise.decoding import json_decoder
from poise.testing import World
from unit.control.desk import Desk

NAMES = sorted(f"n{number}" for number in range(1, 13))


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk(World().nodes(len(NAMES)))


def names(desk: Desk, query: str) -> list[str]:
    return [node["name"] for node in desk.call("GET", f"/v1/nodes{query}").value]


def test_a_page_holds_the_nodes_after_a_name(desk: Desk) -> None:
    assert names(desk, "") == NAMES
    assert names(desk, "?limit=5") == NAMES[:5]
    assert names(desk, f"?limit=5&after={NAMES[4]}") == NAMES[5:10]
    assert names(desk, "?after=n3x") == [name for name in NAMES if name > "n3x"]
    assert names(desk, f"?after={NAMES[-1]}") == []


@pytest.mark.parametrize("limit", [0, -1, PAGE + 1, "many"])
def test_no_answer_lists_more_than_a_page(desk: Desk, limit: Any) -> None:
    assert desk.call("GET", f"/v1/nodes?limit={limit}").status == 422


@pytest.mark.parametrize("page", [1, 5, 6, len(NAMES), PAGE])
def test_the_client_lists_all_of_them(desk: Desk, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def call(_: Client, method: str, path: str, answer: Any) -> Any:
        asked.append(path)
        return json_decoder(answer).decode(desk.call(method, f"{path}&limit={page}").body)

    monkeypatch.setattr(client_of, "PAGE", page)
    monkeypatch.setattr(Client, "_call", call)
    assert [node.name for node in Client(Home(desk.home.root)).nodes()] == NAMES
    assert len(asked) == len(NAMES) // page + 1
