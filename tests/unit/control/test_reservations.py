"""Reservations over the API: made by operators, seen by tenants as far as they may, and their chance stated."""

from typing import Any

import pytest

from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import OWNER, Desk


def document(*reservations: dict[str, Any]) -> dict[str, Any]:
    return {"document": {"kind": "reservations", "reservations": list(reservations)}}


def night(**fields: Any) -> dict[str, Any]:
    return {"name": "night", "tenant": "team-a", "nodes": 1, "from": "+1h", "for": "2h"} | fields


@pytest.fixture
def desk() -> Desk:
    desk = Desk(World(check=False).nodes(2))
    desk.token("ann", "team-a", Role.VIEWER)
    desk.token("bob", "team-b", Role.VIEWER)
    desk.token("sub", "team-a", Role.SUBMITTER)
    return desk


def listed(desk: Desk, who: str = OWNER) -> Any:
    return desk.call("GET", "/v1/reservations", who=who).value


def test_a_tenant_sees_of_the_reservations_of_others_only_when_and_where(desk: Desk) -> None:
    made = desk.call("POST", "/v1/reservations", document(night()))
    assert (made.status, made.value[0]["places"]) == (202, ["n1"])
    [own], [other] = listed(desk, "ann"), listed(desk, "bob")
    assert (own["name"], own["tenant"], own["wants"]) == ("night", "team-a", "1 node")
    assert (other["name"], other["tenant"], other["wants"]) == ("", "", "")
    assert (other["id"], other["places"], other["begins"]) == (own["id"], own["places"], own["begins"])


def test_only_operators_reserve_and_cancel(desk: Desk) -> None:
    assert desk.call("POST", "/v1/reservations", document(night()), who="sub").status == 403
    desk.call("POST", "/v1/reservations", document(night()))
    assert desk.call("DELETE", "/v1/reservations/night", who="sub").status == 403
    assert desk.call("DELETE", "/v1/reservations/night").value == {"reservation": "r1"}
    assert listed(desk) == []


def test_a_file_is_reserved_whole_or_not_at_all(desk: Desk) -> None:
    refused = desk.call("POST", "/v1/reservations", document(night(), night(name="more", nodes=2)))
    assert (refused.status, refused.code) == (409, "E110")
    assert listed(desk) == []
    both = document(night(), night(name="later", nodes=2, **{"from": "+4h"}))
    assert [one["name"] for one in desk.call("POST", "/v1/reservations", both).value] == ["night", "later"]


def test_every_error_of_a_file_is_reported_with_its_field(desk: Desk) -> None:
    refused = desk.call("POST", "/v1/reservations", document(night(nodes=-1), night(name="b", every="FREQ=DAILY")))
    fields = {refused.value["error"]["field"], *(other["field"] for other in refused.value["error"].get("others", ()))}
    assert fields == {"reservations[0].nodes", "reservations[1].every"}


def test_the_chance_of_a_soft_reservation_is_small_behind_long_work_and_large_on_an_idle_node(desk: Desk) -> None:
    desk.world.job("long", cpu=2, expect="10h").round().start("long")
    [busy] = desk.world.where("long")
    idle = {"n1": "n2", "n2": "n1"}[busy]
    for name, node in (("late", busy), ("free", idle)):
        desk.call("POST", "/v1/reservations", document(night(name=name, nodes=[node], soft=True)))
    late, free = (desk.call("GET", f"/v1/reservations/{name}").value for name in ("late", "free"))
    assert late["chance"] < 200 < 800 < free["chance"]
    assert free["futures"] > 0


def test_a_reservation_that_nobody_made_is_not_found(desk: Desk) -> None:
    assert desk.call("GET", "/v1/reservations/nigth").code == "E120"
    assert desk.call("DELETE", "/v1/reservations/nigth").code == "E120"


def test_a_quota_with_hours_is_shown_with_those_in_force(desk: Desk) -> None:
    set_ = desk.call(
        "PUT", "/v1/quotas/team-a", {"gpu": 1, "hours": ["00:00-24:00 gpu=8"], "time_zone": "Europe/Zurich"}
    )
    assert set_.status == 202
    desk.world.after("1s")
    [quota] = desk.call("GET", "/v1/quotas").value
    assert (quota["gpu"], quota["now_in"], quota["time_zone"]) == (8, "00:00-24:00 gpu=8", "Europe/Zurich")
    wrong = desk.call("PUT", "/v1/quotas/team-a", {"gpu": 1, "hours": ["night gpu=8"]})
    assert (wrong.code, wrong.value["error"]["field"]) == ("E103", "hours")
    assert desk.call("PUT", "/v1/quotas/team-a", {"gpu": 1, "time_zone": "Mars/Olympus"}).code == "E103"
