"""Gateways report services whose replicas are jobs of their tenant, and reports that are well formed."""

import json
from typing import Any

import pytest

from poise.kernel.messages import SetRules
from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import Answer, Desk

PATH = "/v1/rules/orders"
RULE = {
    "name": "slow",
    "mode": "on",
    "trigger": "service_waiting > 3",
    "scope": ["ann:chat", "bob:chat"],
    "actions": [{"scale_up_replicas": {"by": 2}}, {"notify": True}],
}


@pytest.fixture
def desk() -> Desk:
    """Replicas of ann (j1) and of bob (j2)."""
    desk = Desk(World().nodes(1, cpu=4))
    for tenant in ("ann", "bob"):
        desk.token(tenant, tenant, Role.SUBMITTER)
        desk.world.job("chat-1", tenant=tenant)
    desk.world.round().ask(SetRules(desk.world.request(), {"kind": "rules", "every": "5s", "rules": [RULE]}))
    return desk


def report(desk: Desk, who: str = "ann", job: str = "j1", service: str = "chat", **state: Any) -> Answer:
    news = {"gateway": "0a1b2c3d", "services": [{"service": service, "job": job, "state": {"ready": 1} | state}]}
    return desk.call("POST", PATH, json.dumps(news).encode(), who=who)


def test_a_report_is_recorded_under_the_tenant_and_answered_with_its_orders(desk: Desk) -> None:
    for _ in range(3):
        assert report(desk, waiting=9).value == {}
        desk.world.after("2s")
    assert desk.world.ledger.services["ann:chat"].state.waiting == 9
    desk.world.after("10s")
    assert report(desk, waiting=9).value == {"orders": [{"service": "chat", "rule": "slow", "by": 2}]}
    for _ in range(3):
        assert report(desk, who="bob", job="j2").value == {}, "orders of others are not shown"
        desk.world.after("2s")
    assert set(desk.world.ledger.services) == {"ann:chat", "bob:chat"}


def test_a_service_whose_replica_is_no_job_of_the_tenant_is_left_out(desk: Desk) -> None:
    """The others are recorded, and the orders are answered."""
    for _ in range(6):
        services = [
            {"service": "chat", "job": "j1", "state": {"waiting": 9}},
            {"service": "other", "job": "j2", "state": {}},
            {"service": "old", "job": "j99", "state": {}},
        ]
        data = json.dumps({"gateway": "g", "services": services}).encode()
        answer = desk.call("POST", PATH, data, who="ann")
        desk.world.after("2s")
    assert answer.value == {
        "orders": [{"service": "chat", "rule": "slow", "by": 2}],
        "left_out": [
            {"service": "other", "why": "there is no job j2 of tenant ann"},
            {"service": "old", "why": "there is no job j99 of tenant ann"},
        ],
    }
    assert set(desk.world.ledger.services) == {"ann:chat"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": -1}, {"rate": float("nan")}, {"rate": 0.5}, {"rate": 2**60}, {"refused": 1001}, {"p99": None},
        {"waiting": "many"}, {"job": "j" * 100}, {"service": ""}, {"service": "a b"}, {"service": "bob:chat"},
        {"service": "chat\n"},
        {"service": "x" * 64},
    ],
)  # fmt: skip
def test_a_report_that_is_not_well_formed_is_refused(desk: Desk, wrong: dict[str, Any]) -> None:
    before = desk.world.ledger.revision
    assert report(desk, **wrong).status in (400, 422)
    assert desk.world.ledger.revision == before


def test_thousands_of_services_are_refused(desk: Desk) -> None:
    services = [{"service": f"s{number}", "job": "j1", "state": {}} for number in range(3_000)]
    data = json.dumps({"gateway": "g", "services": services}).encode()
    assert desk.call("POST", PATH, data, who="ann").status == 422
    assert not desk.world.ledger.services


def test_a_tenant_reads_only_records_and_notices_of_its_own_services(desk: Desk) -> None:
    for _ in range(3):
        report(desk, waiting=9), report(desk, who="bob", job="j2", service="secret")
        desk.world.after("2s")
    desk.world.after("10s")
    told = {who: desk.call("GET", "/v1/events?after=0&follow=false", who=who).body for who in ("ann", "bob")}
    assert [b"ann:chat" in told[who] for who in ("ann", "bob")] == [True, False]
    assert [b"service ann:chat is in rule slow" in told[who] for who in ("ann", "bob")] == [True, False]
    assert [b"bob:secret" in told[who] for who in ("ann", "bob")] == [False, True]
