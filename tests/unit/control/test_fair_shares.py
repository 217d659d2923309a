"""Fair shares over the API: set by an admin, shown to tenants, explained, and foreseen by the twin."""

from typing import Any

import pytest

from poise.model.tenants import Role
from poise.testing import World, node
from unit.control.desk import OWNER, Desk

SHARES: list[dict[str, Any]] = [
    {"tenant": "research", "guaranteed": {"gpu": 1}},
    {"tenant": "product", "guaranteed": {"gpu": 1}, "weight": 3},
    {"user": "ann", "in": "research"},
]


def document(shares: list[dict[str, Any]]) -> dict[str, Any]:
    return {"document": {"kind": "shares", "shares": shares}}


@pytest.fixture
def desk() -> Desk:
    desk = Desk(World(check=False).join(node("n1", cpu=16, gpus=2)))
    desk.token("researcher", "research", Role.VIEWER)
    desk.token("producer", "product", Role.VIEWER)
    assert desk.call("PUT", "/v1/shares", document(SHARES)).status == 202
    return desk


def rows(desk: Desk, who: str = OWNER) -> dict[str, Any]:
    return {row["name"]: row for row in desk.call("GET", "/v1/shares", who=who).value["shares"]}


def test_what_each_share_holds_and_who_is_served_first(desk: Desk) -> None:
    for number in range(3):
        desk.world.job(f"r{number}", tenant="research", gpu=1)
    desk.world.job("p", tenant="product", gpu=1).round()
    found = rows(desk)
    assert (found["research"]["held"], found["research"]["borrows"]) == ({"gpu": 1.0}, 0.0)
    assert (found["research"]["share"], found["product"]["share"]) == (0.25, 0.75)
    assert (found["product"]["held"], found["research"]["waiting"]) == ({"gpu": 1.0}, 2)
    assert found["ann"]["within"] == "research"


def test_the_shares_of_each_level_add_up_to_all_of_it(desk: Desk) -> None:
    def levels() -> dict[str, float]:
        found: dict[str, float] = {}
        for row in desk.call("GET", "/v1/shares").value["shares"]:
            found[row["within"]] = found.get(row["within"], 0.0) + row["share"]
        return found

    assert levels() == pytest.approx({"": 1.0, "research": 1.0})
    assert rows(desk)["others"]["share"] == 0.0, "it holds and owes nothing"
    desk.world.job("x", tenant="another", gpu=1).round()
    assert levels() == pytest.approx({"": 1.0, "research": 1.0})
    assert rows(desk)["others"]["share"] > 0.0


def test_a_tenant_sees_all_tenants_and_only_its_own_users(desk: Desk) -> None:
    assert {"research", "product", "ann"} <= rows(desk, "researcher").keys()
    assert rows(desk, "producer").keys() == {"research", "product", "others"}


def test_a_file_that_is_wrong_changes_nothing(desk: Desk) -> None:
    refused = desk.call("PUT", "/v1/shares", document([{"group": "a", "in": "b"}, {"group": "b", "in": "a"}]))
    assert refused.code == "E106"
    assert "ann" in rows(desk)
    assert desk.call("PUT", "/v1/shares", document([])).status == 202
    assert rows(desk) == {}


def test_more_than_there_is_cannot_be_guaranteed_and_is_said(desk: Desk) -> None:
    told = desk.call("PUT", "/v1/shares", document([{"tenant": "research", "guaranteed": {"gpu": 5}}])).value
    assert told["notes"] == ["5 gpu guaranteed, 2 there"]


def test_explain_says_who_is_served_first_and_until_when(desk: Desk) -> None:
    desk.call("PUT", "/v1/shares", document([{"tenant": "research"}, {"tenant": "product"}]))
    world = desk.world.job("r1", tenant="research", gpu=2).round().start("r1").after("6h")
    world.job("r2", tenant="research", gpu=1).job("p1", tenant="product", gpu=1)
    waiting = desk.call("GET", "/v1/jobs/j2/explanation").value["waiting"][0]["share"]
    assert waiting == "share `product` is served first: it has used 0 % of its share of late, `research` 200 %"
    first = desk.call("GET", "/v1/jobs/j3/explanation").value["waiting"][0]["share"]
    assert first.startswith("its share `product` is served first")


def test_other_shares_are_foreseen_and_nothing_changes(desk: Desk) -> None:
    for number in range(4):
        desk.world.job(f"r{number}", tenant="research", gpu=1, expect="1h")
    desk.world.job("p", tenant="product", gpu=1, expect="1h").round()
    before = desk.world.ledger.revision
    told = desk.call("POST", "/v1/shares/foreseen", document([{"tenant": "product", "guaranteed": {"gpu": 2}}])).value
    assert {row["name"] for row in told["shares"]} == {"others"}
    assert desk.world.ledger.revision == before
